"""The prepared loader: this rank's share of a DataLoader, on its device, with a position that can be resumed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from ..errors import UsageError
from ..options import DataLoaderConfiguration
from ..seeding import derive_seed
from ..state import PartialState
from .activity import Activity, Iteration, LoaderLimit
from .already_sharded import refuse_sharded
from .placement import placement
from .position import LoaderPosition
from .samplers import Sharding
from .seedable import BatchSamplerShard, seedable
from .sources import IndexedSource, Source, nominal_size
from .streams import StreamSource
from .uneven import UnevenPass


class PreparedLoader:
    """Iterates over this rank's batches; all that is not defined here is the wrapped loader's.

    The order of an epoch depends on (seed, epoch) alone. Each iteration is the next epoch, unless set_epoch says which.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        *,
        sharding: Sharding,
        make_source: Callable[[Sharding], Source],
        device: torch.device | None,
        non_blocking: bool,
        stateful: bool,
        seed: int,
        activity: Activity,
        limit: LoaderLimit | None,
    ) -> None:
        self.base_loader = loader
        self.sharding = sharding
        self._make_source = make_source
        self._source = make_source(sharding)
        self.position = LoaderPosition(seed, batch_size=sharding.batch_size, readers=[0] * self._source.num_readers)
        self._device = device
        self._placed = placement(device, non_blocking=non_blocking)
        self._stateful = stateful
        self._activity = activity
        self._limit = limit
        self._next_epoch = 0
        self._resumes = False

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(lambda: self.position if self._resumes and self._stateful else self._upcoming)

    def __len__(self) -> int:
        """Number of batches that this rank takes in a whole epoch."""
        return self._source.count(self.sharding.rank, self._upcoming)

    def lengths(self) -> list[int] | None:
        """Number of batches for each rank; None if it is not known beforehand."""
        try:
            return [self._source.count(rank, self.position) for rank in range(self.sharding.world_size)]
        except TypeError:
            return None

    def skipping(self, num_batches: int) -> Iterator[Any]:
        """The next epoch without its first batches; they are not loaded unless this is a stream."""
        if self._source.num_readers:
            return self._iterate(lambda: self._upcoming, skipped=num_batches)
        start = self.sharding.base_batches(num_batches)
        return self._iterate(lambda: self.position.at(self._next_epoch, start, in_progress=True))

    @contextmanager
    def evened(self, even: bool) -> Iterator[None]:
        """While inside, iterations that begin follow this value of even_batches."""
        usual = self.sharding, self._source
        self.sharding = replace(self.sharding, even=even)
        self._source = self._make_source(self.sharding)
        try:
            yield
        finally:
            self.sharding, self._source = usual

    def adopt(self, activity: Activity, limit: LoaderLimit | None) -> None:
        """Belong to another Accelerator from the next iteration on."""
        self._activity, self._limit = activity, limit

    @property
    def epoch(self) -> int:
        """The epoch under way, or else the next one."""
        return self.position.epoch

    def set_epoch(self, epoch: int) -> None:
        """Decide which epoch the next iteration is."""
        if epoch != self._next_epoch or not self._resumes:
            self._resumes = False
            self.position = self.position.at(epoch, in_progress=False)
        self._next_epoch = epoch

    @property
    def total_batch_size(self) -> int | None:
        """Samples that all ranks together take in a full micro-batch."""
        per_device = self.sharding.per_device
        return None if per_device is None else per_device * self.sharding.world_size

    @property
    def batch_sampler(self) -> Any:
        """How the next epoch's indices are dealt out to this rank; a stream's and an unbatched loader's is its own."""
        base = self.base_loader.batch_sampler
        if base is None or self._source.num_readers:
            return base
        return BatchSamplerShard(
            seedable(base, seed=self.position.seed, epoch=self._next_epoch),
            num_processes=self.sharding.world_size,
            process_index=self.sharding.rank,
            split_batches=self.sharding.split,
            even_batches=self.sharding.even,
        )

    @property
    def device(self) -> torch.device | None:
        return self._device

    def state_dict(self) -> dict[str, Any]:
        return self.position.as_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = self.position.resume_from(state)
        self._next_epoch = self.position.epoch
        self._resumes = self.position.in_progress

    def __getattr__(self, name: str) -> Any:
        if name == "base_loader":
            raise AttributeError(name)
        return getattr(self.base_loader, name)

    @property
    def _upcoming(self) -> LoaderPosition:
        return self.position.at(self._next_epoch, in_progress=True)

    def _iterate(self, begin: Callable[[], LoaderPosition], *, skipped: int = 0) -> Iterator[Any]:
        iteration = Iteration(self)
        if self._limit is not None and self._limit.ends(self, 0):
            return
        start = begin()
        self._next_epoch, self._resumes = start.epoch + 1, False
        position = self.position = replace(start, readers=list(start.readers))
        per_round = self.sharding.base_batches(1)
        uneven = self._uneven_pass()
        finished = False
        try:
            for data, num_valid, is_last, length, reader in self._source.batches(start):
                position.advance(per_round, reader)
                if skipped:
                    skipped -= 1
                    continue
                iteration.num_valid, iteration.is_last, iteration.length = num_valid, is_last, length
                self._activity.yielded(iteration)
                yield self._placed(data)
                if self._limit is not None and self._limit.ends(self, iteration.num_yielded):
                    break
            finished = True
        finally:
            self._activity.ended(iteration)
            if uneven is not None:
                uneven.leave(iteration.num_yielded)
        if uneven is not None and finished:
            uneven.wait_for_others(iteration.num_yielded, training=id(self) in self._activity.trained)
        if self.position is position:
            self.position = position.at(start.epoch + 1, in_progress=False)

    def _uneven_pass(self) -> UnevenPass | None:
        """Where ranks may take different numbers of batches."""
        sharding = self.sharding
        if sharding.even or sharding.world_size == 1 or self._activity.joining or not dist.is_initialized():
            return None
        guard = PartialState().guard
        return UnevenPass(guard, rank=sharding.rank, world_size=sharding.world_size) if guard is not None else None


