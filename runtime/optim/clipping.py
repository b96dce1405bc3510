"""Clipping the gradients of a finished window."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from ..errors import NonFiniteGradientsError
from .optimizer import PreparedOptimizer
from .window import AccumulationWindows, LocalGradients


class GradientClipper:
    """Clips at the end of a window; inside one, gradients are partial sums and stay as they are.

    Args:
        norm: the strategy's clip_grad_norm: (parameters, *, max_norm, norm_type) -> norm before.
        finish: brings an unfinished window to its end.
        local_gradients: the gradients of parameters as this rank holds them.
        value: the strategy's clip_grad_value: (parameters, clip_value).
        has_scaler: a step that overflowed is skipped, so that it is no error.
    """

    def __init__(
        self,
        windows: AccumulationWindows,
        optimizers: Sequence[PreparedOptimizer],
        *,
        norm: Callable[..., torch.Tensor],
        finish: Callable[[], None],
        local_gradients: LocalGradients,
        value: Callable[..., None] = nn.utils.clip_grad_value_,
        has_scaler: bool = False,
    ) -> None:
        self._windows = windows
        self._optimizers = optimizers
        self._norm = norm
        self._finish = finish
        self._local_gradients = local_gradients
        self._value = value
        self._has_scaler = has_scaler

    def unscale(self, parameters: Sequence[torch.Tensor] | None = None) -> None:
        """Divide gradients by the loss scale, once before a step.

        Args:
            parameters: only optimizers of one of these: another model's window may still be open. None means all.
        """
        if self._windows.sync_gradients:
            self._finish()  # so that ranks look at the same gradients
        wanted = None if parameters is None else {id(parameter) for parameter in parameters}
        for optimizer in self._optimizers:
            held = (id(parameter) for group in optimizer.param_groups for parameter in group["params"])
            if wanted is None or not wanted.isdisjoint(held):
                optimizer.unscale()

    def clip_norm(
        self,
        parameters: Iterable[torch.Tensor] | torch.Tensor,
        max_norm: float,
        norm_type: float,
        *,
        error_if_nonfinite: bool = False,
    ) -> torch.Tensor:
        """Clip to a total norm; returns the norm before. Inside a window nothing is clipped, and it is this rank's.

        Raises:
            NonFiniteGradientsError: asked for, and the norm is NaN or infinite. Under fp16 a scaler skips such a step.
        """
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if not self._windows.sync_gradients:
            return nn.utils.get_total_norm(self._local_gradients(listed), norm_type)  # type: ignore[arg-type]  # parameters
        self.unscale(listed)
        norm = self._norm(listed, max_norm=max_norm, norm_type=norm_type)
        if error_if_nonfinite and not self._has_scaler and not math.isfinite(norm.item()):
            raise NonFiniteGradientsError(
                f"the gradients' norm is {norm.item()}",
                allowed="finite gradients",
                next_step="look at the loss of this batch; optimizer.zero_grad() and go on to the next one, or stop",
            )
        return norm

    def clip_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clip each element to [-clip_value, clip_value]; nothing happens inside a window."""
        if not self._windows.sync_gradients:
            return
        listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        self.unscale(listed)
        self._value(listed, clip_value)
