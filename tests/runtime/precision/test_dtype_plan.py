"""The dtype plan is true, logged once and recorded; islands of full precision; fp16 where it cannot be."""

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError
from runtime.layout import RunLayout
from runtime.options import AutocastKwargs
from runtime.precision.amp import get_precision
from runtime.records import read_events
from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.usefixtures("fresh_process")


class Seen(nn.Module):
    """Remembers the dtype in which its matrix product ran."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x)
        self.seen.append(y.dtype)
        return y


@pytest.mark.parametrize(("precision", "compute"), [("no", "as parameters"), ("bf16", "bfloat16"), ("fp16", "float16")])
def test_the_plan_is_logged_once_recorded_and_true(
    precision: str, compute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    with caplog.at_level(logging.INFO, logger="runtime.precision"):
        accelerator = Accelerator(cpu=True, mixed_precision=precision)
        model = accelerator.prepare(Seen())
        out = model(torch.ones(1, 2))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "runtime.precision"]
    assert line == f"dtypes: {accelerator.dtype_plan}"
    assert accelerator.dtype_plan.compute.startswith(compute)
    (started,) = [event for event in read_events(RunLayout(tmp_path).events) if event.event == "run_started"]
    assert started.details["dtypes"] == {
        "parameters": accelerator.dtype_plan.parameters,
        "compute": accelerator.dtype_plan.compute,
        "reduction": "as parameters",
        "output": "as computed" if precision == "no" else "float32",
    }
    names = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    assert model.seen == [names[precision]]
    assert out.dtype is torch.float32


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_islands_of_full_precision(precision: str) -> None:
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    x = torch.ones(2, 2)
    with accelerator.autocast():
        assert (x @ x).dtype is half
        with accelerator.autocast(AutocastKwargs(enabled=False)):
            assert (x @ x).dtype is torch.float32
        assert (x @ x).dtype is half
    assert (x @ x).dtype is torch.float32


def test_autocast_turned_off_is_off_and_the_plan_says_so() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", kwargs_handlers=[AutocastKwargs(enabled=False)])
    model = accelerator.prepare(Seen())
    model(torch.ones(1, 2))
    assert model.seen == [torch.float32]
    assert accelerator.dtype_plan.compute == "as parameters (autocast is off)"


def test_fp16_is_refused_where_the_device_has_no_scaler() -> None:
    with pytest.raises(ConfigurationError, match=r"fp16.*xla.*bf16"):
        get_precision("fp16", device=torch.device("xla"), scaler_options={}, autocast_options={})


@pytest.mark.multiprocess
def test_fsdp2_computes_and_reduces_as_its_plan_says(run_ranks: RunRanks) -> None:
    script = """
    from torch.distributed.fsdp import MixedPrecisionPolicy
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", fsdp_plugin={"reshard_after_forward": True})
    seen = []
    class Seen(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)
        def forward(self, x):
            y = self.linear(x)
            seen.extend([str(self.linear.weight.dtype), str(y.dtype)])
            return y
    model = accelerator.prepare(Seen())
    out = model(torch.ones(1, 2))
    accelerator.backward(out.sum())
    grad = next(model.parameters()).grad
    policy = MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.bfloat16, output_dtype=torch.float32)
    other = Accelerator(cpu=True, fsdp_plugin={"mixed_precision_policy": policy})
    say(plan=str(accelerator.dtype_plan), other=str(other.dtype_plan), seen=seen, out=str(out.dtype),
        grad=str(grad.dtype), kept=str(next(model.parameters()).dtype))
    """
    for said in run_ranks(script).said:
        assert said["plan"] == (
            "parameters as the model has them, float32 as a rule, compute bfloat16, reduction float32, output float32"
        )
        assert said["other"].endswith("compute bfloat16, reduction bfloat16, output float32")
        assert said["seen"] == ["torch.bfloat16", "torch.bfloat16"]
        assert (said["out"], said["grad"], said["kept"]) == ("torch.float32",) * 3
