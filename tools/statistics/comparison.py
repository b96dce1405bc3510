"""Two sets of predictions on the same rows: the difference, its interval, and a paired test."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .intervals import bonett_price, percentiles
from .metrics import METRICS, Cells, Codes, Floats, Metric, Task, encode_classes, row_statistics
from .resampling import NUM_RESAMPLES, Patterns, chunks_of, draw_counts, draw_swaps, draw_weights, patterns_of
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
    if list(first) == list(second):
        return [_no_difference(metric.name, len(labels)) for metric in metrics]
    if task == "regression":
        arrays = [np.asarray(column, dtype=np.float64) for column in (labels, first, second)]
        return _compare_numbers(metrics, arrays, rng)
    codes, num_classes = encode_classes(labels, first, second)
    return _compare_classes(metrics, codes, num_classes, rng)


def _compare_numbers(metrics: Sequence[Metric], arrays: Sequence[Floats], rng: np.random.Generator) -> list[Comparison]:
    labels, first, second = arrays
    n = len(labels)
    one, other = row_statistics(labels, first), row_statistics(labels, second)
    mean_one, mean_other = one.mean(axis=0)[None], other.mean(axis=0)[None]
    both = np.concatenate([one, other], axis=1)
    drawn = np.concatenate([weights @ both for weights in draw_weights(n, rng)])
    shifts = np.concatenate([swaps @ ((other - one) / n) for swaps in draw_swaps(n, rng)])
    results = []
    for metric in metrics:
        assert metric.of_means is not None
        of_means = metric.of_means
        observed = float((of_means(mean_one) - of_means(mean_other))[0])
        draws = of_means(drawn[:, :4]) - of_means(drawn[:, 4:])
        swapped = of_means(mean_one + shifts) - of_means(mean_other - shifts)
        results.append(_result(metric.name, observed, draws, swapped, n))
    return results


def _compare_classes(
    metrics: Sequence[Metric], codes: Sequence[Codes], num_classes: int, rng: np.random.Generator
) -> list[Comparison]:
    truth, first, second = codes
    patterns = patterns_of(truth, first, second)
    fixed = _drawn(metrics, patterns, num_classes, rng, stratified=True)
    swapped = _swapped(metrics, patterns, num_classes, rng)
    results = []
    for metric in metrics:
        counts = patterns.counts[None].astype(np.float64)
        observed = float(_difference(metric, counts, patterns, num_classes)[0])
        draws = fixed[metric.name]
        if np.ptp(draws) < 1e-12:  # e.g. a perfect model against a constant: fixed classes leave nothing to vary
            draws = _drawn([metric], patterns, num_classes, rng, stratified=False)[metric.name]
        result = _result(metric.name, observed, draws, swapped[metric.name], len(truth))
        if result.high - result.low < 1e-12:
            low, high = _limits_by_class(truth, first, second)
            result = replace(result, low=min(low, observed), high=max(high, observed))
        results.append(_with_mcnemar(result, truth, first, second) if metric.name == "accuracy" else result)
    return results


def _with_mcnemar(result: Comparison, truth: Codes, first: Codes, second: Codes) -> Comparison:
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
    metrics: Sequence[Metric], patterns: Patterns, num_classes: int, rng: np.random.Generator, *, stratified: bool
) -> dict[str, Floats]:
    chunks = draw_counts(patterns, rng, stratified=stratified)
    # A class that an unstratified resample lacks has no recall; such resamples are NaN and left out.
    with np.errstate(invalid="ignore", divide="ignore"):
        return _differences(metrics, chunks, patterns, num_classes)


def _swapped(
    metrics: Sequence[Metric], patterns: Patterns, num_classes: int, rng: np.random.Generator
) -> dict[str, Floats]:
    """Differences after each row's two predictions were swapped by a coin toss."""
    truth, first, second = patterns.columns
    size = len(patterns.counts)
    twice = Patterns(
        (np.tile(truth, 2), np.concatenate([first, second]), np.concatenate([second, first])),
        np.tile(patterns.counts, 2),
    )

    def tossed() -> Iterator[Floats]:
        for chunk in chunks_of(NUM_RESAMPLES, size):
            swaps = rng.binomial(patterns.counts, 0.5, size=(chunk, size))
            yield np.concatenate([patterns.counts - swaps, swaps], axis=1).astype(np.float64)

    return _differences(metrics, tossed(), twice, num_classes)


def _differences(
    metrics: Sequence[Metric], chunks: Iterator[Floats], patterns: Patterns, num_classes: int
) -> dict[str, Floats]:
    pieces: dict[str, list[Floats]] = {metric.name: [] for metric in metrics}
    for counts in chunks:
        for metric in metrics:
            pieces[metric.name].append(_difference(metric, counts, patterns, num_classes))
    return {name: np.concatenate(values) for name, values in pieces.items()}


def _difference(metric: Metric, counts: Floats, patterns: Patterns, num_classes: int) -> Floats:
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
