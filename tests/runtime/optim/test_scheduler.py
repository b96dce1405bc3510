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


@pytest.mark.multiprocess
def test_the_peers_counting_is_an_option(run_ranks: Any) -> None:
    script = """
    def last_lr(**settings):
        accelerator = Accelerator(gradient_accumulation_steps=2, **settings)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1)
        loader = DataLoader(torch.ones(16, 1), batch_size=2)
        model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
        for x in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(x).mean() * 0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        return scheduler.get_last_lr()[0]

    ours, peers = last_lr(), last_lr(scheduler_counts_processes=True)
    split = last_lr(scheduler_counts_processes=True, split_batches=True)
    accelerator = Accelerator()
    say(ours=ours, peers=peers, split=split)
    """
    for said in run_ranks(script).said:
        assert said["ours"] == pytest.approx(1e-2)
        assert said["peers"] == pytest.approx(1e-4)
        assert said["split"] == pytest.approx(1e-4)  # twice as many steps, each counted once


@pytest.mark.parametrize(("steps", "speaks"), [(10, False), (9, False), (4, True)])
def test_a_training_that_ends_far_from_its_schedules_end_says_so(steps: int, speaks: bool) -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=10)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    for _ in range(steps - 1):
        accelerator.backward(model(torch.ones(1, 1)).mean())
        optimizer.step()
        scheduler.step()
    scheduler.scheduler.last_epoch = steps
    if speaks:
        with pytest.warns(RuntimeWarning, match="stands at step 4 of total_steps=10"):
            accelerator.end_training()
    else:
        accelerator.end_training()
