"""The prepared scheduler: counts optimizer steps, not micro-batches and not processes."""

from collections.abc import Sequence
from typing import Any

from .optimizer import PreparedOptimizer
from .window import AccumulationWindows

_HORIZONS = ("total_steps", "total_iters", "T_max")
"""Where torch's schedulers say over how many steps they run."""
_NEAR = 0.1
"""Part of the horizon that may be left."""


class PreparedScheduler:
    """Wraps a learning-rate scheduler; all that is not defined here is the wrapped one's.

    Args:
        optimizers: those whose steps it follows.
        with_optimizer: advance only when they stepped; False passes every call on.
        steps_per_call: how often the scheduler advances then: 1, or the number of processes, as the peer counts.
    """

    def __init__(
        self,
        scheduler: Any,
        *,
        optimizers: Sequence[PreparedOptimizer],
        windows: AccumulationWindows,
        with_optimizer: bool,
        steps_per_call: int = 1,
    ) -> None:
        self.scheduler = scheduler
        self._optimizers = list(optimizers)
        self._windows = windows
        self._with_optimizer = with_optimizer
        self._steps_per_call = steps_per_call

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Advance, if the optimizer has just stepped."""
        if self._with_optimizer:
            if not self._windows.sync_gradients:
                return
            if any(optimizer.step_was_skipped for optimizer in self._optimizers):
                return
        for _ in range(self._steps_per_call if self._with_optimizer else 1):
            self.scheduler.step(*args, **kwargs)

    def left_of_its_horizon(self) -> str:
        """How far the schedule is from its end, in words; empty where it is near, or where it has none."""
        horizon = next((n for n in _HORIZONS if isinstance(getattr(self.scheduler, n, None), int)), None)
        taken = getattr(self.scheduler, "last_epoch", None)
        if horizon is None or taken is None:
            return ""
        whole = getattr(self.scheduler, horizon)
        if whole - taken <= _NEAR * whole:
            return ""
        return f"{type(self.scheduler).__name__} stands at step {taken} of {horizon}={whole}"

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
