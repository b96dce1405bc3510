"""The prepared scheduler: counts optimizer steps, not micro-batches and not processes."""

from collections.abc import Sequence
from typing import Any

from .optimizer import PreparedOptimizer
from .window import AccumulationWindows


class PreparedScheduler:
    """Wraps a learning-rate scheduler; all that is not defined here is the wrapped one's.

    Args:
        optimizers: those whose steps it follows.
        with_optimizer: advance only when they stepped; False passes every call on.
    """

    def __init__(
        self,
        scheduler: Any,
        *,
        optimizers: Sequence[PreparedOptimizer],
        windows: AccumulationWindows,
        with_optimizer: bool,
    ) -> None:
        self.scheduler = scheduler
        self._optimizers = list(optimizers)
        self._windows = windows
        self._with_optimizer = with_optimizer

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance by one, if the optimizer has just stepped."""
        if self._with_optimizer:
            if not self._windows.sync_gradients:
                return
            if any(optimizer.step_was_skipped for optimizer in self._optimizers):
                return
        self.scheduler.step(*args, **kwargs)

    def get_last_lr(self) -> list[float]:
        rates: list[float] = self.scheduler.get_last_lr()
        return rates

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state_dict)

    def __getattr__(self, name: str) -> Any:
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)


def followed_optimizers(scheduler: Any, optimizers: Sequence[PreparedOptimizer]) -> list[PreparedOptimizer]:
    """The prepared optimizers that a scheduler drives: its own, or all where it names none of them."""
    own = getattr(scheduler, "optimizer", None)
    followed = [optimizer for optimizer in optimizers if own is optimizer or own is optimizer.optimizer]
    return followed or list(optimizers)
