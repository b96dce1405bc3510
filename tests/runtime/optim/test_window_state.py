"""An open window taken down and put back: training goes on as if nothing had happened."""

from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import CheckpointError
from runtime.optim.window_state import merge_windows
from runtime.seeding import set_seed


class Twins:
    """Two models with windows of their own, as a GAN has, and a loose parameter."""

    def __init__(self, **options: Any) -> None:
        set_seed(5)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, **options)
        self.first, self.second = nn.Linear(2, 1), nn.Linear(2, 1)
        self.loose = nn.Parameter(torch.ones(1))
        one = torch.optim.Adam([*self.first.parameters(), self.loose], lr=0.1)
        two = torch.optim.Adam(self.second.parameters(), lr=0.1)
        prepared = self.accelerator.prepare(self.first, self.second, one, two)
        self.first, self.second, self.one, self.two = prepared

    def step(self, number: int) -> float:
        x = torch.tensor([[float(number), 1.0]])
        total = 0.0
        for model, optimizer, zero_first in ((self.first, self.one, True), (self.second, self.two, False)):
            with self.accelerator.accumulate(model):
                if zero_first:
                    optimizer.zero_grad()
                loss = (model(x) * self.loose.detach() + (self.loose if zero_first else 0)).square().mean()
                self.accelerator.backward(loss)
                self.accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if not zero_first:
                    optimizer.zero_grad()
            total += loss.item()
        return total


@pytest.mark.parametrize("precision", ["no", "fp16"])
@pytest.mark.parametrize("taken", [1, 2, 3, 4])
def test_a_window_goes_on_in_another_process(fresh_process: None, taken: int, precision: str) -> None:
    whole = Twins(mixed_precision=precision)
    expected = [whole.step(number) for number in range(8)]

    saving = Twins(mixed_precision=precision)
    for number in range(taken):
        saving.step(number)
    state = saving.accelerator._prepared.window_state()
    assert (state is None) == (taken == 3)
    parts = [part.save() for part in saving.accelerator._prepared.parts()]

    going_on = Twins(mixed_precision=precision)
    with torch.no_grad():
        going_on.loose.copy_(saving.loose)
    for part, saved in zip(going_on.accelerator._prepared.parts(), parts, strict=True):
        part.load(saved)
    going_on.accelerator._prepared.load_window_state(state)
    assert going_on.accelerator.sync_gradients == saving.accelerator.sync_gradients
    assert [going_on.step(number) for number in range(taken, 8)] == expected[taken:]


def test_a_window_whose_gradients_were_kept_as_sums_goes_on(fresh_process: None) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    window = {"models": [0], "micro_steps": 2, "contributed": 2, "items": None}
    gradients = {"model_0.weight": {"sum": torch.tensor([[4.0 + 8.0]])}}
    accelerator._prepared.load_window_state({"windows": [window], "current": 0, "waiting": [], "gradients": gradients})
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.tensor([[6.0]])).sum())
    assert accelerator.sync_gradients
    assert model.weight.grad.item() == pytest.approx(6.0)


def test_gradients_gathered_by_hand_are_kept_too(fresh_process: None) -> None:
    def build() -> tuple[Accelerator, nn.Parameter, Any]:
        accelerator = Accelerator(cpu=True)
        weight = nn.Parameter(torch.zeros(1))
        return accelerator, weight, accelerator.prepare(torch.optim.SGD([weight], lr=1.0))

    accelerator, weight, optimizer = build()
    assert accelerator._prepared.window_state() is None
    accelerator.backward((weight * 2).sum())
    state = accelerator._prepared.window_state()
    accelerator, weight, optimizer = build()
    accelerator._prepared.load_window_state(state)
    accelerator.backward((weight * 3).sum())
    optimizer.step()
    assert weight.item() == -5.0
    assert accelerator._prepared.window_state() is None


