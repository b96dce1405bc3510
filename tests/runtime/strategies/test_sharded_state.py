"""Sharded state and norms in one process, where a shard is the whole."""

import gc
import math
import weakref
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import CheckpointError


@pytest.fixture(autouse=True)
def group_closed(fresh_process: None) -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_the_norm_is_torchs_for_every_type(norm_type: float) -> None:
    accelerator = Accelerator(cpu=True, fsdp_plugin={})
    plain, model = nn.Linear(3, 4), nn.Linear(3, 4)
    model.load_state_dict(plain.state_dict())
    model = accelerator.prepare(model)
    x = torch.randn(5, 3)
    accelerator.backward(model(x).square().sum())
    plain(x).square().sum().backward()
    expected = nn.utils.clip_grad_norm_(plain.parameters(), 0.1, norm_type)
    assert float(accelerator.clip_grad_norm_(model.parameters(), 0.1, norm_type)) == pytest.approx(float(expected))
    for sharded, parameter in zip(model.parameters(), plain.parameters(), strict=True):
        assert sharded.grad is not None
        assert parameter.grad is not None
        assert torch.allclose(sharded.grad.to_local(), parameter.grad, rtol=1e-5)  # type: ignore[attr-defined]  # a DTensor


def test_an_optimizer_state_of_another_shape_is_refused_and_nothing_changes() -> None:
    whole = nn.Linear(3, 4)
    factored = torch.optim.Adafactor(whole.parameters())
    whole(torch.ones(1, 3)).sum().backward()
    factored.step()
    accelerator = Accelerator(cpu=True, fsdp_plugin={})
    model = nn.Linear(3, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.Adafactor(model.parameters()))
    strategy = accelerator._prepared.strategy
    with pytest.raises(CheckpointError, match="of Adafactor has shape"):
        strategy.load_optimizer_state_dict(optimizer.optimizer, factored.state_dict())
    assert not optimizer.state


def test_the_state_of_another_number_of_parameters_is_refused() -> None:
    accelerator = Accelerator(cpu=True, fsdp_plugin={})
    model = nn.Linear(3, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other = torch.optim.SGD(nn.Linear(3, 4, bias=False).parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="2 parameters, the checkpoint 1"):
        accelerator._prepared.strategy.load_optimizer_state_dict(optimizer.optimizer, other.state_dict())


def test_a_state_dict_owns_its_memory_and_is_free_of_wrappers() -> None:
    accelerator = Accelerator(cpu=True, fsdp_plugin={"activation_checkpointing": True})
    model = accelerator.prepare(nn.Sequential(nn.Linear(3, 4), nn.ModuleDict({"a": nn.Linear(4, 1)})["a"]))
    state = accelerator.get_state_dict(model)
    assert list(state) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    for value in state.values():
        assert type(value) is torch.Tensor
        assert value.untyped_storage().nbytes() == value.numel() * value.element_size()


def test_the_strategy_keeps_no_model_alive() -> None:
    accelerator = Accelerator(cpu=True, fsdp_plugin={})
    model = accelerator.prepare(nn.Linear(3, 4))
    gone = weakref.ref(model)
    (model,) = accelerator.free_memory(model)
    gc.collect()
    assert gone() is None
