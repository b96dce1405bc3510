"""What of a rank's batch counts in a metric: rows of tensors, elements of lists, numbers of the whole batch."""

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from runtime.data.activity import valid_part
from runtime.errors import UsageError

Pair = namedtuple("Pair", ["logits", "labels"])


def _plain(data: Any) -> Any:
    if isinstance(data, (torch.Tensor, np.ndarray)):
        return data.tolist()
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(item) for item in data]
    return data


ROWS = torch.arange(3)


@pytest.mark.parametrize(
    ("data", "of_two"),
    [
        (ROWS, [0, 1]),
        (torch.arange(6).view(3, 2), [[0, 1], [2, 3]]),
        (torch.tensor(7.0), [7.0]),
        ((ROWS, ROWS + 1), [[0, 1], [1, 2]]),
        ({"a": ROWS, "b": [ROWS]}, {"a": [0, 1], "b": [[0, 1]]}),
        (Pair(ROWS, ["x", "y", "z"]), [[0, 1], ["x", "y"]]),
        (["x", "y", "z"], ["x", "y"]),
        (np.arange(6).reshape(3, 2), [[0, 1], [2, 3]]),
        ({"a": np.arange(3), "b": np.float64(0.5), "c": np.array(7)}, {"a": [0, 1], "b": 0.5, "c": 7}),
        (({"id": 0}, {"id": 1}, {"id": 2}), [{"id": 0}, {"id": 1}]),
        ([torch.ones(1), torch.ones(4), torch.ones(2)], [[1.0], [1.0] * 4]),
        ({"ids": ["x", "y", "z"], "score": 0.5, "rows": ROWS}, {"ids": ["x", "y"], "score": 0.5, "rows": [0, 1]}),
        ("one text", "one text"),
        (None, None),
    ],
)
def test_two_of_three_samples_count(data: Any, of_two: Any) -> None:
    assert _plain(valid_part(data, 2, 3)) == of_two


@pytest.mark.parametrize("data", [ROWS, torch.arange(6).view(3, 2), ["x", "y", "z"], torch.arange(5), [1] * 7])
def test_nothing_of_a_repeated_batch_counts_whatever_its_form(data: Any) -> None:
    assert len(valid_part(data, 0, 3)) == 0


def test_a_number_of_a_repeated_batch_does_not_count() -> None:
    assert valid_part(torch.tensor(7.0), 0, 3).shape == (0,)
    assert valid_part(torch.tensor(7.0), None, 3).shape == (1,)


def test_all_of_a_whole_batch_counts_whatever_its_form() -> None:
    assert len(valid_part(torch.arange(5), None, 3)) == 5
    assert valid_part([1] * 7, None, 3) == [1] * 7


def test_a_tuple_of_parts_is_no_tuple_of_samples_though_its_length_is_the_batchs() -> None:
    logits, labels = valid_part((torch.arange(2), ["x", "y"]), 1, 2)
    assert (logits.tolist(), labels) == ([0], ["x"])


@pytest.mark.parametrize("data", [torch.arange(5), [1, 2], {"a": torch.arange(3), "b": torch.arange(4)}])
def test_what_cannot_be_matched_to_samples_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match="this rank's batch has 3 samples"):
        valid_part(data, 2, 3)


def test_what_has_no_order_is_refused_and_not_counted_twice() -> None:
    with pytest.raises(UsageError, match="of a set, whose first 2 elements cannot be told"):
        valid_part({"x", "y", "z"}, 2, 3)


def test_arrays_of_other_lengths_are_refused() -> None:
    with pytest.raises(UsageError, match="but this rank's batch has 3 samples"):
        valid_part(np.arange(5), 2, 3)
