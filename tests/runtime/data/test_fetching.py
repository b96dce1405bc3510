"""Reading without workers: what torch's loader reads, by the same calls of the data set."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, MapDataPipe, Subset, TensorDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher  # type: ignore[attr-defined]  # torch's own reading

from runtime.data.fetching import make_fetch, reads_plainly
from tests.runtime.data.conftest import make_ranks


class _Asked(Dataset[int]):
    """Remembers how it was asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if index == 4:
            raise LookupError("sample 4 is broken")
        return index * 10


class _AskedTogether(_Asked):
    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(list(indices))
        return [index * 10 for index in indices]


class _Pipe(MapDataPipe[int]):
    def __getitem__(self, index: int) -> int:
        return index

    def __len__(self) -> int:
        return 4


def _same(mine: Any, torchs: Any) -> None:
    assert type(mine) is type(torchs)
    for one, other in zip(mine, torchs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True, check_stride=True)
        assert (one.is_conj(), one.is_neg(), one.requires_grad) == (
            other.is_conj(),
            other.is_neg(),
            other.requires_grad,
        )


def _torchs(loader: DataLoader[Any], indices: list[Any]) -> Any:
    return _MapDatasetFetcher(loader.dataset, True, loader.collate_fn, False).fetch(indices)


_COMPLEX = torch.randn(6, 2, dtype=torch.complex64)
_TENSORS: dict[str, torch.Tensor] = {
    "floats": torch.randn(6, 3),
    "one number each": torch.arange(6),
    "nothing each": torch.zeros(6, 0),
    "not finite": torch.tensor([float("nan"), float("inf"), -0.0, 1, 2, 3]),
    "bools": torch.arange(6) % 2 == 0,
    "bfloat16": torch.randn(6, 2).bfloat16(),
    "uint16": torch.arange(6).to(torch.uint16),
    "channels last": torch.randn(6, 3, 4, 4).to(memory_format=torch.channels_last),
    "transposed": torch.randn(3, 6).T,
    "expanded": torch.randn(1, 3).expand(6, 3),
    "conjugated": _COMPLEX.conj(),
    "negated": _COMPLEX.conj().imag,
    "with gradients": torch.randn(6, 2, requires_grad=True),
}


@pytest.mark.parametrize("tensor", _TENSORS.values(), ids=_TENSORS)
def test_rows_taken_together_are_the_rows_taken_one_by_one(tensor: torch.Tensor) -> None:
    loader = DataLoader(TensorDataset(tensor, torch.arange(6)), batch_size=3)
    _same(make_fetch(loader)([4, 0, 4]), _torchs(loader, [4, 0, 4]))


@pytest.mark.parametrize(
    "indices",
    [[-1, 2], [torch.tensor(3), torch.tensor(0)], [True, True], [[0, 1], [2, 3]], [slice(0, 2), slice(1, 3)], [5]],
    ids=["from the end", "tensors", "bools", "lists", "slices", "one"],
)
def test_whatever_indexes_a_tensor_does_here(indices: list[Any]) -> None:
    loader = DataLoader(TensorDataset(torch.randn(6, 3)), batch_size=2)
    _same(make_fetch(loader)(indices), _torchs(loader, indices))


@pytest.mark.parametrize("indices", [[0, 6], [1.5], ["a"], []], ids=["beyond", "float", "text", "none"])
def test_what_does_not_index_a_tensor_fails_as_it_does_in_torch(indices: list[Any]) -> None:
    loader = DataLoader(TensorDataset(torch.randn(6, 3)), batch_size=2)
    with pytest.raises(Exception) as expected:  # whichever torch raises
        _torchs(loader, indices)
    with pytest.raises(type(expected.value)):
        make_fetch(loader)(indices)


def test_rows_are_copies_and_changes_of_the_data_are_seen() -> None:
    tensor = torch.zeros(4, 2)
    fetch = make_fetch(DataLoader(TensorDataset(tensor), batch_size=2))
    fetch([0, 1])[0].fill_(9)
    assert tensor.sum() == 0
    tensor.fill_(5)
    assert fetch([0, 1])[0].eq(5).all()


def test_a_subclass_and_a_collate_fn_of_ones_own_are_asked() -> None:
    class Doubled(TensorDataset):
        def __getitem__(self, index: Any) -> Any:
            return tuple(2 * tensor for tensor in super().__getitem__(index))

    data = Doubled(torch.arange(4))
    assert make_fetch(DataLoader(data, batch_size=2))([1, 3])[0].tolist() == [2, 6]
    own: DataLoader[Any] = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, collate_fn=len)
    assert make_fetch(own)([1, 2, 3]) == 3


def test_samples_are_asked_for_one_by_one_or_together_as_the_data_set_can() -> None:
    single, together = _Asked(), _AskedTogether()
    assert make_fetch(DataLoader(single, batch_size=2))([3, 1]).tolist() == [30, 10]
    assert make_fetch(DataLoader(together, batch_size=2))([3, 1]).tolist() == [30, 10]
    assert make_fetch(DataLoader(Subset(together, [4, 3, 2]), batch_size=2))([0, 2]).tolist() == [40, 20]
    assert make_fetch(DataLoader(together, batch_size=None))([3]) == 30
    assert single.asked == [3, 1]
    assert together.asked == [[3, 1], [4, 2], 3]


def test_what_a_data_set_raises_comes_through_with_the_batches_before_it_yielded() -> None:
    (rank,) = make_ranks(lambda: DataLoader(_Asked(), batch_size=2), 1)
    with pytest.raises(LookupError, match="sample 4 is broken"):
        rank.take()
    assert rank.taken == [[0, 10], [20, 30]]


def test_samples_are_read_no_earlier_than_their_batch_is_asked_for() -> None:
    data = _Asked()
    (rank,) = make_ranks(lambda: DataLoader(data, batch_size=2), 1)
    rank.take(1)
    assert data.asked == [0, 1]


@pytest.mark.parametrize("world", [1, 2])
def test_a_sampler_may_fill_the_same_list_again(world: int) -> None:
    class OneList:
        def __iter__(self) -> Iterator[list[int]]:
            batch: list[int] = []
            for start in range(0, 12, 2):
                batch[:] = [start, start + 1]
                yield batch

        def __len__(self) -> int:
            return 6

    ranks = make_ranks(lambda: DataLoader(torch.arange(12), batch_sampler=OneList()), world)
    taken = [batch for rank in ranks for batch in rank.take().taken]
    assert sorted(taken) == [[start, start + 1] for start in range(0, 12, 2)]


def test_torchs_loader_reads_where_it_does_more_than_read() -> None:
    assert reads_plainly(DataLoader(_Asked()))
    assert not reads_plainly(DataLoader(_Asked(), num_workers=1))
    assert not reads_plainly(DataLoader(_Pipe()))
    (rank,) = make_ranks(lambda: DataLoader(_Pipe(), batch_size=2), 1)
    assert rank.take().taken == [[0, 1], [2, 3]]


def test_a_trace_shows_the_time_of_reading_under_torchs_name() -> None:
    (rank,) = make_ranks(lambda: DataLoader(TensorDataset(torch.arange(4)), batch_size=2), 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in rank.loader:
            pass
    shown = {event.key: event.count for event in profiler.key_averages()}
    assert shown["enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"] == 2