class SkippedLoader:
    """A loader whose first batches are passed over, once."""

    def __init__(self, loader: PreparedLoader, num_batches: int) -> None:
        self.loader = loader
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        return self.loader.skipping(self.num_batches)

    def __len__(self) -> int:
        return max(0, len(self.loader) - self.num_batches)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)


def skip_first_batches(dataloader: PreparedLoader | SkippedLoader, num_batches: int = 0) -> SkippedLoader:
    """The prepared loader less its first `num_batches`, which are never loaded.

    Raises:
        UsageError: the loader was not prepared, or the number is no count.
    """
    count: Any = num_batches
    if not isinstance(count, Integral) or int(count) < 0:
        raise UsageError(f"skip_first_batches of {count!r} batches", allowed="an integer of at least 0")
    if isinstance(dataloader, SkippedLoader):
        return SkippedLoader(dataloader.loader, dataloader.num_batches + int(num_batches))
    if not isinstance(dataloader, PreparedLoader):
        raise UsageError(
            f"skip_first_batches of a {type(dataloader).__name__}",
            allowed="a loader that prepare() gave back",
            next_step="prepare the loader first",
        )
    return SkippedLoader(dataloader, int(num_batches))


def loader_seed(loader: DataLoader[Any], configured: int | None) -> int:
    """Where the shuffling of this loader begins on this rank: configured, the sampler's own, or torch's seed."""
    if configured is not None:
        return configured
    sampler = getattr(loader, "sampler", None)
    own = getattr(sampler, "generator", None) or loader.generator
    return own.initial_seed() if isinstance(own, torch.Generator) else torch.initial_seed()


def prepare_loader(
    loader: DataLoader[Any],
    *,
    rank: int,
    world_size: int,
    device: torch.device | None,
    configuration: DataLoaderConfiguration,
    seed: int,
    index: int,
    activity: Activity,
    limit: LoaderLimit | None,
) -> PreparedLoader:
    """Shard a loader.

    Args:
        seed: the same on every rank.
        index: of the loader in its Accelerator, so that two loaders shuffle differently.

    Raises:
        ConfigurationError: the configuration does not fit the loader.
        UsageError: the loader is sharded already.
    """
    refuse_sharded(loader)
    is_stream = isinstance(loader.dataset, IterableDataset)
    sharding = Sharding(
        rank=rank,
        world_size=world_size,
        batch_size=_nominal_size(loader, is_stream, configuration.split_batches),
        split=configuration.split_batches,
        even=configuration.even_batches,
        drop_last=bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last)),
    )
    return PreparedLoader(
        loader,
        sharding=sharding,
        make_source=lambda chosen: _source(loader, chosen, is_stream, configuration.dispatch_batches),
        device=device,
        non_blocking=configuration.non_blocking,
        stateful=configuration.use_stateful_dataloader,
        seed=derive_seed(seed, index),
        activity=activity,
        limit=limit,
    )


def _source(loader: DataLoader[Any], sharding: Sharding, is_stream: bool, dispatch: bool | None) -> Source:
    if not dispatch or sharding.world_size == 1:
        return StreamSource(loader, sharding) if is_stream else IndexedSource(loader, sharding)
    from .dispatch import DispatchedIndices, DispatchedSource

    return DispatchedSource(loader, sharding) if is_stream else DispatchedIndices(loader, sharding)


def _nominal_size(loader: DataLoader[Any], is_stream: bool, split: bool) -> int | None:
    if is_stream:
        return loader.batch_size
    size = nominal_size(loader)
    if size is None and split:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if isinstance(size, int) else None
