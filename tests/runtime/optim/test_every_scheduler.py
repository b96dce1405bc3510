"""Schedulers of every kind count optimizer steps, and go on after a resume."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as lr
from torch.optim.swa_utils import SWALR

from runtime.accelerator import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_process")


def _halve(step: int) -> float:
    return 0.5**step


Build = Callable[[torch.optim.Optimizer], Any]
KINDS: dict[str, Build] = {
    "step": lambda o: lr.StepLR(o, 2, 0.5),
    "multi-step": lambda o: lr.MultiStepLR(o, [1, 3], 0.5),
    "exponential": lambda o: lr.ExponentialLR(o, 0.7),
    "lambda": lambda o: lr.LambdaLR(o, _halve),
    "lambdas": lambda o: lr.LambdaLR(o, [lambda step: 1 / (1 + step)]),
    "multiplicative": lambda o: lr.MultiplicativeLR(o, lambda step: 0.9),
    "cosine": lambda o: lr.CosineAnnealingLR(o, 6),
    "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 2),
    "one cycle": lambda o: lr.OneCycleLR(o, 0.5, total_steps=8),
    "cyclic": lambda o: lr.CyclicLR(o, 0.01, 0.5, step_size_up=3, cycle_momentum=False),
    "polynomial": lambda o: lr.PolynomialLR(o, 6, 2.0),
    "linear": lambda o: lr.LinearLR(o, 0.1, total_iters=4),
    "constant": lambda o: lr.ConstantLR(o, 0.5, 3),
    "sequential": lambda o: lr.SequentialLR(o, [lr.LinearLR(o, 0.1, total_iters=2), lr.ExponentialLR(o, 0.5)], [2]),
    "chained": lambda o: lr.ChainedScheduler([lr.ConstantLR(o, 0.5, 2), lr.ExponentialLR(o, 0.9)], optimizer=o),
    "weight averaging": lambda o: SWALR(o, swa_lr=0.01, anneal_epochs=3),
    "plateau": lambda o: lr.ReduceLROnPlateau(o, factor=0.5, patience=0),
}
METRICS = [3.0, 3.0, 1.0, 2.0, 2.0, 2.0]


class Run:
    def __init__(self, kind: str) -> None:
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        torch.manual_seed(0)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, KINDS[kind](optimizer))
        self.metrics = kind == "plateau"

    def steps(self, first: int, end: int) -> list[list[float]]:
        rates = []
        for number in range(first, end):
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(torch.ones(1, 1)).sum())
                self.optimizer.step()
                self.scheduler.step(*([METRICS[number // 2]] if self.metrics else []))
                self.optimizer.zero_grad()
            rates.append([group["lr"] for group in self.optimizer.param_groups])
        return rates


def _plain(kind: str) -> list[list[float]]:
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1, momentum=0.9)
    scheduler = KINDS[kind](optimizer)
    rates = []
    for number in range(6):
        optimizer.step()
        before = [group["lr"] for group in optimizer.param_groups]
        scheduler.step(*([METRICS[number]] if kind == "plateau" else []))
        rates += [before, [group["lr"] for group in optimizer.param_groups]]
    return rates


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_schedule_follows_optimizer_steps_also_after_a_resume(kind: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        # SequentialLR itself calls what torch has deprecated.
        warnings.filterwarnings("ignore", message="The epoch parameter in `scheduler.step", category=UserWarning)
        whole = Run(kind).steps(0, 12)
        assert whole == _plain(kind)
        for taken in (3, 6):
            begun = Run(kind)
            begun.steps(0, taken)
            begun.accelerator.save_state(tmp_path / "checkpoint")
            resumed = Run(kind)
            resumed.accelerator.load_state(tmp_path / "checkpoint")
            assert resumed.steps(taken, 12) == whole[taken:]
