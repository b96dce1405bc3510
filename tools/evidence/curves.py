"""What a series of values shows: where it first stops being finite, and whether a loss fell."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from runtime.records import SourcedMetric

LEAST_VALUES = 6


@dataclass(frozen=True)
class NonFinite:
    """The first value that is NaN or infinite. `zero_loss`: from there on a loss is exactly 0.0, which hides it."""

    metric: SourcedMetric
    zero_loss: bool = False

    @property
    def words(self) -> str:
        """Such as `grad_norm is NaN since step 4 on rank 0`."""
        record = self.metric.record
        value = "NaN" if math.isnan(record.value) else ("infinite" if record.value > 0 else "minus infinite")
        since = f"since step {record.step}" if record.step is not None else f"at {self.metric.file}:{self.metric.line}"
        symptom = "; loss exactly 0.0 from there on" if self.zero_loss else ""
        return f"{record.name} is {value} {since} on rank {record.rank}{symptom}"


@dataclass(frozen=True)
class Trend:
    """First against last third of a series."""

    first_mean: float
    last_mean: float
    num_values: int

    @property
    def fell(self) -> bool:
        return self.last_mean < self.first_mean


def is_loss(name: str) -> bool:
    return "loss" in name.lower()


def is_gradient_norm(name: str) -> bool:
    return name.lower().replace(" ", "_").rsplit("/", 1)[-1] in ("grad_norm", "gradient_norm", "gradnorm", "total_norm")


def first_non_finite(metrics: Iterable[SourcedMetric]) -> NonFinite | None:
    """The earliest value, by step, that is not finite, whatever its name; read in one pass and flat memory.

    A finite loss is no proof of health: logging may replace NaN by a running mean, or show 0.0.
    """
    first: SourcedMetric | None = None
    for metric in metrics:
        if not math.isfinite(metric.record.value) and (first is None or _order(metric) < _order(first)):
            first = metric
    return NonFinite(first) if first else None


def with_zero_loss(found: NonFinite, metrics: Iterable[SourcedMetric]) -> NonFinite:
    """`found`, marked if every loss of its rank from its step on is exactly 0.0."""
    record = found.metric.record
    later = [
        m.record.value
        for m in metrics
        if m.record.name == "loss" and m.record.rank == record.rank and _not_before(m, found.metric)
    ]
    return NonFinite(found.metric, zero_loss=bool(later) and all(value == 0.0 for value in later))


def trend(values: Sequence[float]) -> Trend | None:
    """First third against last third; None with fewer than LEAST_VALUES values. Values must be finite."""
    if len(values) < LEAST_VALUES:
        return None
    third = len(values) // 3
    return Trend(math.fsum(values[:third]) / third, math.fsum(values[-third:]) / third, len(values))


def in_step_order(metrics: Iterable[SourcedMetric]) -> list[SourcedMetric]:
    """By step where every record has one, else as they were read."""
    found = list(metrics)
    if any(m.record.step is None for m in found):
        return found
    return sorted(found, key=lambda m: m.record.step or 0)


def _order(metric: SourcedMetric) -> tuple[bool, int]:
    return (metric.record.step is None, metric.record.step or 0)


def _not_before(metric: SourcedMetric, bad: SourcedMetric) -> bool:
    if metric.record.step is not None and bad.record.step is not None:
        return metric.record.step >= bad.record.step
    return metric.file == bad.file and metric.line >= bad.line
