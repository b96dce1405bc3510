"""fp16 with several optimizers: one that overflows takes nothing of the others with it."""

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.options import GradScalerKwargs

pytestmark = pytest.mark.usefixtures("fresh_process")


def _pair(**options: object) -> tuple[Accelerator, list[nn.Parameter], list[torch.optim.Optimizer]]:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", **options)  # type: ignore[arg-type]  # keywords
    weights = [nn.Parameter(torch.ones(())), nn.Parameter(torch.ones(()))]
    optimizers = [accelerator.prepare(torch.optim.SGD([weight], lr=0.1)) for weight in weights]
    return accelerator, weights, optimizers


@pytest.mark.parametrize("clip", [False, True])
def test_the_others_step_is_right_when_one_overflows(clip: bool) -> None:
    accelerator, (first, second), (one, two) = _pair()
    accelerator.backward(first * 1e35 + second * 3.0)
    if clip:
        accelerator.clip_grad_norm_([first], 100.0)
        accelerator.clip_grad_norm_([second], 100.0)
    one.step()
    two.step()
    assert (one.num_skipped, two.num_skipped) == (1, 0)  # type: ignore[attr-defined]  # prepared
    assert first.item() == 1.0
    assert second.item() == pytest.approx(1.0 - 0.1 * 3.0)
    assert accelerator.scaler is not None
    assert accelerator.scaler.get_scale() == 32768.0


def test_the_scale_grows_once_for_a_window_and_not_for_each_optimizer() -> None:
    growing = GradScalerKwargs(init_scale=8.0, growth_interval=1)
    accelerator, (first, second), (one, two) = _pair(kwargs_handlers=[growing])
    for _ in range(2):
        accelerator.backward(first * 2.0 + second * 3.0)
        accelerator.clip_grad_norm_([first, second], 1e9)
        one.step()
        two.step()
        one.zero_grad()
        two.zero_grad()
    assert first.item() == pytest.approx(1.0 - 0.1 * 4.0)
    assert second.item() == pytest.approx(1.0 - 0.1 * 6.0)
    assert accelerator.scaler is not None
    assert accelerator.scaler.get_scale() == 32.0


def test_gradients_that_wait_longer_go_along_with_the_scale() -> None:
    accelerator, (first, second), (one, two) = _pair()
    accelerator.backward(second * 3.0)
    accelerator.backward(first * 1e35)
    one.step()
    one.zero_grad()
    accelerator.backward(second * 5.0)
    two.step()
    assert second.item() == pytest.approx(1.0 - 0.1 * 8.0)
    assert first.item() == 1.0


def test_a_generator_and_a_discriminator_that_step_by_turns() -> None:
    accelerator, (first, second), (one, two) = _pair(
        kwargs_handlers=[GradScalerKwargs(init_scale=8.0, growth_interval=1)]
    )
    for _ in range(3):
        one.zero_grad()
        accelerator.backward(first * second)  # reaches both, and only the first steps
        one.step()
        two.zero_grad()
        accelerator.backward(first * second)
        two.step()
    w1 = w2 = 1.0
    for _ in range(3):
        w1 -= 0.1 * w2
        w2 -= 0.1 * w1
    assert first.item() == pytest.approx(w1)
    assert second.item() == pytest.approx(w2)


def test_clipping_one_model_leaves_the_open_window_of_another_scaled() -> None:
    scaler = GradScalerKwargs(init_scale=8.0)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", gradient_accumulation_steps=2, kwargs_handlers=[scaler])
    models = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    for model in models:
        nn.init.ones_(model.weight)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    first, second, one, two = accelerator.prepare(*models, *optimizers)

    def micro_batch(model: nn.Module, optimizer: torch.optim.Optimizer, x: float) -> None:
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor([[x]])).sum())
            accelerator.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
            optimizer.zero_grad()

    micro_batch(second, two, 1.0)
    micro_batch(first, one, 1.0)
    micro_batch(first, one, 3.0)  # clips and steps while the other's window is open
    micro_batch(second, two, 5.0)
    assert first.weight.item() == pytest.approx(1.0 - 0.1 * 2.0)
    assert second.weight.item() == pytest.approx(1.0 - 0.1 * 3.0)
