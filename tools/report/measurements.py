"""The metrics of a run as the report shows them: last values with their source, and the curves."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.records import SourcedMetric

from ..evidence.curves import in_step_order

MAX_POINTS = 300
MAX_CURVES = 6
_LEAST_POINTS = 3


@dataclass(frozen=True)
class Series:
    """All values of one name on one rank, in step order."""

    name: str
    rank: int
    values: tuple[SourcedMetric, ...]

    @property
    def last(self) -> SourcedMetric:
        return self.values[-1]


@dataclass(frozen=True)
class Curve:
    """A series thinned for drawing; a point's y is None where the value is not finite."""

    name: str
    file: str
    points: tuple[tuple[float, float | None], ...]
    by_step: bool
    num_values: int


def series_of(metrics: Sequence[SourcedMetric]) -> list[Series]:
    """One series per name, of the lowest rank that has it, in the order of first appearance."""
    found: dict[str, dict[int, list[SourcedMetric]]] = {}
    for metric in metrics:
        found.setdefault(metric.record.name, {}).setdefault(metric.record.rank, []).append(metric)
    return [Series(name, min(ranks), tuple(in_step_order(ranks[min(ranks)]))) for name, ranks in found.items()]


def curves_of(series: Sequence[Series], *, first: str) -> list[Curve]:
    """The series worth drawing: `first`, then losses, then the others, as many as fit."""
    worth = [s for s in series if len(s.values) >= _LEAST_POINTS]
    worth.sort(key=lambda s: (s.name != first, "loss" not in s.name.lower()))
    return [_curve(s) for s in worth[:MAX_CURVES]]


def _curve(series: Series) -> Curve:
    values = series.values
    by_step = all(m.record.step is not None for m in values)
    stride = max(1, math.ceil(len(values) / MAX_POINTS))
    kept = [i for i in range(len(values)) if i % stride == 0 or i == len(values) - 1]
    points = []
    for index in kept:
        record = values[index].record
        x = float(record.step) if by_step and record.step is not None else float(index + 1)
        points.append((x, record.value if math.isfinite(record.value) else None))
    return Curve(series.name, values[0].file, tuple(points), by_step, len(values))
