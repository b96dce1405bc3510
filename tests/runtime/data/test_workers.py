"""Loaders with worker processes: what is drawn there depends on the batch alone, and streams divide among workers."""

import random
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from runtime.errors import CheckpointError


def _noise() -> float:
    return random.random() + np.random.rand() + torch.rand(()).item()


class Noisy(Dataset[Any]):
    """Samples with noise from every global generator."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int, float]:
        return index, self.epoch, _noise()


class NoisyStream(IterableDataset[Any]):
    """A stream that its workers divide, in an order and with noise from the global generators."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[int, int, float]]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        order = list(range(first, self.count, step))
        random.shuffle(order)
        for index in order:
            yield index, self.epoch, _noise()


def _collate(samples: list[Any]) -> torch.Tensor:
    return torch.tensor([(*sample, _noise()) for sample in samples], dtype=torch.float64)


def _ids(ranks: Any) -> list[int]:
    return sorted(int(row[0]) for row in chain.from_iterable(chain.from_iterable(rank.taken for rank in ranks)))


def _loader(kind: str, *, count: int = 22, workers: int = 2, **options: Any) -> DataLoader[Any]:
    if kind == "stream":
        return DataLoader(NoisyStream(count), batch_size=2, num_workers=workers, collate_fn=_collate, **options)
    return DataLoader(Noisy(count), batch_size=2, shuffle=True, num_workers=workers, collate_fn=_collate, **options)


@pytest.mark.parametrize("kind", ["map", "stream"])
def test_a_resumed_run_draws_in_its_workers_what_the_whole_run_drew(ranks: Any, kind: str) -> None:
    whole = ranks(lambda: _loader(kind, persistent_workers=True), 1)[0]
    for _ in range(3):
        whole.take()
    saving = ranks(lambda: _loader(kind), 1)[0]
    saving.take().take(3)
    state = saving.loader.state_dict()
    saving.loader.load_state_dict(state)
    going_on = ranks(lambda: _loader(kind, workers=2 if kind == "stream" else 1), 1)[0]
    going_on.loader.load_state_dict(state)
    going_on.take().take()
    assert saving.taken + going_on.taken == whole.taken
    by_hand = ranks(lambda: _loader(kind), 1, use_stateful_dataloader=False)[0]
    by_hand.loader.load_state_dict(state)
    by_hand.loader = by_hand.loader.skipping(3)
    per_epoch = len(whole.taken) // 3
    assert by_hand.take().taken == whole.taken[per_epoch + 3 : 2 * per_epoch]
    rows = list(chain.from_iterable(whole.taken))
    assert [row[1] for row in rows] == [0] * 22 + [1] * 22 + [2] * 22, "set_epoch reaches workers that stay"
    assert len({row[2] for row in rows}) == len({row[3] for row in rows}) == 66


@pytest.mark.parametrize("taken", [1, 2, 3])
def test_a_stream_with_workers_goes_on_on_another_number_of_ranks(ranks: Any, taken: int) -> None:
    def build() -> DataLoader[Any]:
        return _loader("stream", count=23)

    two = ranks(build, 2)
    for rank in two:
        rank.take(taken)
    one = ranks(build, 1)[0]
    one.loader.load_state_dict(two[0].loader.state_dict())
    one.take()
    assert _ids([*two, one]) == list(range(23))
    samples = chain.from_iterable(chain.from_iterable(rank.taken for rank in [*two, one]))
    alone = ranks(build, 1)[0].take()
    drawn = {(row[0], row[2]) for row in chain.from_iterable(alone.taken)}
    assert {(row[0], row[2]) for row in samples} == drawn, "a sample's noise is the same on any number of ranks"


def test_ranks_with_workers_read_a_stream_alike_though_their_generators_differ(ranks: Any) -> None:
    two = ranks(lambda: _loader("stream", count=21), 2)
    for number, rank in enumerate(two):
        torch.manual_seed(number)
        random.seed(number)
        rank.take()
    assert _ids(two) == list(range(21))
    assert len(two[0].taken) == len(two[1].taken)


def test_inside_an_epoch_a_stream_needs_the_same_workers(ranks: Any) -> None:
    saving = ranks(lambda: _loader("stream"), 1)[0].take(3)
    state = saving.loader.state_dict()
    assert state["readers"] == [2, 1]
    other = ranks(lambda: _loader("stream", workers=0), 1)[0]
    with pytest.raises(CheckpointError, match="read by 2 processes of each rank, and the loader now has 1"):
        other.loader.load_state_dict(state)
    saving.take()
    other.loader.load_state_dict(saving.loader.state_dict())
    assert other.loader.epoch == 2


class Part(IterableDataset[int]):
    """Divided by worker_init_fn, as torch's documentation does it."""

    def __init__(self) -> None:
        self.first, self.end = 0, 12

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.end))


def _divide(_worker: int) -> None:
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    dataset.first, dataset.end = 6 * info.id, 6 * info.id + 6


def test_worker_init_fn_finds_the_users_data_set(ranks: Any) -> None:
    two = ranks(lambda: DataLoader(Part(), batch_size=2, num_workers=2, worker_init_fn=_divide), 2)
    for rank in two:
        rank.take()
    assert sorted(chain.from_iterable(chain.from_iterable(rank.taken for rank in two))) == list(range(12))


def test_two_passes_over_one_loader_at_a_time_do_not_mix(ranks: Any) -> None:
    rank = ranks(lambda: DataLoader(list(range(8)), batch_size=2, shuffle=True), 1)[0]
    expected = ranks(lambda: DataLoader(list(range(8)), batch_size=2, shuffle=True), 1)[0].take().take().taken
    pairs = [(a.tolist(), b.tolist()) for a, b in zip(rank.loader, rank.loader, strict=True)]
    assert [a for a, _ in pairs] + [b for _, b in pairs] == expected


def test_a_batch_of_one_index_is_seeded_too(ranks: Any) -> None:
    def build() -> DataLoader[Any]:
        return DataLoader(Noisy(6), batch_size=None, num_workers=2, collate_fn=lambda sample: _collate([sample]))

    whole = ranks(build, 1)[0].take()
    begun = ranks(build, 1)[0].take(2)
    rest = ranks(build, 1)[0]
    rest.loader.load_state_dict(begun.loader.state_dict())
    assert begun.taken + rest.take().taken == whole.taken
