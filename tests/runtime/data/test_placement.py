"""Placing a batch: the same structure as send_to_device gives, on the device, in containers of its own."""

from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

from runtime.data.placement import placement
from runtime.structures import leaves, send_to_device

_Pair = namedtuple("_Pair", ["x", "y"])


class _Movable:
    device = "cpu"

    def to(self, device: torch.device) -> "_Movable":
        moved = _Movable()
        moved.device = str(device)
        return moved


def _ones() -> torch.Tensor:
    return torch.ones(2)


_BATCHES: dict[str, Any] = {
    "tensor": _ones(),
    "parameter": torch.nn.Parameter(_ones()),
    "list": [_ones(), _ones()],
    "tuple": (_ones(), 3),
    "dict": {"b": _ones(), "a": [1, None, "text", 2.5, True]},
    "nested": [{"x": (_ones(), [_ones()])}, {"y": {}}],
    "named tuple": _Pair(_ones(), {"z": _ones()}),
    "ordered dict": {"o": OrderedDict(b=_ones(), a=1)},
    "one that moves itself": [_Movable(), {"m": _Movable()}],
}


def _shape(data: Any) -> list[Any]:
    kinds = [(path, type(leaf), str(getattr(leaf, "device", leaf))) for path, leaf in leaves(data)]
    return [type(data), *kinds]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("batch", _BATCHES.values(), ids=_BATCHES)
def test_it_gives_what_send_to_device_gives(batch: Any, device: str) -> None:
    place = placement(torch.device(device), non_blocking=False)
    assert _shape(place(batch)) == _shape(send_to_device(batch, device))


def test_tensors_that_are_there_stay_and_containers_are_the_loops_own() -> None:
    batch = {"x": _ones(), "rest": [_ones()]}
    placed = placement(torch.device("cpu"), non_blocking=True)(batch)
    assert placed["x"] is batch["x"]
    placed["rest"].clear()
    del placed["x"]
    assert len(batch["rest"]) == 1
    assert "x" in batch


def test_without_a_device_a_batch_is_left_alone() -> None:
    batch = [_ones()]
    assert placement(None, non_blocking=False)(batch) is batch
