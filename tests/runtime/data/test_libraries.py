"""Data sets and loaders of other libraries: Hugging Face datasets and torchdata."""

from itertools import chain
from typing import Any

import pytest
import torch
from datasets import Dataset as HfDataset
from datasets import IterableDataset as HfStream
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from runtime.errors import UsageError

# torchdata's constructor calls what this torch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def _table(count: int) -> HfDataset:
    return HfDataset.from_dict({"id": list(range(count)), "text": [f"row {i}" for i in range(count)]})


def _stream(count: int) -> Any:
    return _table(count).to_iterable_dataset(num_shards=4)


def _ids(samples: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([int(sample["id"]) for sample in samples])


def _flat(ranks: Any) -> list[int]:
    return list(chain.from_iterable(chain.from_iterable(rank.taken for rank in ranks)))


@pytest.mark.parametrize("loader", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("kind", ["table", "torch table", "stream", "torch stream"])
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_are_whole_shuffled_anew_and_resumable(ranks: Any, loader: Any, kind: str, workers: int) -> None:
    if workers and (loader is StatefulDataLoader or "torch" not in kind):
        return

    def build() -> Any:
        data = _stream(22).shuffle(seed=3, buffer_size=8) if "stream" in kind else _table(22)
        data = data.with_format("torch") if "torch" in kind else data
        shuffle = {} if "stream" in kind else {"shuffle": True}
        return loader(data, batch_size=2, collate_fn=_ids, num_workers=workers, **shuffle)

    two = ranks(build, 2)
    epochs = []
    for _ in range(2):
        for rank in two:
            rank.taken.clear()
            rank.take()
        assert sorted(_flat(two)) == list(range(22))
        epochs.append(_flat(two))
    assert epochs[0] != epochs[1]

    saving = ranks(build, 2)
    for rank in saving:
        rank.loader.set_epoch(1)
        rank.take(2)
    state = saving[0].loader.state_dict()
    for before, whole in zip(saving, two, strict=True):
        after = ranks(build, 2)[whole.loader.sharding.rank]
        after.loader.load_state_dict(state)
        assert before.taken + after.take().taken == whole.taken
    alone = ranks(build, 1)[0]
    alone.loader.load_state_dict(state)
    alone.take()
    assert sorted(_flat([*saving, alone])) == list(range(22))


def test_default_collating_and_split_batches(ranks: Any) -> None:
    table = _table(10).with_format("torch")
    (first, second) = ranks(lambda: StatefulDataLoader(table, batch_size=4), 2, split_batches=True)
    seen = [batch for rank in (first, second) for batch in rank.loader]
    assert [len(batch["text"]) for batch in seen] == [2] * 6
    assert len(first.loader) == len(second.loader) == 3
    assert {int(i) for batch in seen for i in batch["id"]} == set(range(10))


def _node(data: Any) -> Any:
    return split_dataset_by_node(data, rank=0, world_size=2)


class Sharded(IterableDataset[int]):
    """As accelerate's sharding data set names its fields."""

    def __init__(self) -> None:
        self.dataset, self.num_processes, self.process_index = range(8), 2, 0

    def __iter__(self) -> Any:
        return iter(self.dataset)


class ByRank:
    """A batch sampler of a third party."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, 2, False

    def __iter__(self) -> Any:
        return iter([])


@pytest.mark.parametrize(
    "build",
    [
        lambda: DataLoader(_node(_stream(8)), batch_size=2),
        lambda: DataLoader(Sharded(), batch_size=2),
        lambda: DataLoader(range(8), sampler=DistributedSampler(range(8), 2, 0)),  # type: ignore[arg-type]
        lambda: DataLoader(range(8), batch_sampler=ByRank(DistributedSampler(range(8), 2, 0))),  # type: ignore[arg-type]
    ],
)
def test_what_is_sharded_already_is_told_about(ranks: Any, build: Any) -> None:
    with pytest.raises(UsageError, match="shards over 2 processes already"):
        ranks(build, 2)


def test_a_distributed_sampler_of_one_process_shards_nothing(ranks: Any) -> None:
    sampler: Any = DistributedSampler(range(8), 1, 0)  # type: ignore[arg-type]
    two = ranks(lambda: DataLoader(range(8), batch_size=2, sampler=sampler), 2)  # type: ignore[arg-type]
    for rank in two:
        rank.take()
    assert sorted(_flat(two)) == list(range(8))
    assert isinstance(_stream(8).with_format("torch"), HfStream)
