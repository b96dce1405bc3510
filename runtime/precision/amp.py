"""Full precision, and torch's automatic mixed precision in bf16 and fp16 (with a scaler, on the CPU too)."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from types import MethodType
from typing import Any

import torch
from torch import nn

from ..errors import ConfigurationError
from ..structures import convert_to_fp32


class FullPrecision:
    """Every parameter computes in its own dtype."""

    name = "no"
    scaler: torch.amp.GradScaler | None = None

    def check_model(self, model: nn.Module) -> None:
        """Every model can."""

    def prepare_model(self, model: nn.Module) -> nn.Module:
        return model

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        return model

    def autocast(self, options: dict[str, Any] | None = None) -> AbstractContextManager[None]:  # noqa: ARG002  # of the protocol
        return nullcontext()


class AutocastPrecision:
    """The prepared forward runs under autocast and returns float32; parameters stay in float32.

    Args:
        name: bf16 or fp16.
        scaler_options: keyword arguments of torch.amp.GradScaler, used for fp16.
        autocast_options: keyword arguments of torch.autocast.
    """

    def __init__(
        self,
        name: str,
        *,
        device: torch.device,
        scaler_options: dict[str, Any],
        autocast_options: dict[str, Any],
    ) -> None:
        self.name = name
        self._dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
        self._device_type = device.type
        self._autocast_options = autocast_options
        self.scaler: torch.amp.GradScaler | None = None
        if name == "fp16" and scaler_options.get("enabled", True):
            self.scaler = torch.amp.GradScaler(self._device_type, **scaler_options)

    def check_model(self, model: nn.Module) -> None:
        if self.name != "fp16":
            return
        trained = (item for item in model.named_parameters() if item[1].requires_grad)
        half = [name for name, parameter in trained if parameter.dtype is torch.float16]
        if half:
            shown = ", ".join(half[:10]) + (f" and {len(half) - 10} more" if len(half) > 10 else "")
            raise ConfigurationError(
                f"mixed_precision='fp16' with parameters that are float16 already: {shown}",
                allowed="float32 parameters: the scaler cannot unscale float16 gradients (frozen ones have none)",
                next_step="load the model in float32 (model.float()), or train it with mixed_precision='bf16'",
            )

    def prepare_model(self, model: nn.Module) -> nn.Module:
        given: Any = model.forward
        is_method = isinstance(given, MethodType) and given.__self__ is model
        own: Callable[..., Any] = given.__func__ if is_method else lambda _, *args, **kwargs: given(*args, **kwargs)

        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            with self.autocast():
                outputs = own(module, *args, **kwargs)
            return convert_to_fp32(outputs)

        if is_method:
            update_wrapper(forward, own)
        # A method, so that a copy of the model (for an average of its weights, say) computes with its own parameters.
        model.forward = MethodType(forward, model)
        return model

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        model.__dict__.pop("forward", None)
        return model

    def autocast(self, options: dict[str, Any] | None = None) -> AbstractContextManager[None]:
        return torch.autocast(
            self._device_type, dtype=self._dtype, **(self._autocast_options if options is None else options)
        )


def get_precision(
    name: str, *, device: torch.device, scaler_options: dict[str, Any], autocast_options: dict[str, Any]
) -> FullPrecision | AutocastPrecision:
    """The precision of this name: no, bf16 or fp16.

    Raises:
        ConfigurationError: fp16 on a device without a loss scaler.
    """
    if name == "no":
        return FullPrecision()
    if name == "fp16" and device.type == "xla":
        raise ConfigurationError(
            "mixed_precision='fp16' on xla, for which torch has no loss scaler",
            allowed="bf16 or no there",
            next_step="use mixed_precision='bf16'",
        )
    return AutocastPrecision(name, device=device, scaler_options=scaler_options, autocast_options=autocast_options)
