"""One rank's batches of an epoch of a data set with indices, and what all sources have in common."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice, tee
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from ..seeding import derive_seed
from .fetching import make_fetch, reads_plainly, traced
from .position import LoaderPosition
from .randomness import apart, reseeded, seed_generators
from .samplers import Sharding, count_batches, shard_batches
from .seedable import SeedableRandomSampler

T = TypeVar("T")
Notes = tuple[int | None, bool, int | None]
"""What SourceBatch says of a batch beside its data: num_valid, is_last, length."""

_DRAW_FROM_THEIR_OWN = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    SeedableRandomSampler,
)


class SourceBatch(NamedTuple):
    """A collated batch and its bookkeeping.

    Attributes:
        num_valid: how many samples count; None means all.
        length: number of samples; None if unknown (a batch that the data set has made).
        reader: the worker that read it from a stream.
    """

    data: Any
    num_valid: int | None
    is_last: bool
    length: int | None = None
    reader: int = 0


class Source(Protocol):
    """Yields one rank's batches."""

    sharding: Sharding
    num_readers: int
    """Processes of this rank that read a stream; 0 if batches are chosen by index."""

    def batches(self, position: LoaderPosition) -> Iterator[SourceBatch]:
        """Batches of the position's epoch from there on."""
        ...

    def count(self, rank: int, position: LoaderPosition) -> int:
        """Number of batches that `rank` takes in the position's epoch; TypeError if unknown."""
        ...


class IndexedSource:
    """Batches of a data set with indices. Whether a batch is the last is known without loading the next."""

    num_readers = 0

    def __init__(self, loader: DataLoader[Any], sharding: Sharding) -> None:
        self.sharding = sharding
        self._loader = loader
        self._workers = None if reads_plainly(loader) else _TorchReader(loader)

    def batches(self, position: LoaderPosition) -> Iterator[SourceBatch]:
        set_epoch(self._loader.dataset, position.epoch)
        if self._workers is None:
            return self._read_here(position)
        notes: deque[Notes] = deque()
        read = self._workers.read(self._plan(position, notes), derive_seed(position.seed, position.epoch, "workers"))
        return (SourceBatch(data, *notes.popleft()) for data in read)

    def count(self, rank: int, position: LoaderPosition) -> int:
        sharding = replace(self.sharding, rank=rank)
        base, sampler = self._loader.batch_sampler, self._loader.sampler
        if base is None:
            return count_batches(len(sampler), 1, sharding)  # type: ignore[arg-type]  # TypeError without a length
        num_batches = len(base)  # type: ignore[arg-type]  # likewise
        size = nominal_size(self._loader)
        if size is not None:
            rest = len(base.sampler) % size  # type: ignore[attr-defined]  # of a plain batch sampler
            return count_batches(num_batches, size if base.drop_last or not rest else rest, sharding)  # type: ignore[attr-defined]  # likewise
        if sharding.split and not sharding.even and sharding.world_size > 1:
            return sum(1 for _ in shard_batches(self._base(position), sharding))
        return count_batches(num_batches, None, sharding)

    def _read_here(self, position: LoaderPosition) -> Iterator[SourceBatch]:
        fetch = make_fetch(self._loader)
        for indices, notes in self._noted(position):
            with traced():
                data = fetch(indices)
            yield SourceBatch(data, *notes)

    def _plan(self, position: LoaderPosition, notes: deque[Notes]) -> Iterator[Any]:
        """What torch's loader is to read; what is to be said of each batch is put into `notes`."""
        batched, seeds = self._loader.batch_sampler is not None, self._loader.num_workers > 0
        number, per_round = position.batches, self.sharding.base_batches(1)
        for indices, noted in self._noted(position):
            notes.append(noted)
            if seeds:
                seed = derive_seed(position.seed, position.epoch, number, self.sharding.rank)
                yield SeededIndices(indices, seed) if batched else SeededIndex(indices[0], seed)
            else:
                yield indices if batched else indices[0]
            number += per_round

    def _noted(self, position: LoaderPosition) -> Iterator[tuple[list[int], Notes]]:
        """The indices of this rank's batches, and what is to be said of them."""
        batched = self._loader.batch_sampler is not None
        shares = shard_batches(self._base(position), self.sharding, start=position.batches)
        for (indices, num_valid), following in followed(shares):
            length = len(indices)
            valid = None if num_valid == length else num_valid
            yield indices, (valid, following is None, length if batched else None)

    def _base(self, position: LoaderPosition) -> Iterator[list[int]]:
        seed, epoch = derive_seed(position.seed, position.epoch), position.epoch
        base = self._loader.batch_sampler
        if base is None:
            return _indices(_following(self._loader.sampler, seed, epoch), seed, through=singly)
        dealt = _following(base, seed, epoch)
        inner = getattr(dealt, "sampler", None)
        if inner is not None:
            dealt.sampler = _following(inner, seed, epoch)
        if type(base) is not BatchSampler:
            return _indices(dealt, seed)

        def in_batches(indices: Iterator[Any]) -> Iterator[Any]:
            dealt.sampler = indices
            return iter(dealt)

        return _indices(dealt.sampler, seed, through=in_batches)


