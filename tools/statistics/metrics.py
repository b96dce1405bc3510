"""Metric functions, each written for many resamples at once: arrays in, one value per resample out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Task = Literal["classification", "regression"]
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """The distinct (label, prediction) pairs of a classification, as class codes of shape [m]."""

    truth: Codes
    predicted: Codes
    num_classes: int


@dataclass(frozen=True)
class Metric:
    """One metric. Exactly one of the two functions is set, by `task`.

    Attributes:
        of_counts: (counts [b, m], cells) -> values [b], for classification.
        of_means: means [b, 4] of row_statistics -> values [b], for regression.
    """

    name: str
    task: Task
    higher_is_better: bool
    of_counts: Callable[[Floats, Cells], Floats] | None = None
    of_means: Callable[[Floats], Floats] | None = None


def _accuracy(counts: Floats, cells: Cells) -> Floats:
    right = cells.truth == cells.predicted
    return np.asarray(counts[:, right].sum(axis=1) / counts.sum(axis=1), dtype=np.float64)


def _per_class(counts: Floats, cells: Cells) -> tuple[Floats, Floats, Floats]:
    """(hits, labelled, predicted), each [b, num_classes]."""
    identity = np.eye(cells.num_classes)
    of_truth, of_predicted = identity[cells.truth], identity[cells.predicted]
    return counts @ (of_truth * of_predicted), counts @ of_truth, counts @ of_predicted


def _balanced_accuracy(counts: Floats, cells: Cells) -> Floats:
    """Mean recall over the classes that occur among the labels."""
    hits, labelled, _ = _per_class(counts, cells)
    present = np.unique(cells.truth)
    return np.asarray((hits[:, present] / labelled[:, present]).mean(axis=1), dtype=np.float64)


def _macro_f1(counts: Floats, cells: Cells) -> Floats:
    """Mean F1 over the classes that occur among labels or predictions; 0 for a class that a resample lacks."""
    hits, labelled, predicted = _per_class(counts, cells)
    present = np.union1d(cells.truth, cells.predicted)
    total = (labelled + predicted)[:, present]
    f1 = np.divide(2 * hits[:, present], total, out=np.zeros_like(total), where=total > 0)
    return np.asarray(f1.mean(axis=1), dtype=np.float64)


def row_statistics(labels: Floats, predictions: Floats) -> Floats:
    """Per row [n, 4]: absolute error, squared error, label, squared label. Labels are centred first."""
    errors, centred = predictions - labels, labels - labels.mean()
    return np.stack([np.abs(errors), np.square(errors), centred, np.square(centred)], axis=1)


def _mae(means: Floats) -> Floats:
    return means[:, 0]


def _rmse(means: Floats) -> Floats:
    return np.asarray(np.sqrt(means[:, 1]), dtype=np.float64)


def _r2(means: Floats) -> Floats:
    """1 - residual / total sum of squares; NaN where the labels do not vary."""
    total = means[:, 3] - np.square(means[:, 2])
    ratio = np.divide(means[:, 1], total, out=np.full_like(total, np.nan), where=total > 1e-12 * (1 + means[:, 3]))
    return np.asarray(1 - ratio, dtype=np.float64)


METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", "classification", True, of_counts=_accuracy),
        Metric("balanced_accuracy", "classification", True, of_counts=_balanced_accuracy),
        Metric("macro_f1", "classification", True, of_counts=_macro_f1),
        Metric("mae", "regression", False, of_means=_mae),
        Metric("rmse", "regression", False, of_means=_rmse),
        Metric("r2", "regression", True, of_means=_r2),
    )
}


def metric_names(task: str) -> tuple[str, ...]:
    """The metrics that the server can score for this task."""
    return tuple(m.name for m in METRICS.values() if m.task == task)


def encode_classes(*columns: Any) -> tuple[list[Codes], int]:
    """Class codes of several label columns over their common, first-seen order of classes."""
    codes: dict[Any, int] = {}
    encoded = [np.array([codes.setdefault(v, len(codes)) for v in column], dtype=np.int64) for column in columns]
    return encoded, len(codes)
