"""Each sample counts exactly once, whatever the sizes, and a training goes on at any place on any number of ranks."""

import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler, SequentialSampler

QUICK = settings(max_examples=120, deadline=None)


class Items(Dataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def _flat(lists: Any) -> list[Any]:
    return list(chain.from_iterable(lists))


def _all(ranks: Any) -> list[Any]:
    return _flat(_flat(rank.taken for rank in ranks))


def _builder(numbers: Any, kind: str, count: int, size: int, *, drop_last: bool) -> Callable[[], DataLoader[Any]]:
    def build() -> DataLoader[Any]:
        if kind == "stream":
            return DataLoader(numbers(count), batch_size=size, drop_last=drop_last)
        return DataLoader(Items(count), batch_size=size, drop_last=drop_last, shuffle=kind == "shuffled" and count > 0)

    return build


@QUICK
@given(
    kind=st.sampled_from(["shuffled", "in order", "stream"]),
    count=st.integers(0, 45),
    per_rank=st.integers(1, 4),
    world=st.integers(1, 4),
    drop_last=st.booleans(),
    even=st.booleans(),
    split=st.booleans(),
)
def test_an_epoch_is_whole(
    ranks: Any,
    numbers: Any,
    kind: str,
    count: int,
    per_rank: int,
    world: int,
    drop_last: bool,
    even: bool,
    split: bool,
) -> None:
    size = per_rank * world if split else per_rank
    build = _builder(numbers, kind, count, size, drop_last=drop_last)
    loaders = ranks(build, world, split_batches=split, even_batches=even)
    lengths = [len(rank.loader) for rank in loaders] if kind != "stream" else None
    for rank in loaders:
        rank.take()
    seen = _all(loaders)
    full = count // size * size if drop_last else count
    if drop_last and even and not split:
        full = count // size // world * world * size
    assert len(seen) == len(set(seen)) == full
    assert set(seen) <= set(range(count))
    if not drop_last:
        assert set(seen) == set(range(count))
    if even:
        assert len({len(rank.taken) for rank in loaders}) == 1
    for rank in loaders:
        assert rank.lasts == [False] * (len(rank.taken) - 1) + [True] * bool(rank.taken)
    if lengths is not None:
        assert lengths == [len(rank.taken) for rank in loaders]


@QUICK
@given(
    kind=st.sampled_from(["shuffled", "in order", "stream"]),
    count=st.integers(0, 45),
    per_rank=st.integers(1, 3),
    worlds=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    taken=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    even=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_two_resumes_on_other_numbers_of_ranks_repeat_and_lose_nothing(
    ranks: Any,
    numbers: Any,
    kind: str,
    count: int,
    per_rank: int,
    worlds: tuple[int, int, int],
    taken: tuple[int, int],
    even: bool,
    epoch: int,
) -> None:
    build = _builder(numbers, kind, count, per_rank, drop_last=False)
    seen: list[Any] = []
    state: Any = None
    for world, limit in zip(worlds, [*taken, None], strict=True):
        loaders = ranks(build, world, even_batches=even)
        for rank in loaders:
            if state is not None:
                rank.loader.load_state_dict(state)
            else:
                rank.loader.set_epoch(epoch)
            rank.take(limit)
        seen += _all(loaders)
        most = max(loaders, key=lambda rank: len(rank.taken))
        state = most.loader.state_dict()
        if state["epoch"] > epoch:
            break
    assert sorted(seen) == list(range(count))


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["shuffled", "in order", "stream"]),
    count=st.integers(1, 45),
    per_rank=st.integers(1, 3),
    world=st.integers(1, 3),
    even=st.booleans(),
    split=st.booleans(),
    epoch=st.integers(0, 2),
    taken=st.integers(0, 9),
    by_hand=st.booleans(),
)
def test_a_resume_goes_on_exactly_where_the_whole_run_went_on(
    ranks: Any,
    numbers: Any,
    kind: str,
    count: int,
    per_rank: int,
    world: int,
    even: bool,
    split: bool,
    epoch: int,
    taken: int,
    by_hand: bool,
) -> None:
    build = _builder(numbers, kind, count, per_rank * (world if split else 1), drop_last=False)
    options = {"even_batches": even, "split_batches": split}
    whole = ranks(build, world, **options)
    saving = ranks(build, world, **options)
    steps = [len(rank.take().taken) for rank in ranks(build, world, **options)]
    taken = min(taken, *steps)
    for one, other in zip(whole, saving, strict=True):
        for _ in range(epoch + 2):
            one.take()
        for _ in range(epoch):
            other.take()
        other.take(taken)
    state = saving[0].loader.state_dict()
    for one, other in zip(
        whole, ranks(build, world, **options | {"use_stateful_dataloader": not by_hand}), strict=True
    ):
        other.loader.load_state_dict(state)
        per_epoch = len(one.taken) // (epoch + 2)
        if by_hand and taken:
            other.loader, prepared = other.loader.skipping(taken), other.loader
            other.take()
            other.loader = prepared
        else:
            other.take()
        if state["epoch"] == epoch:
            other.take()
        assert other.taken == one.taken[epoch * per_epoch + taken :]


