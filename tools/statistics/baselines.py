"""Baselines that the server fits by itself: the most frequent label, the mean, and a linear model."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..domain.errors import InvalidInput
from .metrics import Floats, Task

_MAX_ITERATIONS = 1_000


@dataclass(frozen=True)
class Baseline:
    """Predictions for the hold-out rows, in their order, and how they were made."""

    name: str
    predictions: list[Any]
    method: str


def constant_baseline(name: str, train_labels: Sequence[Any], *, num_rows: int) -> Baseline:
    """`majority` (ties: the label that comes first) or `mean` of the training labels, for every row."""
    if name == "mean":
        value: Any = math.fsum(train_labels) / len(train_labels)
        return Baseline(name, [value] * num_rows, f"mean of {len(train_labels)} training labels, {value:.6g}")
    value, count = Counter(train_labels).most_common(1)[0]
    method = f"most frequent of {len(train_labels)} training labels, {str(value)[:80]!r} ({count} times)"
    return Baseline(name, [value] * num_rows, method)


def linear_baseline(
    task: Task,
    train: Mapping[str, Sequence[Any]],
    train_labels: Sequence[Any],
    holdout: Mapping[str, Sequence[Any]],
    *,
    num_rows: int,
) -> Baseline:
    """Logistic or ridge regression on the numeric columns that both files have, standardised by the training rows.

    Raises:
        InvalidInput: no usable numeric column, or only one class to learn.
    """
    columns = [name for name in train if name in holdout and _numeric(train[name]) and _numeric(holdout[name])]
    left_out = sorted(set(train) & set(holdout) - set(columns))
    if not columns:
        raise InvalidInput("train and hold-out share no numeric feature column without gaps")
    matrix, rows = _matrix(train, columns), _matrix(holdout, columns)
    varying = matrix.std(axis=0) > 0
    if not varying.any():
        raise InvalidInput("no numeric feature column of the training file varies")
    matrix, rows = matrix[:, varying], rows[:, varying]
    centre, scale = matrix.mean(axis=0), matrix.std(axis=0)
    model, notes = _fit(task, (matrix - centre) / scale, train_labels)
    if left_out:
        notes.append(f"columns left out: {', '.join(left_out[:5])}" + (" ..." if len(left_out) > 5 else ""))
    predicted = model.predict((rows - centre) / scale)
    kind = "ridge" if task == "regression" else "logistic"
    method = (
        f"{kind} regression on {int(varying.sum())} standardised numeric columns, {len(train_labels)} training rows"
    )
    if task == "classification":
        classes = sorted(set(train_labels), key=_order)
        predictions: list[Any] = [classes[int(code)] for code in predicted]
    else:
        predictions = [float(value) for value in predicted]
    assert len(predictions) == num_rows
    return Baseline("linear", predictions, "; ".join([method, *notes]))


def _fit(task: Task, matrix: Floats, labels: Sequence[Any]) -> tuple[Any, list[str]]:
    from sklearn.linear_model import LogisticRegression, Ridge  # a second to import; only this baseline needs it

    if task == "regression":
        return Ridge(alpha=1.0).fit(matrix, np.asarray(labels, dtype=np.float64)), []
    classes = sorted(set(labels), key=_order)
    if len(classes) < 2:
        raise InvalidInput("the training file has only one class")
    code = {label: index for index, label in enumerate(classes)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = LogisticRegression(max_iter=_MAX_ITERATIONS).fit(matrix, np.array([code[label] for label in labels]))
    stopped = any(w.category.__name__ == "ConvergenceWarning" for w in caught)
    return model, [f"stopped after {_MAX_ITERATIONS} iterations without converging"] if stopped else []


def _order(label: Any) -> tuple[str, Any]:
    return ("", label) if isinstance(label, int | float) else ("text", str(label))


def _numeric(values: Sequence[Any]) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v) for v in values)


def _matrix(table: Mapping[str, Sequence[Any]], columns: Sequence[str]) -> Floats:
    return np.array([table[name] for name in columns], dtype=np.float64).T
