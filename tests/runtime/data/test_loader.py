"""Prepared loaders: order by seed and epoch, resuming, the last batch, and what is known of the current one."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, WeightedRandomSampler

from runtime.data.activity import Activity
from runtime.data.loader import PreparedLoader, prepare_loader, skip_first_batches
from runtime.errors import CheckpointError, UsageError
from runtime.options import DataLoaderConfiguration


def _prepare(
    loader: DataLoader[Any], *, rank: int = 0, world: int = 1, activity: Activity | None = None, **options: Any
) -> PreparedLoader:
    return prepare_loader(
        loader,
        rank=rank,
        world_size=world,
        device=None,
        configuration=DataLoaderConfiguration(**options),
        seed=7,
        index=0,
        activity=activity or Activity(),
        limit=None,
    )


def _shuffled(count: int = 20, batch: int = 2) -> DataLoader[Any]:
    return DataLoader(torch.arange(count), batch_size=batch, shuffle=True)


def _pass(loader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in loader]


def _flat(lists: list[Any]) -> list[Any]:
    return list(chain.from_iterable(lists))


class _Stream(IterableDataset[int]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


def test_each_epoch_has_every_sample_once_over_the_ranks_in_another_order() -> None:
    ranks = [_prepare(_shuffled(), rank=rank, world=2) for rank in range(2)]
    orders = []
    for _epoch in range(3):
        seen = [_pass(loader) for loader in ranks]
        assert sorted(_flat(_flat(seen))) == list(range(20))
        orders.append(seen)
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first, second = _prepare(_shuffled()), _prepare(_shuffled())
    first_orders = [_pass(first) for _ in range(3)]
    torch.rand(5)
    second.set_epoch(2)
    assert _pass(second) == first_orders[2]
    second.set_epoch(0)
    assert _pass(second) == first_orders[0]


def test_iterating_draws_nothing_from_the_global_generator() -> None:
    loader = _prepare(_shuffled())
    before = torch.get_rng_state()
    _pass(loader)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_is_true_for_a_real_loader(split: bool, even: bool, drop_last: bool) -> None:
    for count in range(10):
        for batch in (2, 4):
            for rank in range(2):
                base: DataLoader[Any] = DataLoader(list(range(count)), batch_size=batch, drop_last=drop_last)
                loader = _prepare(base, rank=rank, world=2, split_batches=split, even_batches=even)
                assert len(_pass(loader)) == len(loader)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("taken", [0, 1, 3, 5])
def test_a_resumed_loader_goes_on_where_the_saved_one_stood(rank: int, taken: int) -> None:
    whole = _prepare(_shuffled(), rank=rank, world=2)
    expected = [_pass(whole) for _ in range(3)]

    saving = _prepare(_shuffled(), rank=rank, world=2)
    _pass(saving)
    epoch = iter(saving)
    for _ in range(taken):
        next(epoch)
    state = saving.state_dict()

    by_hand = _prepare(_shuffled(), rank=rank, world=2)
    by_hand.load_state_dict(state)
    assert _pass(skip_first_batches(by_hand, taken)) == expected[1][taken:]
    assert _pass(by_hand) == expected[2]

    by_itself = _prepare(_shuffled(), rank=rank, world=2, use_stateful_dataloader=True)
    by_itself.load_state_dict(state)
    assert by_itself.epoch == 1
    assert _pass(by_itself) == expected[1][taken:]
    assert _pass(by_itself) == expected[2]


def test_a_loader_saved_at_an_epochs_end_resumes_with_the_next_epoch() -> None:
    whole = _prepare(_shuffled())
    expected = [_pass(whole) for _ in range(2)]
    saving = _prepare(_shuffled())
    _pass(saving)
    resumed = _prepare(_shuffled(), use_stateful_dataloader=True)
    resumed.load_state_dict(saving.state_dict())
    assert resumed.epoch == 1
    assert _pass(resumed) == expected[1]


def test_resuming_on_another_number_of_ranks_repeats_and_loses_nothing() -> None:
    two = [_prepare(_shuffled(24), rank=rank, world=2) for rank in range(2)]
    seen = []
    for loader in two:
        epoch = iter(loader)
        seen += [next(epoch).tolist() for _ in range(3)]
    state = two[0].state_dict()
    for world in (1, 3, 4):
        rest = []
        for rank in range(world):
            loader = _prepare(_shuffled(24), rank=rank, world=world, use_stateful_dataloader=True, even_batches=False)
            loader.load_state_dict(state)
            rest += _pass(loader)
        assert sorted(_flat(seen + rest)) == list(range(24))


def test_resuming_inside_an_epoch_with_another_batch_size_is_exact_or_refused() -> None:
    saving = _prepare(_shuffled(24, 2))
    epoch = iter(saving)
    seen = [next(epoch).tolist() for _ in range(6)]
    larger = _prepare(_shuffled(24, 4), use_stateful_dataloader=True)
    larger.load_state_dict(saving.state_dict())
    assert sorted(_flat(seen + _pass(larger))) == list(range(24))
    with pytest.raises(CheckpointError, match="after 6 batches of 2"):
        _prepare(_shuffled(24, 5)).load_state_dict(saving.state_dict())


def test_the_last_batch_is_known_without_loading_another() -> None:
    loaded = []

    class Recording(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            loaded.append(index)
            return index

    activity = Activity()
    loader = _prepare(DataLoader(Recording(), batch_size=2), activity=activity)
    ends = [(activity.at_end, len(loaded)) for _ in loader]
    assert ends == [(False, 2), (True, 4)]
    assert activity.current is None


def test_leaving_an_inner_loop_early_leaves_the_outer_loop_current() -> None:
    activity = Activity()
    outer = _prepare(DataLoader(list(range(6)), batch_size=2), activity=activity)
    inner = _prepare(DataLoader(list(range(1)), batch_size=1), activity=activity)
    held = []
    for index, _ in enumerate(outer):
        if index == 0:
            for _ in enumerate(inner):
                break
            assert activity.current is not None
            assert activity.current.loader is outer
            kept_open = iter(inner)
            next(kept_open)
            held.append(kept_open)
        else:
            assert activity.current is not None
            assert activity.current.loader is outer


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("count", "drop_last", "split", "expected_steps", "expected_samples"),
    [
        (5, False, False, 2, 5),
        (5, True, False, 1, 4),
        (5, False, True, 3, 5),
        (5, True, True, 2, 4),
        (0, False, False, 0, 0),
        (1, False, False, 1, 1),
        (8, False, False, 2, 8),
    ],
)
def test_a_stream_is_dealt_out_without_empty_batches(
    count: int, drop_last: bool, split: bool, expected_steps: int, expected_samples: int, workers: int
) -> None:
    if workers and (count, drop_last, split) != (5, False, False):
        return
    seen = []
    for rank in range(2):
        activity = Activity()
        base = DataLoader(_Stream(count), batch_size=2, drop_last=drop_last, num_workers=min(workers, 1))
        loader = _prepare(base, rank=rank, world=2, split_batches=split, activity=activity)
        steps = 0
        for batch in loader:
            steps += 1
            assert batch.numel() > 0
            current = activity.current
            assert current is not None
            seen += batch[: current.num_valid].tolist()
            assert current.is_last == (steps == expected_steps)
        assert steps == expected_steps
    assert sorted(seen) == list(range(expected_samples))


def test_a_loader_without_batches_is_dealt_out_sample_by_sample() -> None:
    ranks = [
        _prepare(DataLoader(list(range(5)), batch_size=None), rank=rank, world=2, even_batches=False) for rank in (0, 1)
    ]
    assert [list(loader) for loader in ranks] == [[0, 2, 4], [1, 3]]
    assert [len(loader) for loader in ranks] == [3, 2]


def test_a_weighted_sampler_draws_the_same_on_every_rank() -> None:
    def one(rank: int) -> list[list[int]]:
        torch.manual_seed(rank)
        sampler = WeightedRandomSampler([1.0] * 12, num_samples=12)
        return _pass(_prepare(DataLoader(list(range(12)), batch_size=2, sampler=sampler), rank=rank, world=2))

    alone = _pass(_prepare(DataLoader(list(range(12)), batch_size=2, sampler=WeightedRandomSampler([1.0] * 12, 12))))
    assert [one(0)[0], one(1)[0]] == alone[:2]


def test_a_loader_that_is_sharded_already_is_refused() -> None:
    data = list(range(8))
    sampler: DistributedSampler[int] = DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(UsageError, match="DistributedSampler"):
        _prepare(DataLoader(data, sampler=sampler), world=2)


def test_dispatching_in_one_process_is_reading() -> None:
    dispatched = _prepare(_shuffled(), dispatch_batches=True)
    assert _pass(dispatched) == _pass(_prepare(_shuffled()))
    assert len(dispatched) == 10


def test_skipping_needs_a_prepared_loader() -> None:
    with pytest.raises(UsageError, match="skip_first_batches"):
        skip_first_batches(_shuffled(), 1)
