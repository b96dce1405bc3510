"""Samplers whose order depends on a seed and the epoch alone, and one rank's share of a batch sampler."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from torch.utils.data import BatchSampler, RandomSampler

from ..seeding import derive_seed
from .samplers import Sharding, count_batches, shard_batches


class SeedableRandomSampler(RandomSampler):
    """Shuffles each epoch by (initial_seed, epoch), and goes on to the next epoch when one has ended.

    Args:
        data_seed: the seed; None takes torch's seed of now.
        options: RandomSampler's arguments. A `generator` is accepted, and not drawn from.
    """

    def __init__(self, *args: Any, data_seed: int | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.initial_seed = torch.initial_seed() if data_seed is None else data_seed
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        shuffled = copy(self)
        shuffled.generator = torch.Generator().manual_seed(derive_seed(self.initial_seed, self.epoch))
        yield from RandomSampler.__iter__(shuffled)
        self.epoch += 1

    def set_epoch(self, epoch: int) -> None:
        """Decide which epoch the next iteration is."""
        self.epoch = epoch


class BatchSamplerShard(BatchSampler):
    """The batches of indices that one rank takes from a batch sampler.

    Args:
        batch_sampler: deals out batches; the same on every rank.
        split_batches: every batch is cut into one piece per rank; else ranks take whole batches in turn.
        even_batches: all ranks take the same number of full batches, filled with the epoch's first samples.

    Raises:
        ConfigurationError: split_batches with a batch size that the number of processes does not divide.
    """

    def __init__(
        self,
        batch_sampler: Any,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        # No super().__init__: sampler, batch_size and drop_last are the wrapped one's.
        self.batch_sampler = batch_sampler
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.sampler = getattr(batch_sampler, "sampler", None)  # type: ignore[assignment]  # a custom one may have none
        self.batch_size = getattr(batch_sampler, "batch_size", None)  # type: ignore[assignment]  # sizes may vary
        self.drop_last = bool(getattr(batch_sampler, "drop_last", False))

    @property
    def sharding(self) -> Sharding:
        """The same as the runtime's own arithmetic sees it."""
        nominal = self.batch_size if self.split_batches or type(self.batch_sampler) is BatchSampler else None
        return Sharding(
            self.process_index, self.num_processes, nominal, self.split_batches, self.even_batches, self.drop_last
        )

    def __iter__(self) -> Iterator[list[int]]:
        return (share.items for share in shard_batches(self.batch_sampler, self.sharding))

    def __len__(self) -> int:
        """Number of this rank's batches.

        Raises:
            TypeError: the batch sampler has no length.
        """
        rest = None
        if type(self.batch_sampler) is BatchSampler:
            rest = len(self.batch_sampler.sampler) % self.batch_size  # type: ignore[arg-type]  # TypeError without one
            rest = self.batch_size if self.drop_last or not rest else rest
        return count_batches(len(self.batch_sampler), rest, self.sharding)


def seedable(batch_sampler: Any, *, seed: int, epoch: int) -> Any:
    """A copy whose random sampler is seedable; what shuffles otherwise stays as it is."""
    shown = copy(batch_sampler)
    sampler = getattr(shown, "sampler", None)
    if type(sampler) is RandomSampler:
        own = SeedableRandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples, data_seed=seed)
        own.set_epoch(epoch)
        shown.sampler = own
    return shown
