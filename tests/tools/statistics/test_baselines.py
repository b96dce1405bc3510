"""Baselines fitted from plain columns."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris

from tools.domain.errors import InvalidInput
from tools.statistics import constant_baseline, linear_baseline


def _columns(matrix: np.ndarray, rows: slice) -> dict[str, list[float]]:
    return {f"f{i}": matrix[rows, i].tolist() for i in range(matrix.shape[1])}


def test_majority_and_mean_come_from_the_training_labels() -> None:
    assert constant_baseline("majority", ["b", "a", "a"], num_rows=2).predictions == ["a", "a"]
    assert constant_baseline("majority", ["b", "a"], num_rows=1).predictions == ["b"]
    assert constant_baseline("mean", [1.0, 2.0, 6.0], num_rows=2).predictions == [3.0, 3.0]


def test_linear_baseline_learns_iris_and_is_deterministic() -> None:
    data = load_iris()
    labels = [str(data.target_names[t]) for t in data.target]
    train, holdout = _columns(data.data, slice(0, None, 2)), _columns(data.data, slice(1, None, 2))
    train["name"], holdout["name"] = ["x"] * 75, ["x"] * 75
    result = linear_baseline("classification", train, labels[::2], holdout, num_rows=75)
    assert sum(a == b for a, b in zip(result.predictions, labels[1::2], strict=True)) >= 68
    assert "4 standardised" in result.method
    assert "left out: name" in result.method
    assert linear_baseline("classification", train, labels[::2], holdout, num_rows=75) == result


def test_linear_baseline_for_numbers_beats_the_mean_on_diabetes() -> None:
    data = load_diabetes()
    train, holdout = _columns(data.data, slice(0, 300)), _columns(data.data, slice(300, 442))
    result = linear_baseline("regression", train, data.target[:300].tolist(), holdout, num_rows=142)
    truth = data.target[300:]
    mean = float(np.mean(data.target[:300]))
    assert np.abs(np.array(result.predictions) - truth).mean() < 0.85 * np.abs(mean - truth).mean()


def test_columns_with_gaps_or_text_are_no_features() -> None:
    with pytest.raises(InvalidInput, match="no numeric feature"):
        linear_baseline("classification", {"a": [1.0, None]}, ["x", "y"], {"a": [1.0]}, num_rows=1)
    with pytest.raises(InvalidInput, match="varies"):
        linear_baseline("classification", {"a": [1.0, 1.0]}, ["x", "y"], {"a": [1.0]}, num_rows=1)
    with pytest.raises(InvalidInput, match="one class"):
        linear_baseline("classification", {"a": [1.0, 2.0]}, ["x", "x"], {"a": [1.0]}, num_rows=1)