class _TorchReader:
    """A loader of torch that reads what it is told, in worker processes or with memory pinned."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._planned = _Planned()
        self._generator = torch.Generator()
        batched = loader.batch_sampler is not None
        place: dict[str, Any] = {"batch_sampler" if batched else "sampler": self._planned}
        if not batched:
            place["batch_size"] = None
        options = worker_options(loader)
        if callable(getattr(loader.dataset, "set_epoch", None)):
            options.pop("persistent_workers", None)  # a worker that stays would not hear of the next epoch
        self._inner: DataLoader[Any] = DataLoader(loader.dataset, generator=self._generator, **place, **options)

    def read(self, plan: Iterator[Any], seed: int) -> Iterator[Any]:
        """The data of the batches (or samples) that the plan names; workers' seeds come from `seed`."""
        self._planned.begin(plan)
        self._generator.manual_seed(seed)  # so that starting an epoch draws nothing from the global generator
        return iter(self._inner)


class SeededIndices(list[int]):
    """Indices of a batch on their way to a worker, which seeds its generators when they arrive.

    So what the data set and collate_fn draw there depends on the batch alone: not on the worker, nor on the batches
    before it, which a resumed training does not load.
    """

    def __init__(self, indices: Iterable[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> Any:
        return _arrived, (list(self), self.seed)


class SeededIndex:
    """The same for a loader without batches."""

    def __init__(self, index: int, seed: int) -> None:
        self.index = index
        self.seed = seed

    def __reduce__(self) -> Any:
        return _arrived, (self.index, self.seed)


def _arrived(indices: Any, seed: int) -> Any:
    seed_generators(seed)
    return indices


def nominal_size(loader: DataLoader[Any]) -> int | None:
    """Samples of a full batch; None if the batch sampler decides, or if there are no batches."""
    base = loader.batch_sampler
    if loader.batch_size is not None:
        return loader.batch_size
    return base.batch_size if type(base) is BatchSampler else None


def worker_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """What a rebuilt loader takes over from the user's."""
    names = ["num_workers", "collate_fn", "timeout", "worker_init_fn", "multiprocessing_context"]
    if loader.num_workers > 0:
        names += ["prefetch_factor", "persistent_workers"]
    options = {name: getattr(loader, name) for name in names}
    # Without an accelerator there is nothing to pin for, and torch would warn.
    return options | {"pin_memory": loader.pin_memory and torch.accelerator.is_available()}


def singly(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Each item as a batch of its own; nothing is asked for before the first is."""
    for item in items:
        yield [item]


def followed(things: Iterable[T]) -> Iterator[tuple[T, T | None]]:
    """Each thing with the one after it (None after the last)."""
    current, ahead = tee(things)
    return zip(current, chain(islice(ahead, 1, None), (None,)), strict=False)


def set_epoch(thing: Any, epoch: int) -> None:
    """Tell samplers and data sets that listen which epoch begins."""
    if callable(getattr(thing, "set_epoch", None)):
        thing.set_epoch(epoch)


class _Planned:
    """The sampler of the inner loader: each pass takes the plan that was begun last."""

    def __init__(self) -> None:
        self._plan: Iterator[Any] = iter(())

    def begin(self, plan: Iterator[Any]) -> None:
        self._plan = plan

    def __iter__(self) -> Iterator[Any]:
        return self._plan


def _indices(sampler: Any, seed: int, *, through: Callable[[Iterator[Any]], Iterator[Any]] = iter) -> Iterator[Any]:
    """What comes of a sampler's elements, its draws from the global generators kept apart."""
    if type(sampler) in _DRAW_FROM_THEIR_OWN:
        return through(iter(sampler))
    return apart(sampler, seed, through=through)


def _following(sampler: Any, seed: int, epoch: int) -> Any:
    """A copy of the sampler whose randomness depends on seed and epoch alone."""
    own = reseeded(sampler, seed)
    set_epoch(own, epoch)
    return own
