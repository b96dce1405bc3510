"""Schedulers count optimizer steps."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from runtime.accelerator import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_process")


def _run(accelerator: Accelerator, *, scheduled_on_prepared: bool = False) -> Any:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = DataLoader(torch.ones(8, 1), batch_size=1)
    if scheduled_on_prepared:
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        scheduler = accelerator.prepare(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1))
    else:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
        scheduler, model, loader, optimizer = accelerator.prepare(scheduler, model, loader, optimizer)
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).mean() * 0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return scheduler


@pytest.mark.parametrize("scheduled_on_prepared", [False, True])
def test_eight_micro_batches_in_windows_of_four_are_two_steps(scheduled_on_prepared: bool) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    scheduler = _run(accelerator, scheduled_on_prepared=scheduled_on_prepared)
    assert scheduler.get_last_lr() == pytest.approx([0.01])


def test_a_scheduler_of_its_own_counts_every_call() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4, step_scheduler_with_optimizer=False)
    with pytest.warns(UserWarning, match="lr_scheduler.step"):
        assert _run(accelerator).get_last_lr() == pytest.approx([1e-8])


def test_plateau_schedulers_get_their_metric() -> None:
    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
    optimizer, scheduler = accelerator.prepare(
        optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    )
    for metric in (1.0, 2.0, 3.0):
        scheduler.step(metric)
    assert optimizer.param_groups[0]["lr"] == 0.25
