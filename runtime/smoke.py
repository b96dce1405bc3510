"""The smoke run inside a worker: a few optimizer steps, then evidence that a checkpoint saves and loads."""

from collections.abc import Callable
from typing import Any

import torch

from .reporting import RunReporter

_ENDLESS = 10_000


class SmokeRun:
    """Counts steps, records the loss of each window, and ends prepared loaders when it has seen enough.

    Args:
        num_steps: optimizer steps after which training loaders end.
        checkpoint: saves, loads and compares; called once, on every rank.
    """

    def __init__(self, num_steps: int, *, reporter: RunReporter, checkpoint: Callable[[], None]) -> None:
        self.num_steps = num_steps
        self.done = False
        self._reporter = reporter
        self._checkpoint = checkpoint
        self._training: set[int] = set()
        self._losses: list[torch.Tensor] = []
        self._items: list[float] = []
        self._last_step = 0
        self._empty_passes = 0

    def ends(self, loader: Any, num_yielded: int) -> bool:
        """Training loaders end after the steps; others after twice as many batches."""
        if id(loader) not in self._training:
            return num_yielded >= 2 * self.num_steps
        if self.done and num_yielded == 0:
            self._empty_passes += 1
            if self._empty_passes > _ENDLESS:
                # `while step < total: for batch in loader` would turn forever on a loader that has ended.
                self._reporter.event("smoke_loop_stopped", passes=self._empty_passes)
                raise SystemExit(0)
        return self.done

    def saw_backward(self, loader: Any, loss: torch.Tensor, num_items: float | None) -> None:
        """Note a micro-batch's loss, and that its loader is one for training."""
        if loader is not None:
            self._training.add(id(loader))
        self._losses.append(loss.detach())
        if num_items is not None:
            self._items.append(num_items)

    def saw_step(self, step: int, *, skipped: bool) -> None:
        """Note that an optimizer has stepped for the `step`-th time; a skipped step brings no progress."""
        losses, items = self._losses, self._items
        if losses:
            self._losses, self._items = [], []
        if skipped or step <= self._last_step:
            return
        self._last_step = step
        if losses:
            divisor = sum(items) if len(items) == len(losses) else len(losses)
            total = sum(float(loss) for loss in losses)
            self._reporter.metric("backward_loss", total / divisor if divisor else float("nan"), step=step)
        if step >= self.num_steps and not self.done:
            self.done = True
            self._checkpoint()
            self._reporter.event("smoke_steps_done", steps=step)
