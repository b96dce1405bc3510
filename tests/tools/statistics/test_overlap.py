"""Leakage between training and hold-out rows, with the rows of a real kind of failure."""

import unicodedata

from tools.statistics import Table, find_overlap

_CAFE = "Caf\u00e9 at nine"
_TRAIN_TEXT = [
    "Free prize inside",
    "See you at noon",
    _CAFE,
    "Call  me back",
    "Invoice attached",
    "Good night",
    "Unique one",
]
_TEST_TEXT = [
    "Free prize inside",
    "See you at noon",
    unicodedata.normalize("NFD", _CAFE),
    "call me  BACK",
    "Brand new text",
]


def _train(**features: list[object]) -> Table:
    return Table(
        ids=["1", "2", "3", "4", "5", "6", "7"],
        labels=[1, 0, 0, 0, 1, 0, 0],
        features={"text": _TRAIN_TEXT, **features},
        groups=["P1", "P2", "P3", "P4", "P5", "P6", "P7"],
    )


def _test(**features: list[object]) -> Table:
    return Table(
        ids=["t1", "t2", "t3", "t4", "t5", "7"],
        labels=[1, 1, 0, 0, 1, 1],
        features={"text": [*_TEST_TEXT, "Another text"], **features},
        groups=["P3", "P20", "P21", "P22", "P3", "P23"],
    )


def test_exact_normalised_conflicting_grouped_and_reused() -> None:
    overlap = find_overlap(_train(), _test())
    assert overlap.exact == (0, 1)
    assert overlap.normalised == (0, 1, 2, 3)
    assert overlap.conflicting == (1,)
    assert overlap.grouped == (0, 4)
    assert overlap.shared_groups == ("P3",)
    assert overlap.reused_ids == (5,)
    assert overlap.leaking == {0, 1, 2, 3, 4}


def test_another_column_does_not_hide_equal_text() -> None:
    overlap = find_overlap(_train(site=list("abcdefg")), _test(site=list("uvwxyz")))
    assert overlap.normalised == (0, 1, 2, 3)


def test_equal_categories_are_no_leak() -> None:
    train = Table(["1", "2"], [0, 1], {"colour": ["dark red", "dark red"], "x": [1.0, 2.0]})
    holdout = Table(["a", "b", "c"], [0, 1, 1], {"colour": ["dark red", "dark red", "dark red"], "x": [3.0, 4.0, 2.0]})
    assert find_overlap(train, holdout).normalised == (2,)


def test_numeric_rows_leak_by_all_their_columns_together() -> None:
    train = Table([1, 2], [0, 1], {"a": [1, 2], "b": [5.0, 6.0]})
    holdout = Table([3, 4], [0, 1], {"a": [1.0, 1.0], "b": [5.0, 6.0]})
    assert find_overlap(train, holdout).exact == (0,)
