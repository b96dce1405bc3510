"""Comparing labels without coercion surprises."""

import math
from typing import Any

import pytest

from tools.domain.errors import InvalidInput
from tools.statistics import first_few, unify
from tools.statistics.labels import is_missing


def _unify(first: list[Any], second: list[Any]) -> tuple[list[Any], list[Any], str]:
    result = unify(first, second, what_first="predictions", what_second="labels")
    return result.first, result.second, result.note


def test_equal_types_stay_as_they_are() -> None:
    assert _unify(["01", "a"], ["1", "a"]) == (["01", "a"], ["1", "a"], "")
    assert _unify([1, 2], [2, 1]) == ([1, 2], [2, 1], "")


def test_text_of_plain_numbers_is_compared_as_numbers_and_this_is_said() -> None:
    first, second, note = _unify(["1", "-2"], [1, -2])
    assert first == second == [1, -2]
    assert "text" in note
    assert "compared as numbers" in note
    assert _unify([1.5], ["1.5"])[:2] == ([1.5], [1.5])


@pytest.mark.parametrize("text", ["01", " 1", "1.0 ", "+1", "1e0", "nan", "inf", "1_000", "\uff11", "one"])
def test_text_that_is_no_plain_number_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="no plain number"):
        _unify(["1", text], [1, 1])


def test_integers_and_integral_floats_compare_as_numbers() -> None:
    first, second, note = _unify([1.0, 2.0], [1, 2])
    assert first == second
    assert "floats" in note


def test_large_ids_that_went_through_float_are_refused() -> None:
    with pytest.raises(InvalidInput, match="2\\^53"):
        _unify([float(2**53 + 1)], [2**53 + 1])


@pytest.mark.parametrize(
    ("first", "second"), [([True], [1]), ([True], ["True"]), ([1, "a"], [1, 2]), ([True, 1], [1, 1])]
)
def test_booleans_are_no_numbers_and_mixed_columns_are_refused(first: list[Any], second: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="type"):
        _unify(first, second)


def test_missing_values() -> None:
    assert all(is_missing(v) for v in (None, "", math.nan))
    assert not any(is_missing(v) for v in (0, False, "nan", 0.0, " "))


def test_first_few_says_how_many_more() -> None:
    assert first_few(range(7)) == "0, 1, 2, 3, 4 and 2 more"