class Wild(IterableDataset[int]):
    """A stream in an order of its own, drawn from every global generator."""

    def __init__(self, count: int) -> None:
        self.order = list(range(count))

    def __iter__(self) -> Iterator[int]:
        order = self.order.copy()
        random.shuffle(order)
        np.random.shuffle(order)
        return iter([order[place] for place in torch.randperm(len(order))])


class WildSampler(Sampler[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.count))
        random.shuffle(order)
        np.random.shuffle(order)
        return iter([order[place] for place in torch.randperm(len(order))])


class DrawnOnTheWay(WildSampler):
    """Draws each index when it is asked for."""

    def __iter__(self) -> Iterator[int]:
        order = list(super().__iter__())
        while order:
            yield order.pop((random.randrange(99) + np.random.randint(99) + int(torch.randint(99, ()))) % len(order))


class OwnGenerators(WildSampler):
    def __init__(self, count: int, generator: Any) -> None:
        super().__init__(count)
        self.draws = generator

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.count))
        self.draws.shuffle(order)
        return iter(order)


class Buckets(Sampler[list[int]]):
    """Batches of varying sizes in an order that is drawn."""

    def __init__(self, count: int) -> None:
        self.batches = [list(range(start, min(start + 1 + start % 3, count))) for start in range(0, count, 3)]
        self.count = sum(map(len, self.batches))

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self.batches.copy()
        random.shuffle(batches)
        return iter(batches)


def _wild(kind: str, count: int) -> DataLoader[Any]:
    if kind == "stream":
        return DataLoader(Wild(count), batch_size=2)
    if kind == "batch sampler":
        return DataLoader(Items(count), batch_sampler=BatchSampler(WildSampler(count), 2, False))
    if kind == "buckets":
        return DataLoader(Items(count), batch_sampler=Buckets(count))
    if kind == "one by one":
        return DataLoader(
            Items(count), sampler=WildSampler(count), batch_size=None, collate_fn=lambda i: torch.tensor([i])
        )
    own: dict[str, Any] = {
        "random": random.Random(1),
        "numpy": np.random.default_rng(1),
        "numpy state": np.random.RandomState(1),
    }
    sampler = OwnGenerators(count, own[kind]) if kind in own else WildSampler(count)
    if kind == "on the way":
        sampler = DrawnOnTheWay(count)
    return DataLoader(Items(count), batch_size=2, sampler=sampler)


@pytest.mark.parametrize(
    "kind",
    ["stream", "sampler", "on the way", "batch sampler", "buckets", "one by one", "random", "numpy", "numpy state"],
)
@pytest.mark.parametrize("world", [1, 2])
def test_an_order_drawn_from_global_generators_is_the_same_on_all_ranks(ranks: Any, kind: str, world: int) -> None:
    def one_epoch(epoch: int, *, noise: int, skipped: int = 0) -> list[list[list[int]]]:
        loaders = ranks(lambda: _wild(kind, 24), world, even_batches=False)
        for number, rank in enumerate(loaders):
            for seed in (random.seed, np.random.seed, torch.manual_seed):
                seed(noise + number)
            before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
            rank.loader.set_epoch(epoch)
            if skipped:
                rank.take(skipped)
                rank.loader.load_state_dict(rank.loader.state_dict())
                rank.taken.clear()
            rank.take()
            assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
        return [rank.taken for rank in loaders]

    first = one_epoch(0, noise=1)
    count = Buckets(24).count if kind == "buckets" else 24
    assert len(set(_flat(_flat(first)))) == len(_flat(_flat(first))) == count
    assert one_epoch(0, noise=50) == first
    assert one_epoch(1, noise=1) != first
    assert one_epoch(0, noise=9, skipped=2) == [batches[2:] for batches in first]


@QUICK
@given(sizes=st.lists(st.integers(1, 4), max_size=9), world=st.integers(1, 3), split=st.booleans(), even=st.booleans())
def test_lengths_are_true_for_batch_samplers_too(
    ranks: Any, sizes: list[int], world: int, split: bool, even: bool
) -> None:
    class Uneven(Sampler[list[int]]):
        batch_size = 4 * world
        drop_last = False

        def __len__(self) -> int:
            return len(sizes)

        def __iter__(self) -> Iterator[list[int]]:
            place = iter(range(sum(sizes)))
            return iter([[next(place) for _ in range(size)] for size in sizes])

    loaders = ranks(
        lambda: DataLoader(Items(sum(sizes)), batch_sampler=Uneven()), world, split_batches=split, even_batches=even
    )
    assert [len(rank.loader) for rank in loaders] == [len(rank.take().taken) for rank in loaders]
    assert sorted(_all(loaders)) == list(range(sum(sizes)))


def test_a_batch_larger_than_what_is_split_is_refused_and_not_cut(ranks: Any) -> None:
    class Large(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            return iter([list(range(6))])

    (first, _) = ranks(
        lambda: DataLoader(Items(6), batch_sampler=Large(SequentialSampler(range(6)), 4, False)), 2, split_batches=True
    )
    with pytest.raises(Exception, match="split_batches of a batch of 6 samples"):
        first.take()