def test_a_window_of_other_models_is_refused_and_leaves_nothing(fresh_process: None) -> None:
    twins = Twins()
    twins.step(0)
    state = twins.accelerator._prepared.window_state()
    other = Accelerator(cpu=True)
    model = other.prepare(nn.Linear(2, 1))
    with pytest.raises(CheckpointError, match=r"gradients of model_1\.bias"):
        other._prepared.load_window_state(state)
    assert model.weight.grad is None
    assert other.sync_gradients


def test_a_window_of_a_model_that_was_not_prepared_is_refused(fresh_process: None) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    accelerator.prepare(nn.Linear(1, 1))
    model = nn.Linear(1, 1)
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.ones(1, 1)).sum())
    with pytest.raises(CheckpointError, match="model that was not prepared"):
        accelerator._prepared.window_state()


def _state(
    gradient: float, *, items: float | None = None, micro_steps: int = 2, key: str = "sum", divisor: int = 1
) -> dict[str, Any]:
    counts = {"micro_steps": micro_steps, "contributed": micro_steps, "items": items, "divisor": divisor}
    window = {"models": [0]} | counts
    gradients = {"model_0.w": {key: torch.tensor([gradient])}}
    return {"windows": [window], "current": 0, "waiting": [True], "gradients": gradients}


def test_another_number_of_ranks_holds_the_same_mean() -> None:
    merged = merge_windows([_state(1.0), _state(5.0)], 4)
    assert merged is not None
    assert merged["gradients"]["model_0.w"]["sum"].item() == 3.0
    assert merged["windows"][0]["micro_steps"] == 2


@pytest.mark.parametrize("world_size", [1, 3])
def test_items_of_all_ranks_count_the_same_on_another_number_of_ranks(world_size: int) -> None:
    merged = merge_windows([_state(10.0, items=1), _state(20.0, items=4)], world_size)
    assert merged is not None
    total = merged["windows"][0]["items"] * world_size
    mean_over_ranks = merged["gradients"]["model_0.w"]["sum"].item()
    assert total == pytest.approx(5.0)
    assert mean_over_ranks * world_size / total == pytest.approx((10.0 + 20.0) / 5)


def test_what_does_not_fit_another_number_of_ranks_is_refused() -> None:
    for states in (
        [_state(1.0), _state(1.0, micro_steps=1)],
        [_state(1.0), None],
        [_state(1.0), _state(1.0, divisor=4)],
        [_state(1.0, key="shard"), _state(1.0, key="shard")],
    ):
        with pytest.raises(CheckpointError, match="another number of ranks cannot go on"):
            merge_windows(states, 4)
    assert merge_windows([None, None], 4) is None


SCRIPT = """
from runtime import FullyShardedDataParallelPlugin

def build(kind, **options):
    set_seed(1)
    if kind == "fsdp2":
        options["fsdp_plugin"] = FullyShardedDataParallelPlugin()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, **options)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    return accelerator, model, optimizer

def step(accelerator, model, optimizer, number):
    torch.manual_seed(100 * number + accelerator.process_index)
    x = torch.randn(2, 3)
    with accelerator.accumulate(model):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()

got = {}
for kind, precision in (("ddp", "no"), ("fsdp2", "no"), ("fsdp2", "bf16")):
    whole = build(kind, mixed_precision=precision)
    expected = [step(*whole, number) for number in range(7)]
    for taken in (1, 2, 4):
        saving = build(kind, mixed_precision=precision)
        begun = [step(*saving, number) for number in range(taken)]
        path = saving[0].save_state(HERE / f"{kind}-{precision}-{taken}")
        new = build(kind, mixed_precision=precision)
        new[0].load_state(path)
        rest = [step(*new, number) for number in range(taken, 7)]
        got[f"{kind} {precision} {taken}"] = begun + rest == expected
accelerator = whole[0]
say(**got)
"""


@pytest.mark.multiprocess
def test_windows_of_several_ranks_go_on_bit_by_bit(run_ranks: Any) -> None:
    for said in run_ranks(SCRIPT).said:
        assert len(said) == 9
        assert all(said.values()), said
