"""Paired comparisons: A against A, known p-values, Holm, and the false-alarm rate."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from tools.statistics import compare, holm, mcnemar_exact, metric_names, permutation_p_value


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_against_a_shows_no_difference(task: str) -> None:
    labels = [float(v % 3) for v in range(60)]
    predictions = [float(v % 2) for v in range(60)]
    for result in compare(task, labels, predictions, list(predictions), metric_names(task), seed=1):  # type: ignore[arg-type]
        assert (result.difference, result.low, result.high, result.p_value) == (0.0, 0.0, 0.0, 1.0)
        assert result.identical


def test_mcnemar_is_the_exact_binomial_test() -> None:
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(5, 5) == 1.0
    for first, second in ((1, 9), (3, 12), (40, 20), (0, 6)):
        assert mcnemar_exact(first, second) == pytest.approx(binomtest(first, first + second, 0.5).pvalue)


def test_a_clear_difference_is_found_with_its_size() -> None:
    truth = ["a", "b"] * 100
    good = [*("ba"), *truth[2:]]
    bad = ["a"] * 200
    (result,) = compare("classification", truth, good, bad, ["accuracy"], seed=1)
    assert result.difference == pytest.approx(0.99 - 0.5)
    assert result.low < result.difference < result.high
    assert result.p_value == pytest.approx(mcnemar_exact(99, 1))


def test_a_perfect_model_against_a_constant_has_an_interval_that_is_not_a_point() -> None:
    truth = ["a", "b", "c"] * 10
    for result in compare("classification", truth, truth, ["a"] * 30, metric_names("classification"), seed=1):
        assert result.low < result.difference, result
        assert result.p_value < 0.01


def test_regression_difference_has_the_sign_of_model_minus_baseline() -> None:
    rng = np.random.default_rng(4)
    labels = rng.normal(size=200)
    results = compare("regression", labels, labels + 0.1, np.zeros(200), metric_names("regression"), seed=1)
    by_name = {r.name: r for r in results}
    assert by_name["mae"].high < 0
    assert by_name["rmse"].high < 0 < by_name["r2"].low
    assert max(r.p_value for r in results) < 0.01


def test_two_models_of_equal_quality_are_called_different_about_as_often_as_they_should() -> None:
    rng = np.random.default_rng(9)
    alarms = 0
    for trial in range(120):
        labels = rng.normal(size=80)
        first, second = (labels + rng.normal(size=80) for _ in range(2))
        (result,) = compare("regression", labels, first, second, ["mae"], seed=trial)
        alarms += result.p_value < 0.05
    assert alarms <= 15


def test_holm_known_values() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []
    assert holm([0.04]) == [0.04]


def test_no_test_claims_more_than_its_draws_or_its_rows_allow() -> None:
    assert permutation_p_value(np.zeros(2_000), 0.3) == pytest.approx(1 / 2_001)
    assert permutation_p_value(np.array([0.3, -0.3, math.nan]), 0.3) == 1.0
    for name in metric_names("classification"):
        (result,) = compare("classification", ["a", "b"], ["a", "b"], ["b", "b"], [name], seed=1)
        assert result.p_value > 0.5, "one row of difference proves nothing"
