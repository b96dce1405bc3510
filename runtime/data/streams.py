"""One rank's batches of a stream: every rank reads all of it and keeps its share."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, default_convert, get_worker_info

from ..seeding import derive_seed
from .collation import collate_plain, is_default
from .fetching import reads_plainly, traced_all
from .position import LoaderPosition
from .randomness import SpareGenerators, apart
from .samplers import Sharding, Share, count_batches, deal_rounds
from .sources import SourceBatch, followed, set_epoch, singly, worker_options

_DRAW_NOTHING = (default_collate, default_convert)


class StreamSource:
    """Batches of an iterable data set, read in this process or in the loader's workers.

    Args:
        all_ranks: read the batches of all ranks.
    """

    def __init__(self, loader: DataLoader[Any], sharding: Sharding, *, all_ranks: bool = False) -> None:
        self.sharding = sharding
        self.num_readers = max(1, loader.num_workers)
        self._loader = loader
        self._stream = DealtStream(loader, sharding, all_ranks=all_ranks)
        self._generator = torch.Generator()
        options = worker_options(loader) | {"collate_fn": _as_is}
        if loader.num_workers > 0:
            options["worker_init_fn"] = _WorkerStart(loader.worker_init_fn)
        self._inner: DataLoader[Any] = DataLoader(self._stream, batch_size=None, generator=self._generator, **options)
        self._reads_here = reads_plainly(loader)

    def batches(self, position: LoaderPosition) -> Iterator[SourceBatch]:
        return with_last(batch for (batch,) in self.read(position) if batch is not None)

    def read(self, position: LoaderPosition) -> Iterator[list[SourceBatch | None]]:
        """The batches of each round: of all ranks, or of this one alone."""
        self._stream.begin(position)
        self._generator.manual_seed(derive_seed(position.seed, position.epoch, "workers"))
        return filter(None, traced_all(self._stream) if self._reads_here else self._inner)

    def count(self, rank: int, position: LoaderPosition) -> int:  # noqa: ARG002  # of the protocol
        return stream_count(self._loader, replace(self.sharding, rank=rank))


class DealtStream(IterableDataset[Any]):
    """Rounds of a stream, collated where they are read (in a worker process, if there are any)."""

    def __init__(self, loader: DataLoader[Any], sharding: Sharding, *, all_ranks: bool) -> None:
        self.dataset: Any = loader.dataset
        self._batch_size = loader.batch_size
        self._drop_last = loader.drop_last
        self._collate: Callable[[Any], Any] = loader.collate_fn
        self._spare = None if self._collate in _DRAW_NOTHING else SpareGenerators()
        self._sharding = sharding
        self._ranks = range(sharding.world_size) if all_ranks else range(sharding.rank, sharding.rank + 1)
        # seed, epoch, turn, and batches taken from each reader: workers that stay see what is written here.
        self._begun = torch.zeros(3 + max(1, loader.num_workers), dtype=torch.int64)
        if loader.persistent_workers:
            self._begun.share_memory_()  # type: ignore[no-untyped-call]  # untyped in torch

    def begin(self, position: LoaderPosition) -> None:
        """Let the next pass begin at this position."""
        # Here first: data sets that share their epoch among processes cannot be told by several workers at a time.
        set_epoch(self.dataset, position.epoch)
        self._begun.copy_(torch.tensor([position.seed, position.epoch, position.turn, *position.readers]))

    def __iter__(self) -> Iterator[list[SourceBatch | None]]:
        seed, epoch, turn, *taken = self._begun.tolist()
        worker = get_worker_info()
        reader = 0 if worker is None else worker.id
        if reader < turn:
            yield []  # the loader asks its workers in turn from the first one on, but the resumed turn comes later
        set_epoch(self.dataset, epoch)
        start = taken[reader]
        rounds = deal_rounds(self._base(), self._sharding, start=start)
        begun = start // self._sharding.base_batches(1)
        numbers = count(begun)
        collate = collate_plain if worker is None and is_default(self._collate) else self._collate

        def collated(shares: list[Share[Any] | None]) -> list[SourceBatch | None]:
            number = next(numbers)
            batches: list[SourceBatch | None] = []
            for rank in self._ranks:
                if (share := shares[rank]) is not None and self._spare is not None:
                    # What collate_fn draws is not what the next samples are drawn from, which all ranks read alike.
                    self._spare.seed(derive_seed(seed, epoch, "collate", reader, number, rank))
                batches.append(None if share is None else self._batch(share, collate, reader))
            return batches

        yield from apart(rounds, derive_seed(seed, epoch, "stream", reader), finish=collated)

    def _base(self) -> Iterator[list[Any]]:
        if self._batch_size is None:
            return singly(self.dataset)
        return batched(self.dataset, self._batch_size, self._drop_last)

    def _batch(self, share: Share[Any], collate: Callable[[Any], Any], reader: int) -> SourceBatch:
        whole, length = self._batch_size is None, len(share.items)
        data = collate(share.items[0] if whole else share.items)
        num_valid = None if share.num_valid == length else share.num_valid
        return SourceBatch(data, num_valid, False, None if whole else length, reader)


def with_last(batches: Iterable[SourceBatch]) -> Iterator[SourceBatch]:
    """Look one batch ahead, since a stream does not say when it ends."""
    for (data, num_valid, _, length, reader), following in followed(batches):
        yield SourceBatch(data, num_valid, following is None, length, reader)


def batched(stream: Iterable[Any], size: int, drop_last: bool) -> Iterator[list[Any]]:
    iterator = iter(stream)
    while batch := list(islice(iterator, size)):
        if len(batch) == size or not drop_last:
            yield batch


def stream_count(loader: DataLoader[Any], sharding: Sharding) -> int:
    """From the stream's own length; TypeError if it has none."""
    length = len(loader.dataset)  # type: ignore[arg-type]  # raises TypeError where there is no length
    size = loader.batch_size or 1
    full, rest = divmod(length, size)
    num_batches = full + (rest > 0 and not loader.drop_last)
    return count_batches(num_batches, rest if rest and not loader.drop_last else size, sharding)


class _WorkerStart:
    """The user's worker_init_fn, to which get_worker_info() shows the user's data set."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self._own = own

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.dataset)
        if self._own is not None:
            self._own(worker)


def _as_is(data: Any) -> Any:
    return data
