"""Loaders of several ranks in one process, and what they yield."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from runtime.data.activity import Activity, valid_part
from runtime.data.loader import PreparedLoader, prepare_loader
from runtime.options import DataLoaderConfiguration


class Numbers(IterableDataset[int]):
    """A stream of 0..count-1, which its workers divide among them."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(first, self.count, step))


@dataclass
class Rank:
    """One rank's prepared loader.

    Attributes:
        taken: for each batch so far, its samples that count.
        lasts: for each batch so far, whether it was said to be the last.
    """

    loader: PreparedLoader
    activity: Activity
    taken: list[list[Any]] = field(default_factory=list)
    lasts: list[bool] = field(default_factory=list)

    def take(self, limit: int | None = None) -> "Rank":
        """Iterate, over at most `limit` batches."""
        if limit == 0:
            return self
        for number, batch in enumerate(self.loader, 1):
            current = self.activity.current
            assert current is not None
            assert len(batch) > 0
            self.taken.append(valid_part(batch, current.num_valid, current.length).tolist())
            self.lasts.append(current.is_last)
            if number == limit:
                break
        return self


Ranks = Callable[..., list[Rank]]


def make_ranks(build: Callable[[], DataLoader[Any]], world: int, *, seed: int = 7, **options: Any) -> list[Rank]:
    ranks = []
    for rank in range(world):
        activity = Activity()
        loader = prepare_loader(
            build(),
            rank=rank,
            world_size=world,
            device=None,
            configuration=DataLoaderConfiguration(**{"use_stateful_dataloader": True, **options}),
            seed=seed,
            index=0,
            activity=activity,
            limit=None,
        )
        ranks.append(Rank(loader, activity))
    return ranks


@pytest.fixture(scope="session")
def ranks() -> Ranks:
    """ranks(build, world, **configuration): the prepared loaders of all ranks, over loaders that `build` makes."""
    return make_ranks


@pytest.fixture(scope="session")
def numbers() -> type[Numbers]:
    return Numbers
