"""The average of averages, recognised."""

import math

import pytest

from tools.statistics import explain_as_batch_means

LOSSES = [1.0] * 8 + [5.0, 5.0]


def test_a_mean_of_batch_means_is_explained_by_its_batch_size() -> None:
    assert explain_as_batch_means(LOSSES, 2.3333, decimals=4)[0] == (4, 3)


def test_perplexity_of_the_mean_of_means_is_explained() -> None:
    assert explain_as_batch_means(LOSSES, 10.3123, decimals=4, finish=math.exp)[0] == (4, 3)


@pytest.mark.parametrize(("claimed", "finish"), [(1.8, float), (6.0496, math.exp)])
def test_the_true_mean_needs_no_explanation(claimed: float, finish: object) -> None:
    assert explain_as_batch_means(LOSSES, claimed, decimals=4, finish=finish) == []  # type: ignore[arg-type]


def test_a_value_from_nowhere_stays_unexplained() -> None:
    assert explain_as_batch_means(LOSSES, 0.1234, decimals=4) == []
