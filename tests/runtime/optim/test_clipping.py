"""Clipping: the norm is that of the whole batch's gradients, for every norm and strategy, at the window's end."""

import math

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import NonFiniteGradientsError
from tests.runtime.conftest import RunRanks

_SCRIPT = """
import copy, math
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2{options})
rank, world = accelerator.process_index, accelerator.num_processes
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
batches = torch.randn(2, world, 4, 3, dtype=torch.float64)

def whole(model):
    state = accelerator.get_state_dict(model)
    return torch.cat([t.flatten() for t in state.values()]) if state else None

said = []
for norm_type in (1.0, 2.0, math.inf):
    reference = copy.deepcopy(plain)
    reference(batches.flatten(0, 2)).square().mean().backward()
    expected_norm = nn.utils.clip_grad_norm_(reference.parameters(), 0.1, norm_type)
    torch.optim.SGD(reference.parameters(), lr=1.0).step()
    model = copy.deepcopy(plain)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    norms = []
    for micro in range(2):
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(model(batches[micro, rank]).square().mean())
            norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.1, norm_type).item())
            optimizer.step()
    after = whole(model)
    target = torch.cat([t.flatten() for t in reference.state_dict().values()])
    difference = 0.0 if after is None else (after - target).abs().max().item()
    said.append([norms[1], expected_norm.item(), difference])
    accelerator.free_memory()

model = copy.deepcopy(plain)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
with accelerator.accumulate(model):
    accelerator.backward(model(batches[0, rank]).square().mean())
    optimizer.step()
with accelerator.accumulate(model):
    accelerator.backward(model(batches[1, rank]).square().mean() * 1000)
    accelerator.clip_grad_value_(model.parameters(), 0.01)
    local = [getattr(p.grad, "to_local", lambda p=p: p.grad)() for p in model.parameters()]
    largest = max(gradient.abs().max().item() for gradient in local if gradient.numel())
    optimizer.zero_grad(discard=True)
accelerator.free_memory()

poisoned = copy.deepcopy(plain)
poisoned, optimizer = accelerator.prepare(poisoned, torch.optim.SGD(poisoned.parameters(), lr=1.0))
refused = []
for micro in range(2):
    with accelerator.accumulate(poisoned):
        loss = poisoned(batches[micro, rank]).square().mean()
        accelerator.backward(loss * (float("nan") if rank == 1 and micro == 1 else 1.0))
        try:
            accelerator.clip_grad_norm_(poisoned.parameters(), 0.1, error_if_nonfinite=True)
        except RuntimeError as error:
            refused.append(f"{{type(error).__name__}} {{micro}}")
say(said=said, largest=largest, refused=refused)
"""


@pytest.mark.multiprocess
@pytest.mark.parametrize("options", ["", ", fsdp_plugin={'reshard_after_forward': True}"], ids=["ddp", "fsdp2"])
def test_norms_and_clipped_steps_are_one_processs_on_the_whole_batch(run_ranks: RunRanks, options: str) -> None:
    for said in run_ranks(_SCRIPT.format(options=options)).said:
        for norm, expected, difference in said["said"]:
            assert norm == pytest.approx(expected, rel=1e-12)
            assert difference < 1e-12
        assert 0 < said["largest"] <= 0.01
        assert said["refused"] == ["NonFiniteGradientsError 1"], "on every rank, at the window's end"


@pytest.mark.usefixtures("fresh_process")
@pytest.mark.parametrize("norm_type", [1.0, 2.0, math.inf])
def test_inside_a_window_nothing_is_clipped(norm_type: float) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    norms = []
    for x in (4.0, 8.0):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor([[x]])).sum())
            norms.append(accelerator.clip_grad_norm_(model.parameters(), 1.5, norm_type).item())
            optimizer.step()
    assert norms == [2.0, 6.0], "the first is this rank's part of the mean so far"
    assert model.weight.item() == pytest.approx(1.0 - 1.5, abs=1e-5)


@pytest.mark.usefixtures("fresh_process")
def test_a_norm_that_is_not_finite_is_told_and_is_an_error_only_if_asked_for() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    accelerator.backward(model(torch.tensor([[math.inf]])).sum())
    assert not math.isfinite(accelerator.clip_grad_norm_(model.parameters(), 1.0).item())
    with pytest.raises(NonFiniteGradientsError, match=r"norm is .*zero_grad\(\) and go on"):
        accelerator.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    optimizer.zero_grad()
    accelerator.backward(model(torch.tensor([[2.0]])).sum())
    assert accelerator.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True).item() == 2.0


@pytest.mark.usefixtures("fresh_process")
def test_under_fp16_an_overflow_is_no_error_but_a_skipped_step() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    weight = nn.Parameter(torch.ones(()))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=1.0))
    accelerator.backward(weight * 1e35)
    accelerator.clip_grad_norm_([weight], 1.0, error_if_nonfinite=True)
    optimizer.step()
    assert accelerator.optimizer_step_was_skipped
    assert weight.item() == 1.0
