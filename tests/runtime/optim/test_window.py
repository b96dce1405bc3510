"""The accumulation window on one process: the numbers, whatever the order of calls in the loop."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runtime.accelerator import Accelerator
from runtime.errors import UsageError
from runtime.optim.window import AccumulationWindows

pytestmark = pytest.mark.usefixtures("fresh_process")


class Weight(nn.Module):
    """loss = w * x, so that the gradient is x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w * x


def _numbers(*values: float) -> DataLoader[Any]:
    return DataLoader(torch.tensor(values), batch_size=1)


def _setup(accelerator: Accelerator, *values: float, lr: float = 1.0) -> tuple[Any, Any, Any]:
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return accelerator.prepare(model, optimizer, _numbers(*values))


@pytest.mark.parametrize("order", ["zero first", "zero last", "zero outside", "step outside"])
def test_the_short_last_window_is_the_mean_of_its_own_micro_batches(order: str) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = _setup(accelerator, 1, 2, 3, 4, 5)
    for epoch in range(2):
        steps = 0
        for x in loader:
            if order == "zero outside":
                optimizer.zero_grad()
            with accelerator.accumulate(model):
                if order == "zero first":
                    optimizer.zero_grad()
                accelerator.backward(model(x).mean())
                if order != "step outside":
                    optimizer.step()
                if order == "zero last":
                    optimizer.zero_grad()
            if order == "step outside":
                optimizer.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
        assert steps == 3
        assert optimizer.num_steps == 3 * (epoch + 1)
        assert model.w.item() == -10.0 * (epoch + 1)


def test_a_token_weighted_window_is_the_mean_over_all_tokens() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(Weight())
    for tokens in ([10.0], [1.0, 2.0, 3.0, 4.0]):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor(tokens)).sum(), num_items=len(tokens))
    assert model.w.grad.item() == 4.0


def test_the_peers_recipe_for_token_weights_gives_the_same() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(Weight())
    for tokens in ([10.0], [1.0, 2.0, 3.0, 4.0]):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor(tokens)).sum() * 2 / 5)
    assert model.w.grad.item() == 4.0


@pytest.mark.parametrize("cut", [[1, 4], [2, 3], [3, 2]])
def test_the_token_mean_does_not_depend_on_the_cut(cut: list[int]) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(Weight())
    for part in torch.split(torch.tensor([10.0, 1.0, 2.0, 3.0, 4.0]), cut):
        with accelerator.accumulate(model):
            accelerator.backward(model(part).sum(), num_items=len(part))
    assert model.w.grad.item() == pytest.approx(4.0)


def test_sums_and_means_in_one_window_are_refused() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(Weight())
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(2)).sum(), num_items=2)
    with accelerator.accumulate(model), pytest.raises(UsageError, match="with and without num_items"):
        accelerator.backward(model(torch.ones(2)).mean())


def test_a_window_without_items_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Weight())
    with accelerator.accumulate(model), pytest.raises(UsageError, match="num_items of the whole window is 0"):
        accelerator.backward(model(torch.zeros(1)).sum(), num_items=0)


@pytest.mark.parametrize("leave_early", [False, True])
def test_evaluation_inside_a_window_leaves_it_alone(leave_early: bool) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, optimizer, train = _setup(accelerator, 1, 2, 3, 4, 5)
    evaluation = accelerator.prepare(_numbers(7, 8))
    flags, ends, kept = [], [], []
    for index, x in enumerate(train):
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            optimizer.step()
            optimizer.zero_grad()
        flags.append(accelerator.sync_gradients)
        if index == 1:
            for _ in evaluation:
                if leave_early:
                    break
        ends.append(accelerator.end_of_dataloader)
        kept.append(len(accelerator.gather_for_metrics(x)))
    assert flags == [False, False, True, False, True]
    assert ends == [False, False, False, False, True]
    assert kept == [1] * 5
    assert optimizer.num_steps == 2
    assert model.w.item() == -2.0 - 4.5


def test_two_losses_of_one_micro_batch_add_up() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(Weight())
    for value in (1.0, 3.0):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor(value)))
            accelerator.backward(model(torch.tensor(10 * value)))
    assert model.w.grad.item() == (11.0 + 33.0) / 2


@pytest.mark.parametrize("zero_first", [True, False])
def test_two_models_in_one_window_keep_their_own_gradients(zero_first: bool) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    first, second = Weight(), Weight()
    one, two = (torch.optim.SGD(model.parameters(), lr=1.0) for model in (first, second))
    first, second, one, two, loader = accelerator.prepare(first, second, one, two, _numbers(1, 2, 3, 4))
    for x in loader:
        with accelerator.accumulate(first, second):
            for model, optimizer, factor in ((first, one, 1.0), (second, two, 10.0)):
                if zero_first:
                    optimizer.zero_grad()
                accelerator.backward(model(factor * x).mean())
                optimizer.step()
                if not zero_first:
                    optimizer.zero_grad()
    assert first.w.item() == -1.5 - 3.5
    assert second.w.item() == -15.0 - 35.0


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_skipped_micro_batch_does_not_count(skipped: int) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = _setup(accelerator, 4, 6)
    for index, x in enumerate(loader):
        with accelerator.accumulate(model):
            if index != skipped:
                accelerator.backward(model(x).mean())
            optimizer.step()
            optimizer.zero_grad()
    assert model.w.item() == (-6.0 if skipped == 0 else -4.0)


