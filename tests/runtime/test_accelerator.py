"""The document's samples as they are written, and the facade's own settings."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError, UsageError
from runtime.options import DataLoaderConfiguration, GradientAccumulationPlugin, GradScalerKwargs, ProjectConfiguration
from runtime.seeding import set_seed

pytestmark = pytest.mark.usefixtures("fresh_process")


class Loss(nn.Module):
    """A model whose output is its loss, as in the document."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(10, 2)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.linear(batch).square().mean()


def _dataset() -> Any:
    set_seed(42)
    return torch.randn(64, 10)


def _plain_training(steps_of: Callable[[int], int]) -> list[float]:
    """Weights after the same training in plain torch, in windows of so many batches."""
    dataset = _dataset()
    model = Loss()
    optimizer = torch.optim.Adam(model.parameters())
    batches = list(dataset.split(4))
    size = steps_of(len(batches))
    for start in range(0, len(batches), size):
        optimizer.zero_grad()
        window = batches[start : start + size]
        (sum(model(batch) for batch in window) / len(window)).backward()
        optimizer.step()
    return model.linear.weight.flatten().tolist()


def test_s1_the_four_line_conversion_trains_as_before() -> None:
    expected = _plain_training(lambda _: 1)
    dataset = _dataset()
    accelerator = Accelerator()

    model = Loss()
    optimizer = torch.optim.Adam(model.parameters())
    dataloader = torch.utils.data.DataLoader(dataset, batch_size=4)

    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

    for batch in dataloader:
        optimizer.zero_grad()
        loss = model(batch)
        accelerator.backward(loss)
        optimizer.step()
    assert model.linear.weight.flatten().tolist() == expected


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_s5_mixed_precision_with_the_optional_autocast(precision: str) -> None:
    dataset = _dataset()
    accelerator = Accelerator(mixed_precision=precision)
    model = Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataloader = torch.utils.data.DataLoader(dataset, batch_size=32)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

    losses = []
    for _ in range(3):
        for batch in dataloader:
            with accelerator.autocast():
                loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.isfinite(model.linear.weight).all()


def test_s5_fp8_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigurationError, match=r"fp8.*no, bf16, fp16"):
        Accelerator(mixed_precision="fp8")


def test_s9_zero_grad_first_in_the_block_accumulates_all_the_same() -> None:
    expected = _plain_training(lambda _: 4)
    dataset = _dataset()
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model = Loss()
    optimizer = torch.optim.Adam(model.parameters())
    dataloader = torch.utils.data.DataLoader(dataset, batch_size=4)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

    for batch in dataloader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
    assert model.linear.weight.flatten().tolist() == pytest.approx(expected, abs=1e-6)
    assert optimizer.num_steps == 4


def test_prepare_keeps_the_order_and_passes_other_things_through() -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    one, two, three, four = accelerator.prepare(scheduler, "text", optimizer, model)
    assert one.scheduler is scheduler
    assert two == "text"
    assert three.optimizer is optimizer
    assert four is model
    assert accelerator.prepare(three) is three
    assert accelerator.prepare(model) is model


def test_the_strategys_train_step_is_forward_and_backward() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    loss = accelerator.train_step(torch.tensor([[3.0]]), lambda batch: model(batch).sum())
    assert not loss.requires_grad
    assert model.weight.grad.item() == 3.0


def test_clipping_by_value() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 1, bias=False))
    accelerator.backward(model(torch.tensor([[0.1, 50.0]])).sum())
    accelerator.clip_grad_value_(model.parameters(), 1.0)
    assert model.weight.grad.tolist() == [[pytest.approx(0.1), 1.0]]


def test_free_memory_forgets_what_was_prepared() -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(1, 1))
    (model,) = accelerator.free_memory(model)
    assert model is None
    accelerator.prepare(nn.Linear(2, 2))
    assert [part.name for part in accelerator._prepared.parts()] == ["model_0", "progress", "window"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps=0"),
        (
            {"gradient_accumulation_steps": 2, "gradient_accumulation_plugin": GradientAccumulationPlugin(4)},
            "gradient_accumulation_steps=2",
        ),
        ({"split_batches": True, "dataloader_config": DataLoaderConfiguration()}, "split_batches"),
        ({"project_dir": "a", "project_config": ProjectConfiguration("b")}, "project_dir='a'"),
        ({"project_config": ProjectConfiguration(total_limit=0)}, "total_limit=0"),
        ({"kwargs_handlers": [GradScalerKwargs(), GradScalerKwargs()]}, "a second GradScalerKwargs"),
        ({"mixed_presicion": "no"}, "no argument mixed_presicion"),
        ({"kwargs_handlers": ["fast"]}, "kwargs_handlers holds str"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Accelerator(cpu=True, **settings)
    assert words in str(refused.value)


def test_collectives_after_the_end_are_refused() -> None:
    accelerator = Accelerator(cpu=True)
    accelerator.end_training()
    with pytest.raises(UsageError, match="after the process group was closed"):
        accelerator.wait_for_everyone()
