"""Ranks that prepare loaders over different data hear of it before they train on overlapping shares."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, random_split

from runtime.data.same_data import describe, require_same
from runtime.errors import UsageError

NUMBERS = list(range(20))


def _split(seed: int) -> DataLoader[Any]:
    first, _ = random_split(NUMBERS, [15, 5], generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type,var-annotated]  # a list will do
    return DataLoader(first, batch_size=2)


class Endless(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return count()


class Shy(Dataset[int]):
    def __len__(self) -> int:
        raise RuntimeError("not yet opened")

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    "build",
    [
        lambda: _split(1),
        lambda: DataLoader(NUMBERS, shuffle=True),  # type: ignore[arg-type]  # likewise
        lambda: DataLoader(Endless(), batch_size=None),
        lambda: DataLoader(Shy(), sampler=[1, 2]),
        lambda: DataLoader(NUMBERS, batch_sampler=[[0, 1], [2]]),  # type: ignore[arg-type]  # likewise
        lambda: DataLoader(Subset(NUMBERS, ["a", "b"])),  # type: ignore[arg-type]  # keys
    ],
)
def test_the_same_data_passes(build: Any) -> None:
    require_same([describe(build()) for _ in range(3)])


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (_split(1), _split(2), r"rank 0: Subset of 15 \(indices [0-9a-f]{8}\); rank 1: Subset of 15"),
        (DataLoader(NUMBERS), DataLoader(NUMBERS[1:]), "rank 0: list of 20; rank 1: list of 19"),  # type: ignore[arg-type]
        (DataLoader(NUMBERS), DataLoader(Endless()), "rank 0: list of 20; rank 1: Endless"),  # type: ignore[arg-type]
        (
            DataLoader(NUMBERS, sampler=SubsetRandomSampler(np.arange(4))),  # type: ignore[arg-type]
            DataLoader(NUMBERS, sampler=SubsetRandomSampler(np.arange(1, 5))),  # type: ignore[arg-type]
            "rank 0: SubsetRandomSampler of 4",
        ),
        (DataLoader(NUMBERS), _split(1), "rank 0: list of 20; rank 1: Subset of 15"),  # type: ignore[arg-type]
    ],
)
def test_different_data_is_named_with_what_differs(left: Any, right: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        require_same([describe(left), describe(right)])