def test_discard_clears_even_inside_a_window() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, _ = _setup(accelerator, 1)
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.tensor(5.0)))
        optimizer.zero_grad()
        assert model.w.grad.item() == 2.5
        optimizer.zero_grad(discard=True)
        assert model.w.grad is None


def test_without_accumulation_zero_grad_always_clears() -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, _ = _setup(accelerator, 1)
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.tensor(5.0)))
        optimizer.zero_grad()
    assert model.w.grad is None


def test_clipping_waits_for_the_end_of_the_window_and_returns_the_true_norm() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = _setup(accelerator, 30, 50)
    norms = []
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            norms.append(accelerator.clip_grad_norm_(model.parameters(), 1.0).item())
            optimizer.step()
            optimizer.zero_grad()
    assert norms == [15.0, 40.0]
    assert model.w.item() == pytest.approx(-1.0)


def test_nested_windows_are_refused() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(Weight())
    with accelerator.accumulate(model), pytest.raises(UsageError, match="accumulate\\(\\) inside"):
        accelerator.accumulate(model).__enter__()


def test_manual_steps_after_a_window_left_open_still_step() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, optimizer, loader = _setup(accelerator, 1, 2, 3)
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean())
            optimizer.step()
        break
    optimizer.zero_grad(discard=True)
    accelerator.backward(model(torch.tensor(8.0)))
    optimizer.step()
    assert model.w.item() == -2.0


@pytest.mark.parametrize("num_steps", [2, 3])
@pytest.mark.parametrize("num_batches", [4, 5])
def test_gradients_that_nobody_cleared_are_added_to_and_not_divided_again(num_batches: int, num_steps: int) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps)
    model = nn.Linear(1, 1, bias=False)
    values = torch.arange(1.0, num_batches + 1).reshape(-1, 1)
    model, loader = accelerator.prepare(model, DataLoader(TensorDataset(values), batch_size=1))
    for (batch,) in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).sum())
    assert model.weight.grad.item() == pytest.approx(sum(w.mean().item() for w in values.split(num_steps)))


@pytest.mark.parametrize("num_steps", [2, 3, 5])
@pytest.mark.parametrize("skips", [False, True])
def test_every_length_of_a_window_gives_the_mean(num_steps: int, skips: bool) -> None:
    for length in range(1, num_steps + 1):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps)
        model, kept = accelerator.prepare(Weight().double()), []
        optimizer = accelerator.prepare(torch.optim.SGD(model.parameters(), lr=1.0))
        values = torch.arange(1.0, length + 1, dtype=torch.float64) / 7
        for index, x in enumerate(accelerator.prepare(DataLoader(values, batch_size=1))):
            with accelerator.accumulate(model):
                if not skips or index % 2 == 0:
                    accelerator.backward(model(x).sum())
                    kept.append(x.item())
                optimizer.step()
        assert optimizer.num_steps == 1
        assert model.w.item() == pytest.approx(-sum(kept) / len(kept), rel=1e-15)


def test_the_gradients_of_a_full_window_are_not_gone_over_again() -> None:
    def refuse(_: Any) -> list[torch.Tensor]:
        raise AssertionError("a pass over all gradients")

    windows = AccumulationWindows(3, data_parallel=1, sum_items=float, local_gradients=refuse)
    for micro_batch in range(6):
        windows.enter((), at_end=False)
        assert windows.loss_factor([], None) == 1 / 3, micro_batch
        assert windows.unfinished_correction() is None
        windows.leave()


def test_another_length_from_inside_a_window_on() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, optimizer, _ = _setup(accelerator, 1)
    for index, value in enumerate((1.0, 3.0, 5.0)):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor(value)))
            optimizer.step()
            optimizer.zero_grad()
        if index == 0:
            accelerator._prepared.windows.num_steps = 3
    assert model.w.item() == pytest.approx(-3.0)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_an_error_inside_a_micro_batch_ends_it(num_steps: int) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=num_steps)
    model = accelerator.prepare(Weight())
    with pytest.raises(KeyError), accelerator.accumulate(model):
        raise KeyError
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.tensor(3.0)))
    assert model.w.grad.item() == 3.0


def test_a_micro_batch_may_be_a_function() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, flags = accelerator.prepare(Weight()), []

    @accelerator.accumulate(model)
    def micro_batch(value: float) -> None:
        accelerator.backward(model(torch.tensor(value)))
        flags.append(accelerator.sync_gradients)

    micro_batch(1.0)
    micro_batch(5.0)
    assert flags == [False, True]
    assert model.w.grad.item() == 3.0
