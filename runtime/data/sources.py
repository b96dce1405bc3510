"""One rank's batches of an epoch: from data sets with indices, and from streams."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, Protocol

import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset

from ..errors import UsageError
from ..seeding import derive_seed
from .samplers import Sharding, count_batches, shard_batches


class SourceBatch(NamedTuple):
    """A collated batch and its bookkeeping; num_valid None means that all samples count."""

    data: Any
    num_valid: int | None
    is_last: bool


class Source(Protocol):
    """Yields one rank's batches."""

    sharding: Sharding

    def batches(self, *, seed: int, epoch: int, start: int) -> Iterator[SourceBatch]:
        """Batches of an epoch after `start` dealt-out batches."""
        ...

    def count(self, rank: int) -> int:
        """Number of batches that `rank` takes in an epoch; TypeError if unknown."""
        ...


def refuse_distributed_sampler(loader: DataLoader[Any]) -> None:
    """A loader that is sharded already must not be sharded again.

    Raises:
        UsageError: the loader has a DistributedSampler.
    """
    if isinstance(loader.sampler, DistributedSampler):
        raise UsageError(
            "the loader has a DistributedSampler, so its data would be sharded twice",
            allowed="a plain DataLoader (shuffle=True or False)",
            next_step="remove the DistributedSampler; prepare() shards the loader",
        )


class IndexedSource:
    """Batches of a data set with indices. Whether a batch is the last is known without loading the next."""

    def __init__(self, loader: DataLoader[Any], sharding: Sharding) -> None:
        refuse_distributed_sampler(loader)
        self.sharding = sharding
        self._loader = loader
        self._dealt = _DealtBatches(loader, sharding)
        self._generator = torch.Generator()
        batched = loader.batch_sampler is not None
        place: dict[str, Any] = (
            {"batch_sampler": self._dealt} if batched else {"sampler": _Single(self._dealt), "batch_size": None}
        )
        self._inner: DataLoader[Any] = DataLoader(
            loader.dataset, generator=self._generator, **place, **worker_options(loader)
        )

    def batches(self, *, seed: int, epoch: int, start: int) -> Iterator[SourceBatch]:
        self._dealt.begin(seed=seed, epoch=epoch, start=start)
        # Workers' seeds come from here, so that starting an epoch draws nothing from the global generator.
        self._generator.manual_seed(derive_seed(seed, epoch, start, self.sharding.rank))
        for data in self._inner:
            num_valid, is_last = self._dealt.notes.popleft()
            yield SourceBatch(data, num_valid, is_last)

    def count(self, rank: int) -> int:
        base = self._loader.batch_sampler
        if base is None:
            return count_batches(len(self._loader.sampler), 1, replace(self.sharding, rank=rank))  # type: ignore[arg-type]
        return count_batches(len(base), _last_size(base), replace(self.sharding, rank=rank))  # type: ignore[arg-type]


class StreamSource:
    """Batches of an iterable data set; each rank reads the whole stream and keeps its share."""

    def __init__(self, loader: DataLoader[Any], sharding: Sharding) -> None:
        self.sharding = sharding
        self._loader = loader
        self._stream = DealtStream(loader, sharding)
        self._generator = torch.Generator()
        options = worker_options(loader) | {"collate_fn": _as_is}
        self._inner: DataLoader[Any] = DataLoader(self._stream, batch_size=None, generator=self._generator, **options)

    def batches(self, *, seed: int, epoch: int, start: int) -> Iterator[SourceBatch]:
        set_epoch(self._loader.dataset, epoch)
        self._generator.manual_seed(derive_seed(seed, epoch, start, self.sharding.rank))
        skipped = start // self.sharding.base_batches(1)
        return with_last(islice(iter(self._inner), skipped, None))

    def count(self, rank: int) -> int:
        return stream_count(self._loader, replace(self.sharding, rank=rank))


