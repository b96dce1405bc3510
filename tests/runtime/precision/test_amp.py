"""Mixed precision on the CPU, and the models that it refuses."""

import copy
import inspect
import pickle
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError
from runtime.options import GradScalerKwargs

pytestmark = pytest.mark.usefixtures("fresh_process")


class Seen(nn.Module):
    """Remembers the dtype in which its matrix product ran."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.dtype: torch.dtype | None = None

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.linear(x)
        self.dtype = y.dtype
        return {"logits": y}


@pytest.mark.parametrize(
    ("precision", "dtype"), [("no", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)]
)
def test_forward_computes_in_the_precision_and_returns_float32(precision: str, dtype: torch.dtype) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    model = accelerator.prepare(Seen())
    output = model(torch.ones(1, 2))["logits"]
    assert model.dtype is dtype
    assert output.dtype is torch.float32
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is dtype
    accelerator.backward(output.sum())
    assert model.linear.weight.grad.dtype is torch.float32
    assert (accelerator.scaler is not None) == (precision == "fp16")


def test_unwrapping_restores_the_models_own_forward() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.unwrap_model(accelerator.prepare(Seen()), keep_fp32_wrapper=False)
    assert model(torch.ones(1, 2))["logits"].dtype is torch.float32
    assert model.dtype is torch.float32


def test_the_launchers_default_is_used_where_the_script_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_MIXED_PRECISION", "bf16")
    assert Accelerator(cpu=True).mixed_precision == "bf16"
    assert Accelerator(cpu=True, mixed_precision="no").mixed_precision == "no"


def test_fp16_refuses_a_half_model_at_prepare_and_names_the_parameters() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    with pytest.raises(ConfigurationError, match=r"linear.weight, linear.bias.*float32"):
        accelerator.prepare(Seen().half())
    mixed = nn.Sequential(*(nn.Linear(1, 1) for _ in range(5)))
    mixed[3].half()
    with pytest.raises(ConfigurationError, match=r"already: 3\.weight, 3.bias"):
        accelerator.prepare(mixed)


@pytest.mark.parametrize("precision", ["fp8", "int8", "FP16"])
def test_precisions_that_do_not_exist_are_refused_by_name(precision: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"{precision}.*Allowed: no, bf16, fp16"):
        Accelerator(cpu=True, mixed_precision=precision)


@dataclass(frozen=True)
class Scores:
    logits: torch.Tensor
    name: str = "scores"


class Scoring(nn.Linear):
    def forward(self, x: torch.Tensor) -> Scores:  # type: ignore[override]  # another output than Linear's
        return Scores(super().forward(x))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_computes_with_its_own_parameters(fresh_process: None, copied: Any) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.prepare(Scoring(2, 2))
    average = copied(accelerator.unwrap_model(model))
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.zero_()
    assert average(torch.ones(1, 2)).logits.abs().sum() == 0
    assert model(torch.ones(1, 2)).logits.abs().sum() > 0
    assert list(inspect.signature(model.forward).parameters) == ["x"]


def test_the_fields_of_a_dataclass_come_back_in_float32(fresh_process: None) -> None:
    scores = Accelerator(cpu=True, mixed_precision="bf16").prepare(Scoring(2, 2))(torch.ones(1, 2))
    assert (scores.logits.dtype, scores.name) == (torch.float32, "scores")


def test_fp16_trains_beside_frozen_half_parameters(fresh_process: None) -> None:
    scale = GradScalerKwargs(init_scale=1024.0)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[scale])
    model = nn.Sequential(nn.Linear(2, 2).half().requires_grad_(False), nn.Linear(2, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model[1].parameters(), lr=0.1))
    before = model[1].bias.item()
    accelerator.backward(model(torch.ones(1, 2)).sum())
    accelerator.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    assert model[1].bias.item() == pytest.approx(before - 0.1)
    reference = accelerator.prepare_model(nn.Linear(2, 2).half(), evaluation_mode=True)
    assert reference(torch.ones(1, 2)).dtype is torch.float32
