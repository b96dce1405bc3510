"""Speed and remaining time of a run, from the steps of its present attempt alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

POINTS_USED = 200
_LEAST_INTERVALS = 5
_PAUSE_S = 60.0
_PAUSE_STEPS = 20


@dataclass(frozen=True)
class Remaining:
    """Seconds until the last step, and steps per second; None while unknown. `warning` is empty if all is well."""

    seconds: float | None
    steps_per_s: float | None
    warning: str = ""


def remaining_time(points: Sequence[tuple[int, float]], total_steps: int | None) -> Remaining:
    """Estimate from (step, time) points since the run started or was resumed.

    The steps before a resume took place in other time: only differences inside `points` count, the newest 200, and
    of steps that start over only the last passage. One pause that happened once, as when the process was stopped,
    is left out and said; what comes again and again (evaluation, checkpoints) belongs to the run's time.
    A run beyond its total has 0 seconds left and a warning, never a negative time.
    """
    known = _last_passage([(step, time_s) for step, time_s in points if math.isfinite(time_s)])
    if not known:
        return Remaining(None, None)
    step = known[-1][0]
    speed, pause = _speed(known[-POINTS_USED:])
    beyond = total_steps is not None and step > total_steps
    warning = f"step {step} is beyond the total of {total_steps} steps" if beyond else pause
    if total_steps is None:
        return Remaining(None, speed, warning)
    if step >= total_steps:
        return Remaining(0.0, speed, warning)
    return Remaining((total_steps - step) / speed if speed else None, speed, warning)


def _last_passage(points: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    begins = [i for i, (before, after) in enumerate(pairwise(points), 1) if after[0] < before[0]]
    return points[begins[-1] :] if begins else points


def _speed(points: Sequence[tuple[int, float]]) -> tuple[float | None, str]:
    """Steps per second, and what was left out."""
    (first_step, first_s), (last_step, last_s) = points[0], points[-1]
    if last_step <= first_step or last_s <= first_s:
        return None, ""
    steps, seconds, words = last_step - first_step, last_s - first_s, ""
    intervals = [(t1 - t0, s1 - s0, s1) for (s0, t0), (s1, t1) in pairwise(points) if s1 > s0 and t1 > t0]
    if len(intervals) >= _LEAST_INTERVALS:
        usual = median(time_s / count for time_s, count, _ in intervals)
        long = [i for i in intervals if i[0] > _PAUSE_S and i[0] > _PAUSE_STEPS * usual * i[1]]
        if len(long) == 1:
            time_s, count, step = long[0]
            words = f"a single pause of {time_s:.0f} s before step {step} is left out of the speed"
            steps, seconds = steps - count, seconds - time_s
    return (steps / seconds if steps > 0 and seconds > 0 else None), words
