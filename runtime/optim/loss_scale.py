"""The fp16 loss scale of several optimizers: it changes when nobody's gradients are half-way, and takes them along."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from .optimizer import PreparedOptimizer
from .window import scale_gradients


class LossScale:
    """Lets torch's scaler choose its next scale once the optimizers that were unscaled together have stepped.

    Gradients that wait for a later step (another model's open window, say) were scaled by the old scale; they are
    multiplied by the ratio, which is a power of two.

    Args:
        optimizers: all of them; the list may grow.
        local_gradients: the gradients of parameters as this rank holds them.
    """

    def __init__(
        self,
        scaler: torch.amp.GradScaler,
        optimizers: Sequence[PreparedOptimizer],
        *,
        local_gradients: Callable[[Iterable[nn.Parameter]], list[torch.Tensor]],
    ) -> None:
        self._scaler = scaler
        self._optimizers = optimizers
        self._local_gradients = local_gradients
        self._due = False

    def stepped(self) -> None:
        """An optimizer has stepped."""
        self._due = True
        self.settle()

    def settle(self) -> None:
        """Take the next scale, if it is due and no optimizer waits between unscaling and stepping."""
        if not self._due or any(optimizer.is_unscaled for optimizer in self._optimizers):
            return
        self._due = False
        before = self._scaler.get_scale()
        self._scaler.update()
        ratio = self._scaler.get_scale() / before
        if ratio == 1.0:
            return
        waiting = {
            id(parameter): parameter
            for optimizer in self._optimizers
            if optimizer.has_waiting_gradients
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        scale_gradients(self._local_gradients(waiting.values()), ratio)
