"""A random sampler whose order depends on a seed and the epoch alone."""

from collections.abc import Iterator
from copy import copy
from typing import Any

import torch
from torch.utils.data import RandomSampler

from ..seeding import derive_seed


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