class DealtStream(IterableDataset[Any]):
    """The rank's share of a stream, collated where it is read (in a worker process, if there are any)."""

    def __init__(self, loader: DataLoader[Any], sharding: Sharding, *, samples: Iterable[Any] | None = None) -> None:
        self._dataset: Any = loader.dataset if samples is None else samples
        self._batch_size = loader.batch_size
        self._drop_last = loader.drop_last
        self._collate: Callable[[Any], Any] = loader.collate_fn
        self._sharding = sharding

    def __iter__(self) -> Iterator[tuple[Any, int | None]]:
        whole = self._batch_size is None
        stream = self._dataset
        base = ([item] for item in stream) if whole else batched(stream, self._batch_size or 1, self._drop_last)
        for share in shard_batches(base, self._sharding):
            if whole:
                yield self._collate(share.items[0]), None if share.num_valid else 0
            else:
                yield self._collate(share.items), share.num_valid


def with_last(pairs: Iterable[tuple[Any, int | None]]) -> Iterator[SourceBatch]:
    """Look one batch ahead, since a stream does not say when it ends."""
    iterator = iter(pairs)
    held = next(iterator, None)
    while held is not None:
        following = next(iterator, None)
        yield SourceBatch(held[0], held[1], following is None)
        held = following


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


def worker_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """What a rebuilt loader takes over from the user's."""
    names = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"]
    if loader.num_workers > 0:
        names += ["prefetch_factor", "persistent_workers"]
    return {name: getattr(loader, name) for name in names}


def set_epoch(thing: Any, epoch: int) -> None:
    """Tell samplers and data sets that listen which epoch begins."""
    if callable(getattr(thing, "set_epoch", None)):
        thing.set_epoch(epoch)


class _DealtBatches:
    """A batch sampler that yields this rank's batches and notes what is said of each."""

    def __init__(self, loader: DataLoader[Any], sharding: Sharding) -> None:
        self._loader = loader
        self._sharding = sharding
        self._seed = self._epoch = self._start = 0
        self.notes: deque[tuple[int | None, bool]] = deque()

    def begin(self, *, seed: int, epoch: int, start: int) -> None:
        self._seed, self._epoch, self._start = seed, epoch, start

    def __iter__(self) -> Iterator[list[int]]:
        self.notes = deque()
        return self._deal(self.notes)

    def _deal(self, notes: deque[tuple[int | None, bool]]) -> Iterator[list[int]]:
        shares = shard_batches(self._base(), self._sharding, start=self._start)
        held = next(shares, None)
        while held is not None:
            following = next(shares, None)
            whole = held.num_valid == len(held.items)
            notes.append((None if whole else held.num_valid, following is None))
            yield held.items
            held = following

    def _base(self) -> Iterable[list[int]]:
        seed = derive_seed(self._seed, self._epoch)
        base = self._loader.batch_sampler
        if base is None:
            return ([index] for index in _seeded(self._loader.sampler, seed, self._epoch))
        dealt = _seeded(base, seed, self._epoch)
        if getattr(dealt, "sampler", None) is not None:
            dealt.sampler = _seeded(dealt.sampler, seed, self._epoch)
        return dealt  # type: ignore[no-any-return]  # a batch sampler iterates over lists


class _Single:
    """The sampler of a loader without batches: one index at a time."""

    def __init__(self, dealt: _DealtBatches) -> None:
        self._dealt = dealt

    def __iter__(self) -> Iterator[int]:
        return (batch[0] for batch in iter(self._dealt))


def _seeded(sampler: Any, seed: int, epoch: int) -> Any:
    """A copy of the sampler whose randomness depends on the seed alone."""
    own = copy(sampler)
    if hasattr(own, "generator"):
        own.generator = torch.Generator().manual_seed(seed)
    set_epoch(own, epoch)
    return own


def _last_size(base: Any) -> int | None:
    if type(base) is not BatchSampler:
        return None
    rest = len(base.sampler) % base.batch_size  # type: ignore[arg-type]  # count() raises TypeError without a length
    return base.batch_size if base.drop_last or not rest else rest


def _as_is(data: Any) -> Any:
    return data
