"""An fp16 step that overflows: nothing may advance."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.layout import RunLayout
from runtime.options import GradScalerKwargs
from runtime.records import read_events

pytestmark = pytest.mark.usefixtures("fresh_process")

Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
BUILDERS: dict[str, Build] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
}


@pytest.mark.parametrize("kind", list(BUILDERS))
@pytest.mark.parametrize("clip", [False, True])
def test_an_overflow_advances_nothing(kind: str, clip: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    weight = nn.Parameter(torch.ones(()))
    optimizer = BUILDERS[kind]([weight])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    optimizer, scheduler = accelerator.prepare(optimizer, scheduler)
    skipped, weights, scales = [], [], []
    for step in range(1, 5):
        optimizer.zero_grad()
        accelerator.backward(weight * (1e35 if step == 2 else 1.0))
        if clip:
            accelerator.clip_grad_norm_([weight], 10.0)
        optimizer.step()
        scheduler.step()
        skipped.append(accelerator.optimizer_step_was_skipped)
        weights.append(weight.item())
        assert accelerator.scaler is not None
        scales.append(accelerator.scaler.get_scale())
    assert skipped == [False, True, False, False]
    assert scales == [65536.0, 32768.0, 32768.0, 32768.0]
    assert weights[1] == weights[0]
    assert weights[2] < weights[1]
    assert (optimizer.num_steps, optimizer.num_skipped) == (3, 1)
    assert scheduler.get_last_lr() == pytest.approx([0.1 * 0.5**3])
    if kind != "sgd":
        assert int(optimizer.state[weight]["step"]) == 3
    events = [event.details for event in read_events(RunLayout(tmp_path).events) if event.event == "step_skipped"]
    assert events == [{"after_step": 1, "in_a_row": 1, "problem": False}]


def test_three_overflows_in_a_row_are_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=8.0)])
    weight = nn.Parameter(torch.ones(()))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.1))
    for _ in range(3):
        accelerator.backward(weight * float("inf"))
        optimizer.step()
        optimizer.zero_grad()
    events = [event.details for event in read_events(RunLayout(tmp_path).events) if event.event == "step_skipped"]
    assert [event["problem"] for event in events] == [False, False, True]
    assert optimizer.num_steps == 0


def test_an_overflow_inside_a_window_skips_the_whole_window() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=2)
    weight = nn.Parameter(torch.ones(()))
    optimizer = accelerator.prepare(torch.optim.SGD([weight], lr=0.1))
    for value in (1e35, 1.0, 1.0, 3.0):
        with accelerator.accumulate():
            optimizer.zero_grad()
            accelerator.backward(weight * value)
            optimizer.step()
    assert weight.item() == pytest.approx(1.0 - 0.1 * 2.0)
