"""Metrics with a 95 % interval: percentile bootstrap, Wilson where the bootstrap has too little to resample."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .metrics import METRICS, Cells, Floats, Metric, Task, encode_classes, row_statistics
from .resampling import NUM_RESAMPLES, draw_counts, draw_weights, patterns_of

Z_95 = 1.959963984540054
_LEAST_OF_EACH = 10


@dataclass(frozen=True)
class Score:
    """A metric over n rows, its 95 % interval, and how the interval was made."""

    name: str
    value: float
    low: float
    high: float
    n: int
    method: str


def seed_of(plan_digest: str, purpose: str) -> int:
    """A seed that anybody can derive again: the first 8 bytes of SHA-256 over digest and purpose."""
    return int.from_bytes(hashlib.sha256(f"{plan_digest}:{purpose}".encode()).digest()[:8], "big")


def score(
    task: Task, labels: Sequence[Any], predictions: Sequence[Any], names: Sequence[str], *, seed: int
) -> list[Score]:
    """Score predictions against labels, row by row.

    Args:
        task: decides which metrics fit; every name must be one of metric_names(task).
        labels, predictions: n values each, same row order, already of one type (see labels.unify) and without gaps.
        seed: of the bootstrap; the same seed gives the same interval.
    """
    metrics = [METRICS[name] for name in names]
    rng = np.random.default_rng(seed)
    if task == "regression":
        return _score_numbers(metrics, np.asarray(labels, float), np.asarray(predictions, float), rng)
    return _score_classes(metrics, labels, predictions, rng)


def wilson(hits: float, n: float, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a proportion (E. B. Wilson, JASA 22, 1927)."""
    share, square = hits / n, z * z
    centre = (share + square / (2 * n)) / (1 + square / n)
    half = z * math.sqrt(share * (1 - share) / n + square / (4 * n * n)) / (1 + square / n)
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    return low, 1.0 if hits == n else min(1.0, centre + half)


def bonett_price(only_first: int, only_second: int, n: int, *, z: float = Z_95) -> tuple[float, float]:
    """Adjusted Wald interval of a difference of paired proportions (D. Bonett, R. Price, BJMSP 65, 2012)."""
    first, second = (only_first + 1) / (n + 2), (only_second + 1) / (n + 2)
    difference = first - second
    half = z * math.sqrt((first + second - difference**2) / (n + 2))
    return max(-1.0, difference - half), min(1.0, difference + half)


def percentiles(values: Floats) -> tuple[float, float]:
    """The central 95 % of the resampled values; NaN resamples are left out."""
    low, high = np.nanpercentile(values, (2.5, 97.5))
    return float(low), float(high)


def _score_numbers(
    metrics: Sequence[Metric], labels: Floats, predictions: Floats, rng: np.random.Generator
) -> list[Score]:
    n = len(labels)
    rows = row_statistics(labels, predictions)
    means = np.concatenate([weights @ rows for weights in draw_weights(n, rng)])
    scores = []
    for metric in metrics:
        assert metric.of_means is not None
        value = float(metric.of_means(rows.mean(axis=0)[None])[0])
        draws = metric.of_means(means)
        if math.isnan(value) or np.isnan(draws).all():
            scores.append(Score(metric.name, math.nan, math.nan, math.nan, n, "undefined: the labels do not vary"))
            continue
        low, high = percentiles(draws)
        method = f"percentile bootstrap of rows, {NUM_RESAMPLES} resamples"
        if high - low < 1e-12:
            method += "; nothing varies between resamples, the interval tells nothing"
        scores.append(Score(metric.name, value, low, high, n, method))
    return scores


def _score_classes(
    metrics: Sequence[Metric], labels: Sequence[Any], predictions: Sequence[Any], rng: np.random.Generator
) -> list[Score]:
    (truth, predicted), num_classes = encode_classes(labels, predictions)
    patterns = patterns_of(truth, predicted)
    cells = Cells(patterns.columns[0], patterns.columns[1], num_classes)
    resampled: dict[str, list[Floats]] = {m.name: [] for m in metrics}
    for counts in draw_counts(patterns, rng):
        for metric in metrics:
            assert metric.of_counts is not None
            resampled[metric.name].append(metric.of_counts(counts, cells))
    observed = patterns.counts[None].astype(np.float64)
    scores = []
    for metric in metrics:
        assert metric.of_counts is not None
        value = float(metric.of_counts(observed, cells)[0])
        low, high = percentiles(np.concatenate(resampled[metric.name]))
        method = f"percentile bootstrap within each class, {NUM_RESAMPLES} resamples"
        replaced = _where_bootstrap_fails(metric.name, value, low, high, observed, cells)
        if replaced is not None:
            low, high, method = replaced
        scores.append(Score(metric.name, value, low, high, len(truth), method))
    return scores


def _where_bootstrap_fails(
    name: str, value: float, low: float, high: float, observed: Floats, cells: Cells
) -> tuple[float, float, str] | None:
    """With hardly an error (or hardly a hit) to draw, the bootstrap calls a small sample certain; Wilson does not."""
    n = float(observed.sum())
    hits = float(observed[0, cells.truth == cells.predicted].sum())
    if name == "accuracy":
        if min(hits, n - hits) >= _LEAST_OF_EACH and low < high:
            return None
        few = "under 10 right or under 10 wrong rows" if low < high else "nothing varies between resamples"
        return (*wilson(hits, n), f"Wilson score interval ({few})")
    if low < high:
        return None
    limits = []
    for code in np.unique(cells.truth):
        of_class = cells.truth == code
        of_class_hits = float(observed[0, of_class & (cells.predicted == code)].sum())
        limits.append(wilson(of_class_hits, float(observed[0, of_class].sum())))
    lows, highs = np.mean(np.array(limits), axis=0)
    method = "mean of the classes' Wilson limits (nothing varies between resamples); conservative"
    return min(float(lows), value), max(float(highs), value), method
