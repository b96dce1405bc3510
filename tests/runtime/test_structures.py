"""Nested structures, and the small helpers of the Accelerate API."""

import socket
from typing import Any, NamedTuple

import pytest
import torch

from runtime import (
    concatenate,
    convert_outputs_to_fp32,
    convert_to_fp32,
    find_device,
    is_port_in_use,
    recursively_apply,
    send_to_device,
    tqdm,
)
from runtime.errors import UsageError


class Pair(NamedTuple):
    first: Any
    second: Any


def test_a_function_reaches_every_tensor_and_leaves_the_rest() -> None:
    data = {"a": [torch.ones(1), "word"], "b": Pair(torch.zeros(1), (torch.ones(2),))}
    doubled = recursively_apply(lambda t, by: t * by, data, 2)
    assert doubled["a"][0].item() == 2
    assert doubled["a"][1] == "word"
    assert isinstance(doubled["b"], Pair)
    assert doubled["b"].second[0].tolist() == [2, 2]
    upper = recursively_apply(str.upper, ["a", 1], test_type=lambda leaf: isinstance(leaf, str))
    assert upper == ["A", 1]
    with pytest.raises(UsageError, match="holds a str"):
        recursively_apply(torch.neg, data, error_on_other_type=True)


def test_moving_keeps_the_keys_that_are_skipped_where_they_are() -> None:
    data = {"x": torch.ones(1), "y": [torch.ones(1)]}
    moved = send_to_device(data, "meta", skip_keys="y")
    assert (moved["x"].device.type, moved["y"][0].device.type) == ("meta", "cpu")
    assert send_to_device(data, "meta", skip_keys=["x", "y"]) == data
    assert find_device({"a": "b", "c": [torch.ones(1, device="meta")]}) == torch.device("meta")
    assert find_device(["a"]) is None


def test_half_precision_becomes_float32() -> None:
    outputs = {
        "h": torch.ones(1, dtype=torch.float16),
        "b": torch.ones(1, dtype=torch.bfloat16),
        "i": torch.ones(1).int(),
    }
    kinds = [torch.float32, torch.float32, torch.int32]
    assert [value.dtype for value in convert_to_fp32(outputs).values()] == kinds
    assert [value.dtype for value in convert_outputs_to_fp32(lambda: outputs)().values()] == kinds


def test_structures_are_joined_tensor_by_tensor() -> None:
    joined = concatenate([{"a": (torch.ones(1, 2),)}, {"a": (torch.zeros(2, 2),)}])
    assert joined["a"][0].shape == (3, 2)
    with pytest.raises(UsageError, match="concatenate of str"):
        concatenate(["a", "b"])


def test_a_port_that_something_listens_on_is_in_use() -> None:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        assert not is_port_in_use(listener.getsockname()[1])
        listener.listen()
        assert is_port_in_use(listener.getsockname()[1])


def test_a_progress_bar_goes_over_its_items(fresh_process: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(tqdm([1, 2, 3])) == [1, 2, 3]
    assert "3/3" in capsys.readouterr().err
    with pytest.raises(UsageError, match="main_process_only=True"):
        tqdm(True, [1])


@pytest.mark.multiprocess
def test_one_bar_for_each_machine_and_a_meeting_place_of_ones_own(run_ranks: Any) -> None:
    script = """
    from runtime import tqdm
    meeting = InitProcessGroupKwargs(init_method=f"file://{HERE}/meeting")
    accelerator = Accelerator(kwargs_handlers=[meeting])
    total = accelerator.reduce(torch.ones(1)).item()
    say(shown=not tqdm([1]).disable, all=not tqdm([1], main_process_only=False).disable, total=total)
    """
    said = run_ranks(script).said
    assert [one["shown"] for one in said] == [True, False]
    assert [one["all"] for one in said] == [True, True]
    assert [one["total"] for one in said] == [2.0, 2.0]
