"""How long an optimizer step takes, and how sure that is: intervals between records, and a block bootstrap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from runtime.records import SourcedMetric

WARM_UP_INTERVALS = 2
LEAST_INTERVALS = 4
_NUM_RESAMPLES = 2000
_PREFERRED = "backward_loss"


@dataclass(frozen=True)
class StepTimes:
    """Seconds per step between successive records of one series, in order.

    Attributes:
        seconds: after warm-up.
        warm_up: the first WARM_UP_INTERVALS, left out: compilation, caches and first allocations fall into them.
        first_time_s, last_time_s: when the first and the last record were written, seconds since the epoch.
        source: file and name of the series.
    """

    seconds: tuple[float, ...]
    warm_up: tuple[float, ...]
    first_time_s: float
    last_time_s: float
    source: str

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))


def step_times(metrics: Sequence[SourcedMetric]) -> StepTimes | None:
    """From the rank-0 series with the most timed steps; None if no series has LEAST_INTERVALS intervals."""
    series: dict[tuple[str, str], dict[int, float]] = {}
    for metric in metrics:
        record = metric.record
        if record.rank == 0 and record.step is not None and math.isfinite(record.time_s):
            series.setdefault((metric.file, record.name), {}).setdefault(record.step, record.time_s)
    if not series:
        return None
    (file, name), points = max(series.items(), key=lambda item: (len(item[1]), item[0][1] == _PREFERRED, item[0]))
    ordered = sorted(points.items())
    intervals = [(t1 - t0) / (s1 - s0) for (s0, t0), (s1, t1) in pairwise(ordered) if t1 >= t0]
    if len(intervals) < WARM_UP_INTERVALS + LEAST_INTERVALS:
        return None
    return StepTimes(
        seconds=tuple(intervals[WARM_UP_INTERVALS:]),
        warm_up=tuple(intervals[:WARM_UP_INTERVALS]),
        first_time_s=ordered[0][1],
        last_time_s=ordered[-1][1],
        source=f"{file} ({name})",
    )


def bootstrap_step_interval(seconds: Sequence[float], *, level: float = 95.0) -> tuple[float, float]:
    """The interval of the seconds per step, by a circular block bootstrap (Politis and Romano, 1992).

    Blocks of about the cube root of n keep the dependence between neighbouring steps. The interval spans those of the
    median and of the mean: rare slow steps (a stalled loader) move the mean alone, and a long run pays the mean.
    Seeded, so equal data give an equal interval.
    """
    values = np.asarray(seconds, dtype=np.float64)
    resamples = _circular_blocks(values)
    tail = (100.0 - level) / 2
    means = np.percentile(resamples.mean(axis=1), [tail, 100 - tail])
    medians = np.percentile(np.median(resamples, axis=1), [tail, 100 - tail])
    return float(min(means[0], medians[0])), float(max(means[1], medians[1]))


def _circular_blocks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    num_values = len(values)
    block = max(1, round(num_values ** (1 / 3)))
    num_blocks = -(-num_values // block)
    random = np.random.default_rng(0)
    starts = random.integers(0, num_values, size=(_NUM_RESAMPLES, num_blocks))
    indices = (starts[:, :, None] + np.arange(block)) % num_values
    chosen: NDArray[np.float64] = values[indices.reshape(_NUM_RESAMPLES, -1)[:, :num_values]]
    return chosen
