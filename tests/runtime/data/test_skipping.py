"""skip_first_batches: whatever is counted, and what is no count."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from runtime.data.loader import PreparedLoader, skip_first_batches
from runtime.errors import UsageError


@pytest.fixture
def loader(ranks: Callable[..., Any]) -> PreparedLoader:
    first: PreparedLoader = ranks(lambda: DataLoader(list(range(12)), batch_size=2), 1)[0].loader
    return first


def test_skipping_again_adds_up(loader: PreparedLoader) -> None:
    skipped = skip_first_batches(skip_first_batches(loader, 1), np.int64(2))
    assert len(skipped) == 3
    assert [batch.tolist() for batch in skipped] == [[6, 7], [8, 9], [10, 11]]


@pytest.mark.parametrize("number", [-1, 1.5, "2", None])
def test_what_is_no_count_is_named(loader: PreparedLoader, number: Any) -> None:
    with pytest.raises(UsageError, match=f"skip_first_batches of {number!r} batches"):
        skip_first_batches(loader, number)
