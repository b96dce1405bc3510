"""Mixed precision on the CPU, and the models that it refuses."""

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError

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
