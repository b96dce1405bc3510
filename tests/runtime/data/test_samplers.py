"""Dealing batches out to ranks: nothing lost, nothing counted twice, and lengths that are true."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.data.samplers import Sharding, Share, count_batches, shard_batches
from runtime.errors import ConfigurationError


def _batches(count: int, size: int, *, drop_last: bool = False) -> list[list[int]]:
    whole = [list(range(start, min(start + size, count))) for start in range(0, count, size)]
    return [batch for batch in whole if len(batch) == size or not drop_last]


def _all_ranks(
    batches: list[list[int]],
    *,
    world: int,
    size: int | None,
    split: bool = False,
    even: bool = True,
    drop_last: bool = False,
    start: int = 0,
) -> list[list[Share[int]]]:
    return [
        list(shard_batches(batches, Sharding(rank, world, size, split, even, drop_last), start=start))
        for rank in range(world)
    ]


def _valid(ranks: list[list[Share[int]]]) -> list[int]:
    return sorted(chain.from_iterable(share.items[: share.num_valid] for share in chain.from_iterable(ranks)))


def _items(ranks: list[list[Share[int]]]) -> list[list[list[int]]]:
    return [[share.items for share in shares] for shares in ranks]


@settings(max_examples=200, deadline=None)
@given(
    count=st.integers(0, 60),
    size=st.integers(1, 7),
    world=st.integers(1, 5),
    even=st.booleans(),
)
def test_every_sample_counts_exactly_once(count: int, size: int, world: int, even: bool) -> None:
    ranks = _all_ranks(_batches(count, size), world=world, size=size, even=even)
    assert _valid(ranks) == list(range(count))
    if even:
        assert len({len(shares) for shares in ranks}) == 1
    else:
        assert sum(len(share.items) for shares in ranks for share in shares) == count
    if even and world > 1:
        assert {len(share.items) for shares in ranks for share in shares} <= {size}


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), max_size=12),
    world=st.integers(1, 4),
    even=st.booleans(),
    start=st.integers(0, 12),
)
def test_batches_of_varying_sizes_are_dealt_whole(sizes: list[int], world: int, even: bool, start: int) -> None:
    numbers = iter(range(sum(sizes)))
    batches = [[next(numbers) for _ in range(size)] for size in sizes]
    ranks = _all_ranks(batches, world=world, size=None, even=even, start=start)
    assert _valid(ranks) == sorted(chain.from_iterable(batches[start:]))
    assert all(share.items in batches for shares in ranks for share in shares)
    if even:
        assert len({len(shares) for shares in ranks}) == 1


def test_the_length_is_the_number_of_batches_on_every_rank() -> None:
    for world in (1, 2, 3, 4):
        for split in (False, True):
            for count in range(10):
                for size in (world, 2 * world) if split else (1, 2, 4):
                    for drop_last in (False, True):
                        for even in (False, True):
                            batches = _batches(count, size, drop_last=drop_last)
                            last = len(batches[-1]) if batches else None
                            for rank in range(world):
                                sharding = Sharding(rank, world, size, split, even, drop_last)
                                real = len(list(shard_batches(batches, sharding)))
                                assert count_batches(len(batches), last, sharding) == real, (sharding, batches)


def test_varying_sizes_without_evening_as_seen_in_the_field() -> None:
    ranks = _all_ranks([[0, 1, 2], [3], [4, 5], [6]], world=2, size=None, even=False)
    assert _items(ranks) == [[[0, 1, 2], [4, 5]], [[3], [6]]]


def test_an_odd_number_of_varying_batches_is_evened_by_a_repetition_that_does_not_count() -> None:
    ranks = _all_ranks([[0, 1, 2], [3], [4, 5]], world=2, size=None)
    assert _items(ranks) == [[[0, 1, 2], [4, 5]], [[3], [0, 1, 2]]]
    assert _valid(ranks) == [0, 1, 2, 3, 4, 5]


def test_three_samples_split_over_two_ranks_unevenly() -> None:
    ranks = _all_ranks([[0, 1], [2]], world=2, size=2, split=True, even=False)
    assert _items(ranks) == [[[0], [2]], [[1]]]


def test_padding_comes_from_the_beginning_and_is_marked() -> None:
    ranks = _all_ranks(_batches(9, 2), world=3, size=2)
    assert _items(ranks) == [[[0, 1], [6, 7]], [[2, 3], [8, 0]], [[4, 5], [1, 2]]]
    assert [[share.num_valid for share in shares] for shares in ranks] == [[2, 2], [2, 1], [2, 0]]


def test_drop_last_drops_an_incomplete_round_only_where_ranks_must_be_even() -> None:
    batches = _batches(15, 5, drop_last=True)
    assert _valid(_all_ranks(batches, world=2, size=5, drop_last=True)) == list(range(10))
    assert _valid(_all_ranks(batches, world=2, size=5, drop_last=True, even=False)) == list(range(15))


def test_fewer_samples_than_ranks() -> None:
    ranks = _all_ranks([[0]], world=4, size=2)
    assert _items(ranks) == [[[0, 0]], [[0, 0]], [[0, 0]], [[0, 0]]]
    assert _valid(ranks) == [0]


@pytest.mark.parametrize("size", [None, 3])
def test_splitting_needs_a_batch_size_that_the_ranks_divide(size: int | None) -> None:
    with pytest.raises(ConfigurationError, match="split_batches"):
        Sharding(0, 2, size, split=True)


@given(rounds=st.integers(0, 6), count=st.integers(0, 40), even=st.booleans(), split=st.booleans())
@settings(deadline=None)
def test_starting_later_gives_the_rest_of_the_same_batches(rounds: int, count: int, even: bool, split: bool) -> None:
    batches = _batches(count, 2)
    whole = _all_ranks(batches, world=2, size=2, even=even, split=split)
    start = Sharding(0, 2, 2, split, even).base_batches(rounds)
    rest = _all_ranks(batches, world=2, size=2, even=even, split=split, start=start)
    assert rest == [shares[rounds:] for shares in whole]
