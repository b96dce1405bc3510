"""The ranks' loaders are to be over the same data: shares of different data would overlap, and leave some of it out."""

from collections.abc import Iterator, Sequence
from typing import Any
from zlib import crc32

import numpy as np
from torch.utils.data import DataLoader

from ..errors import UsageError

Description = list[list[Any]]
"""For the data set, what it is a part of, and the sampler: type, length and checksum of indices (None if unknown)."""


def describe(loader: DataLoader[Any]) -> Description:
    """What can be told of a loader's data without reading any."""
    return [[type(thing).__name__, _length(thing), _checksum(thing)] for thing in _parts(loader)]


def require_same(described: Sequence[Description]) -> None:
    """Compare what describe() said on each rank.

    Raises:
        UsageError: it differs.
    """
    different = [
        place for place, parts in enumerate(zip(*described, strict=False)) if any(p != parts[0] for p in parts)
    ]
    if not different and len({len(one) for one in described}) == 1:
        return
    place = different[0] if different else 0
    words = "; ".join(f"rank {rank}: {_words(one[place])}" for rank, one in enumerate(described))
    raise UsageError(
        f"the ranks prepare loaders over different data: {words}",
        allowed="the same data on every rank, of which prepare() gives each its share",
        next_step="choose the samples alike: set_seed(42) before random_split, or a generator of one seed",
    )


def _words(part: list[Any]) -> str:
    name, length, checksum = part
    size = "" if length is None else f" of {length}"
    return f"{name}{size}" + ("" if checksum is None else f" (indices {checksum:08x})")


def _parts(loader: DataLoader[Any]) -> Iterator[Any]:
    thing: Any = loader.dataset
    while thing is not None:
        yield thing
        thing = getattr(thing, "dataset", None)
    yield getattr(loader.batch_sampler, "sampler", loader.sampler)


def _length(thing: Any) -> int | None:
    try:
        return len(thing)
    except Exception:  # whatever a length of the user's raises: it is asked for where it is needed
        return None


def _checksum(thing: Any) -> int | None:
    indices = getattr(thing, "indices", None)
    if not isinstance(indices, Sequence | np.ndarray) or isinstance(indices, str):
        return None
    try:
        return crc32(np.asarray(indices, dtype=np.int64).tobytes())
    except (TypeError, ValueError, OverflowError):
        return None
