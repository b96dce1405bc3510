"""What backward() takes as a loss and as its number of items, and a window's length that is assigned."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runtime import Accelerator
from runtime.errors import ConfigurationError, UsageError


@pytest.fixture
def training(fresh_process: None) -> Any:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0))


@pytest.mark.parametrize("number", [float("nan"), -3, "5", torch.tensor([1, 2])])
def test_what_is_no_count_is_refused_before_it_divides(training: Any, number: Any) -> None:
    accelerator, model, _ = training
    with pytest.raises(UsageError, match="num_items="), accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 1)).sum(), num_items=number)
    assert model.weight.grad is None


def test_a_tensor_that_is_not_finite_is_refused_where_the_window_ends(training: Any) -> None:
    accelerator, model, _ = training
    with pytest.raises(UsageError, match="num_items of the whole window is nan"):
        accelerator.backward(model(torch.ones(1, 1)).sum(), num_items=torch.tensor(float("nan")))


@pytest.mark.parametrize("kind", [int, float, np.int64, np.float32, torch.tensor])
def test_counts_of_every_kind_divide_alike(training: Any, kind: Any) -> None:
    accelerator, model, _ = training
    for values in ([10.0], [1.0, 2.0, 3.0, 4.0]):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor(values)[:, None]).sum(), num_items=kind(len(values)))
    assert model.weight.grad.item() == pytest.approx(4.0)


@pytest.mark.parametrize("loss", [None, 1.0, {"loss": 1.0}])
def test_a_loss_that_is_no_tensor_is_named(training: Any, loss: Any) -> None:
    with pytest.raises(UsageError, match=rf"backward\(\) of a {type(loss).__name__}"):
        training[0].backward(loss)


def test_a_window_of_another_length_may_be_assigned(training: Any) -> None:
    accelerator, model, _ = training
    accelerator.gradient_accumulation_steps = 3
    ends = []
    for _ in range(6):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(1, 1)).sum())
        ends.append(accelerator.sync_gradients)
    assert ends == [False, False, True] * 2
    for wrong in (0, 2.0, True):
        with pytest.raises(ConfigurationError, match="an integer of at least 1"):
            accelerator.gradient_accumulation_steps = wrong
