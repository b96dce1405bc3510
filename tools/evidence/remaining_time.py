"""Speed and remaining time of a run, from the steps of its present attempt alone."""

from collections.abc import Sequence
from dataclasses import dataclass

POINTS_USED = 200


@dataclass(frozen=True)
class Remaining:
    """Seconds until the last step, and steps per second; None while unknown. `warning` is empty if all is well."""

    seconds: float | None
    steps_per_s: float | None
    warning: str = ""


def remaining_time(points: Sequence[tuple[int, float]], total_steps: int | None) -> Remaining:
    """Estimate from (step, time) points since the run started or was resumed.

    The steps before a resume took place in other time: only differences inside `points` count, the newest 200.
    A run beyond its total has 0 seconds left and a warning, never a negative time.
    """
    if not points:
        return Remaining(None, None)
    step = points[-1][0]
    beyond = total_steps is not None and step > total_steps
    warning = f"step {step} is beyond the total of {total_steps} steps" if beyond else ""
    speed = _speed(points[-POINTS_USED:])
    if total_steps is None:
        return Remaining(None, speed)
    if step >= total_steps:
        return Remaining(0.0, speed, warning)
    return Remaining((total_steps - step) / speed if speed else None, speed)


def _speed(points: Sequence[tuple[int, float]]) -> float | None:
    (first_step, first_s), (last_step, last_s) = points[0], points[-1]
    if last_step <= first_step or last_s <= first_s:
        return None
    return (last_step - first_step) / (last_s - first_s)
