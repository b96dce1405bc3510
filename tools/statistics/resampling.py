"""Bootstrap draws, vectorised: counts of cells within each class for labels, row numbers for numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .metrics import Codes, Floats

NUM_RESAMPLES = 2_000
_CHUNK_VALUES = 2_000_000


@dataclass(frozen=True)
class Patterns:
    """Distinct rows of several code columns: `columns[i]` is [m], `counts` [m] says how often each row occurs.

    A stratified bootstrap of the rows is, for anything that only counts patterns, a multinomial draw of the
    counts inside each stratum. Strata are the values of column 0, the label.
    """

    columns: tuple[Codes, ...]
    counts: NDArray[np.int64]


def patterns_of(*columns: Codes) -> Patterns:
    """The distinct rows of these columns, sorted, so that the row order of a file does not matter."""
    rows, counts = np.unique(np.stack(columns), axis=1, return_counts=True)
    return Patterns(tuple(rows), counts.astype(np.int64))


def draw_counts(
    patterns: Patterns, rng: np.random.Generator, *, stratified: bool = True, num: int = NUM_RESAMPLES
) -> Iterator[Floats]:
    """Yield resampled pattern counts in chunks [b, m], `num` of them in all."""
    size = len(patterns.counts)
    strata = patterns.columns[0] if stratified else np.zeros(size, dtype=np.int64)
    groups = [np.flatnonzero(strata == value) for value in np.unique(strata)]
    for chunk in chunks_of(num, size):
        counts = np.empty((chunk, size))
        for group in groups:
            weights = patterns.counts[group]
            counts[:, group] = rng.multinomial(int(weights.sum()), weights / weights.sum(), size=chunk)
        yield counts


def draw_weights(num_rows: int, rng: np.random.Generator, *, num: int = NUM_RESAMPLES) -> Iterator[Floats]:
    """Yield how often each row is drawn, as a share of all draws, in chunks [b, num_rows]; each line sums to 1."""
    for chunk in chunks_of(num, num_rows):
        weights = np.empty((chunk, num_rows))
        for line in weights:
            line[:] = np.bincount(rng.integers(0, num_rows, num_rows, dtype=np.int32), minlength=num_rows)
        yield weights / num_rows


def draw_swaps(num_rows: int, rng: np.random.Generator, *, num: int = NUM_RESAMPLES) -> Iterator[Floats]:
    """Yield coin tosses, 0 or 1 for each row, in chunks [b, num_rows]."""
    for chunk in chunks_of(num, num_rows):
        yield rng.integers(0, 2, size=(chunk, num_rows), dtype=np.bool_).astype(np.float64)


def chunks_of(num: int, width: int) -> Iterator[int]:
    """Numbers of resamples of `width` values each that fit into memory together, `num` in sum."""
    step = max(1, _CHUNK_VALUES // max(1, width))
    for start in range(0, num, step):
        yield min(step, num - start)
