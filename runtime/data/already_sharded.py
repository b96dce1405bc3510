"""Loaders that are sharded before prepare() sees them: sharding them again would lose most of the data."""

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from ..errors import UsageError

_COUNTS = ("num_replicas", "num_processes")
"""What samplers and data sets that shard call their number of ranks."""


def refuse_sharded(loader: DataLoader[Any]) -> None:
    """Find a sampler or data set that keeps one rank's share.

    Raises:
        UsageError: there is one, and its share is not the whole.
    """
    for thing in _parts(loader):
        number = next((n for name in _COUNTS if isinstance(n := getattr(thing, name, None), int)), 1)
        node = getattr(getattr(thing, "_distributed", None), "world_size", 1)  # split_dataset_by_node of `datasets`
        if max(number, node) > 1:
            raise UsageError(
                f"the loader has a {type(thing).__name__} that shards over {max(number, node)} processes already, "
                "so its data would be sharded twice",
                allowed="a plain DataLoader (shuffle=True or False) over the whole data set",
                next_step="remove the DistributedSampler (or split_dataset_by_node); prepare() shards the loader",
            )


def _parts(loader: DataLoader[Any]) -> Iterator[Any]:
    thing: Any
    for thing in (loader.sampler, loader.batch_sampler):
        while thing is not None:
            yield thing
            thing = getattr(thing, "batch_sampler", None) or getattr(thing, "sampler", None)
    thing = loader.dataset
    while thing is not None:
        yield thing
        thing = getattr(thing, "dataset", None)
