"""The loss scale and what it must not be taken out of: open windows, gradients it was never in, none at all."""

from typing import Any

import pytest
import torch
from torch import nn

from runtime import Accelerator, GradScalerKwargs
from runtime.errors import UsageError


class Times(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: float) -> torch.Tensor:
        return self.w * x


def _prepared(fresh_process: None, **options: Any) -> Any:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", **options)
    model = Times()
    return accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))


@pytest.mark.parametrize("which", ["all", "one", "several"])
def test_unscaling_inside_a_window_waits_for_its_end(fresh_process: None, which: str) -> None:
    accelerator, model, optimizer = _prepared(fresh_process, gradient_accumulation_steps=2)
    given = {"all": None, "one": optimizer, "several": [optimizer]}[which]
    for x in (1.0, 2.0):
        with accelerator.accumulate(model):
            accelerator.backward(model(x))
            accelerator.unscale_gradients(given)
            accelerator.unscale_gradients(given)
            norm = accelerator.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            optimizer.zero_grad()
    assert norm.item() == pytest.approx(1.5)
    assert model.w.item() == pytest.approx(-1.5)


def test_a_backward_of_ones_own_is_refused_instead_of_divided_by_the_scale(fresh_process: None) -> None:
    accelerator, model, optimizer = _prepared(fresh_process)
    accelerator.backward(model(1.0))
    optimizer.step()
    optimizer.zero_grad()
    model(1.0).backward()
    with pytest.raises(UsageError, match=r"no accelerator.backward\(\) made"):
        optimizer.step()
    with pytest.raises(UsageError, match=r"no accelerator.backward\(\) made"):
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
    assert model.w.item() == -1.0


def test_a_step_without_gradients_changes_nothing(fresh_process: None) -> None:
    accelerator, model, optimizer = _prepared(fresh_process)
    optimizer.step()
    assert (model.w.item(), accelerator.optimizer_step_was_skipped) == (0.0, False)
    accelerator.backward(model(1.0))
    optimizer.step()
    assert model.w.item() == -1.0


def test_a_closure_is_refused_by_name(fresh_process: None) -> None:
    _, _, optimizer = _prepared(fresh_process)
    with pytest.raises(UsageError, match=r"SGD.step\(closure\) under fp16"):
        optimizer.step(lambda: torch.zeros(()))


def test_a_model_that_is_halved_late_is_named(fresh_process: None) -> None:
    accelerator, model, optimizer = _prepared(fresh_process)
    model.half()
    accelerator.backward(model(1.0))
    with pytest.raises(UsageError, match="1 gradients are float16"):
        optimizer.step()


def test_a_scaler_that_is_turned_off_is_none(fresh_process: None) -> None:
    accelerator, model, optimizer = _prepared(fresh_process, kwargs_handlers=[GradScalerKwargs(enabled=False)])
    assert accelerator.scaler is None
    accelerator.backward(model(1.0))
    accelerator.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    assert model.w.item() == -1.0
