"""The training step: windows, backward, clipping, autocast."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from ..optim.optimizer import PreparedOptimizer
from ..options import AutocastKwargs, as_keywords, check_accumulation
from .base import Duty


class TrainingDuty(Duty):
    """What happens between a batch and the optimizer's step."""

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-batches of a full window; another number may be assigned, and holds from the next micro-batch on."""
        return self._prepared.windows.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, steps: int) -> None:
        self._prepared.windows.num_steps = check_accumulation(steps)

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-batch is its window's last."""
        return self._prepared.windows.sync_gradients

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is its loader's last."""
        return self._prepared.activity.at_end

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether the last step of an optimizer overflowed (fp16) and changed nothing."""
        return any(optimizer.step_was_skipped for optimizer in self._prepared.optimizers)

    @property
    def scaler(self) -> torch.amp.GradScaler | None:
        return self._prepared.precision.scaler

    def backward(self, loss: torch.Tensor, *, num_items: float | None = None, **options: Any) -> None:
        """Backward of a micro-batch's mean loss, or of a sum over `num_items` items (tokens, say).

        The gradient of an accumulation window is the mean over its micro-batches, or over all items of the window and
        of all ranks. Outside accumulate(), a mean loss is divided by gradient_accumulation_steps.
        """
        self._prepared.backward(loss, num_items, **options)

    def accumulate(self, *models: nn.Module) -> AbstractContextManager[None]:
        """A micro-batch of an accumulation window: inside, step() and zero_grad() act at the window's end alone."""
        return self._prepared.accumulate(*models)

    @contextmanager
    def no_sync(self, *models: nn.Module) -> Iterator[None]:
        """While inside, gradients stay on their rank."""
        with ExitStack() as stack:
            for model in models or self._prepared.models:
                stack.enter_context(self._prepared.strategy.no_sync(model))
            yield

    @contextmanager
    def trigger_sync_in_backward(self, model: nn.Module) -> Iterator[None]:
        """Average a model's gradients over the ranks after the backward inside, though its forward was in no_sync."""
        yield
        self._prepared.strategy.reduce_gradients(model.parameters())

    def join_uneven_inputs(
        self, joinables: Sequence[nn.Module], even_batches: bool | None = None
    ) -> AbstractContextManager[None]:
        """Train on different numbers of batches: a rank that has ended takes part in the others' communication.

        Gradients of steps in which ranks have ended are still divided by the number of all ranks.
        """
        return self._prepared.join(joinables, even_batches)

    def train_step(self, batch: Any, forward: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        """Forward and backward of one micro-batch, as the strategy does it; returns the detached loss."""
        return self._prepared.strategy.train_step(batch, forward=forward, backward=self.backward)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[None]:
        """For computations outside a prepared model's forward, which is autocast by itself.

        Args:
            autocast_handler: settings for this block, instead of those in kwargs_handlers.
        """
        options = None if autocast_handler is None else as_keywords(autocast_handler)
        return self._prepared.precision.autocast(options)

    def unscale_gradients(self, optimizer: PreparedOptimizer | Sequence[PreparedOptimizer] | None = None) -> None:
        """Divide a finished window's gradients by the loss scale, once; clipping does so by itself.

        Inside a window nothing happens, since more is still added to them.

        Args:
            optimizer: one, or several; None means all.
        """
        if optimizer is None:
            self._prepared.clipper.unscale()
            return
        several = [optimizer] if isinstance(optimizer, PreparedOptimizer) else optimizer
        self._prepared.clipper.unscale([p for each in several for group in each.param_groups for p in group["params"]])

    def clip_grad_norm_(
        self,
        parameters: Iterable[torch.Tensor] | torch.Tensor,
        max_norm: float,
        norm_type: float = 2.0,
        *,
        error_if_nonfinite: bool = False,
    ) -> torch.Tensor:
        """Clip the finished window's gradients to a total norm; returns the true norm before, the same on every rank.

        Args:
            error_if_nonfinite: raise NonFiniteGradientsError where the norm is NaN or infinite; else the gradients
                become NaN. Under fp16 neither matters: the scaler skips the step.
        """
        return self._prepared.clipper.clip_norm(parameters, max_norm, norm_type, error_if_nonfinite=error_if_nonfinite)

    def clip_grad_value_(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        self._prepared.clipper.clip_value(parameters, clip_value)
