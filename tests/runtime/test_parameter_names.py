"""What an optimizer's state belongs to, and names of models that the script compiled itself."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.checkpoint.plain import same
from runtime.checkpoint.reader import read_parts
from runtime.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_process")


def _trained(*, places: tuple[int, ...] = (0, 1, 2), compiled: bool = False, seed: int = 1) -> tuple[Any, Any, Any]:
    torch.manual_seed(seed)
    accelerator = Accelerator(cpu=True)
    layers = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(3)))
    optimizer = torch.optim.Adam([layers[place].weight for place in places], lr=0.1)
    model, optimizer = accelerator.prepare(torch.compile(layers, backend="eager") if compiled else layers, optimizer)
    layers(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return accelerator, model, optimizer


@pytest.mark.parametrize("places", [(1, 0, 2), (0, 2, 1)])
def test_equal_shapes_in_another_order_are_refused_by_name(tmp_path: Path, places: tuple[int, ...]) -> None:
    accelerator, _, _ = _trained()
    path = accelerator.save_state(tmp_path / "saved")
    other, model, _ = _trained(places=places, seed=2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    place = next(i for i, p in enumerate(places) if i != p)
    words = f"parameter {place} of optimizer_0 is model_0.{places[place]}.weight, and in the checkpoint model_0.{place}"
    with pytest.raises(CheckpointError, match=words):
        other.load_state(path)
    assert all(same(value, before[name]) for name, value in model.state_dict().items())


def test_as_many_other_parameters_are_refused(tmp_path: Path) -> None:
    accelerator, _, _ = _trained(places=(0, 1))
    path = accelerator.save_state(tmp_path / "saved")
    other, _, _ = _trained(places=(0, 2))
    with pytest.raises(CheckpointError, match=r"parameter 1 of optimizer_0 is model_0\.2\.weight"):
        other.load_state(path)


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False), (True, True)])
def test_a_model_loads_whether_it_was_compiled_or_not(tmp_path: Path, before: bool, after: bool) -> None:
    accelerator, model, _ = _trained(compiled=before)
    path = accelerator.save_state(tmp_path / "saved")
    assert list(read_parts(path, ["model_0"])["model_0"]) == ["0.weight", "1.weight", "2.weight"]
    other, twin, _ = _trained(compiled=after, seed=2)
    other.load_state(path)
    assert same(list(twin.state_dict().values()), list(model.state_dict().values()))
