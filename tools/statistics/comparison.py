"""Two sets of predictions on the same rows: the difference, its interval, and a paired test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .intervals import bonett_price, percentiles
from .metrics import METRICS, Cells, Codes, Floats, Metric, Task, encode_classes
from .resampling import NUM_RESAMPLES, Patterns, chunks_of, draw_counts, draw_rows, patterns_of
from .significance import mcnemar_exact, permutation_p_value


@dataclass(frozen=True)
class Comparison:
    """First minus second in one metric, over n rows: 95 % limits by a paired bootstrap, and the test's p-value."""

    name: str
    difference: float
    low: float
    high: float
    n: int
    test: str
    p_value: float
    identical: bool


def compare(
    task: Task, labels: Sequence[Any], first: Sequence[Any], second: Sequence[Any], names: Sequence[str], *, seed: int
) -> list[Comparison]:
    """Compare two predictions of the same rows. Identical predictions differ by nothing, with p = 1."""
    rng = np.random.default_rng(seed)
    metrics = [METRICS[name] for name in names]
    if task == "regression":
        arrays = [np.asarray(column, dtype=np.float64) for column in (labels, first, second)]
        return _compare_numbers(metrics, arrays, rng)
    (truth, one, other), num_classes = encode_classes(labels, first, second)
    return [_compare_classes(m, truth, one, other, num_classes, rng) for m in metrics]


def _compare_numbers(metrics: Sequence[Metric], arrays: Sequence[Floats], rng: np.random.Generator) -> list[Comparison]:
    labels, first, second = arrays
    n = len(labels)
    if np.array_equal(first, second):
        return [_no_difference(metric.name, n) for metric in metrics]
    drawn: dict[str, list[Floats]] = {m.name: [] for m in metrics}
    swapped: dict[str, list[Floats]] = {m.name: [] for m in metrics}
    for rows in draw_rows(n, rng):
        swap = rng.integers(0, 2, size=rows.shape, dtype=np.bool_)
        one, other = np.where(swap, second, first), np.where(swap, first, second)
        for metric in metrics:
            drawn[metric.name].append(_row_difference(metric, labels[rows], first[rows], second[rows]))
            swapped[metric.name].append(_row_difference(metric, labels[None], one, other))
    return [
        _result(
            metric.name,
            float(_row_difference(metric, labels[None], first[None], second[None])[0]),
            np.concatenate(drawn[metric.name]),
            np.concatenate(swapped[metric.name]),
            n,
        )
        for metric in metrics
    ]


def _row_difference(metric: Metric, labels: Floats, first: Floats, second: Floats) -> Floats:
    assert metric.of_rows is not None
    return metric.of_rows(labels, first) - metric.of_rows(labels, second)


def _compare_classes(
    metric: Metric, truth: Codes, first: Codes, second: Codes, num_classes: int, rng: np.random.Generator
) -> Comparison:
    n = len(truth)
    if np.array_equal(first, second):
        return _no_difference(metric.name, n)
    patterns = patterns_of(truth, first, second)
    observed = float(_differences(metric, patterns.counts[None].astype(np.float64), patterns, num_classes)[0])
    draws = _drawn(metric, patterns, num_classes, rng, stratified=True)
    if np.ptp(draws) < 1e-12:  # e.g. a perfect model against a constant: fixed classes leave nothing to vary
        draws = _drawn(metric, patterns, num_classes, rng, stratified=False)
    result = _result(metric.name, observed, draws, _swapped(metric, patterns, num_classes, rng), n)
    if result.high - result.low < 1e-12:
        low, high = _limits_by_class(truth, first, second)
        result = replace(result, low=min(low, observed), high=max(high, observed))
    if metric.name != "accuracy":
        return result
    only_first, only_second = _discordant(truth, first, second)
    test = f"exact McNemar ({only_first} rows right by the model alone, {only_second} by the baseline alone)"
    return replace(result, test=test, p_value=mcnemar_exact(only_first, only_second))


def _discordant(truth: Codes, first: Codes, second: Codes) -> tuple[int, int]:
    one, other = first == truth, second == truth
    return int((one & ~other).sum()), int((other & ~one).sum())


def _limits_by_class(truth: Codes, first: Codes, second: Codes) -> tuple[float, float]:
    """The mean of the classes' Bonett-Price limits: conservative, for when no resample differs from another."""
    limits = []
    for code in np.unique(truth):
        rows = truth == code
        limits.append(bonett_price(*_discordant(truth[rows], first[rows], second[rows]), int(rows.sum())))
    low, high = np.mean(np.array(limits), axis=0)
    return float(low), float(high)


def _drawn(
    metric: Metric, patterns: Patterns, num_classes: int, rng: np.random.Generator, *, stratified: bool
) -> Floats:
    chunks = draw_counts(patterns, rng, stratified=stratified)
    # A class that an unstratified resample lacks has no recall; such resamples are NaN and left out.
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.concatenate([_differences(metric, counts, patterns, num_classes) for counts in chunks])


def _swapped(metric: Metric, patterns: Patterns, num_classes: int, rng: np.random.Generator) -> Floats:
    """Differences after each row's two predictions were swapped by a coin toss."""
    truth, first, second = patterns.columns
    twice = Patterns(
        (np.tile(truth, 2), np.concatenate([first, second]), np.concatenate([second, first])),
        np.tile(patterns.counts, 2),
    )
    results = []
    for chunk in chunks_of(NUM_RESAMPLES, len(patterns.counts)):
        swaps = rng.binomial(patterns.counts, 0.5, size=(chunk, len(patterns.counts)))
        counts = np.concatenate([patterns.counts - swaps, swaps], axis=1).astype(np.float64)
        results.append(_differences(metric, counts, twice, num_classes))
    return np.concatenate(results)


def _differences(metric: Metric, counts: Floats, patterns: Patterns, num_classes: int) -> Floats:
    truth, first, second = patterns.columns
    assert metric.of_counts is not None
    one = metric.of_counts(counts, Cells(truth, first, num_classes))
    return one - metric.of_counts(counts, Cells(truth, second, num_classes))


def _result(name: str, difference: float, draws: Floats, swapped: Floats, n: int) -> Comparison:
    if math.isnan(difference) or np.isnan(draws).all():
        return Comparison(name, math.nan, math.nan, math.nan, n, "undefined: the labels do not vary", 1.0, False)
    low, high = percentiles(draws)
    test = f"paired permutation, {NUM_RESAMPLES} draws"
    return Comparison(name, difference, low, high, n, test, permutation_p_value(swapped, difference), identical=False)


def _no_difference(name: str, n: int) -> Comparison:
    return Comparison(name, 0.0, 0.0, 0.0, n, "none needed: the predictions are identical", 1.0, identical=True)
