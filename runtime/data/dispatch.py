"""Data that rank 0 alone reads, dealing the batches out to the others."""

from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from ..errors import DistributedError
from ..state import PartialState
from .position import LoaderPosition
from .samplers import Sharding
from .sources import IndexedSource, SourceBatch
from .streams import StreamSource
from .uneven import UnevenPass

_OPERATION = "the next dispatched batch"

Round = tuple[list[SourceBatch | None], bool]
"""What to scatter: for each rank its next batch (None if it has no more), and whether another round follows."""


class DispatchedSource(StreamSource):
    """Rank 0 scatters a round after the other; ranks without a batch in the last round take part in it too."""

    def __init__(self, loader: DataLoader[Any], sharding: Sharding) -> None:
        super().__init__(loader, sharding, all_ranks=True)

    def batches(self, position: LoaderPosition) -> Iterator[SourceBatch]:
        return _received(self._rounds(position) if self.sharding.rank == 0 else None, self.sharding)

    def _rounds(self, position: LoaderPosition) -> Iterator[Round]:
        waiting: list[deque[SourceBatch]] = [deque() for _ in range(self.sharding.world_size)]
        source = iter(self.read(position))
        ended = False
        while True:
            while not ended and any(len(queue) < 2 for queue in waiting):
                dealt = next(source, None)
                ended = dealt is None
                for queue, batch in zip(waiting, dealt or (), strict=False):
                    if batch is not None:
                        queue.append(batch)
            ready = [queue.popleft() if queue else None for queue in waiting]
            batches = [b and b._replace(is_last=not queue) for b, queue in zip(ready, waiting, strict=True)]
            yield batches, any(waiting)


class DispatchedIndices:
    """A data set with indices that rank 0 alone reads, with a set of workers for each rank's share."""

    num_readers = 0

    def __init__(self, loader: DataLoader[Any], sharding: Sharding) -> None:
        self.sharding = sharding
        self._own = IndexedSource(loader, sharding)
        ranks = range(sharding.world_size) if sharding.rank == 0 else ()
        self._shares = [IndexedSource(loader, replace(sharding, rank=rank)) for rank in ranks]

    def batches(self, position: LoaderPosition) -> Iterator[SourceBatch]:
        return _received(self._rounds(position) if self.sharding.rank == 0 else None, self.sharding)

    def count(self, rank: int, position: LoaderPosition) -> int:
        return self._own.count(rank, position)

    def _rounds(self, position: LoaderPosition) -> Iterator[Round]:
        shares = [share.batches(position) for share in self._shares]
        while True:
            batches = [next(share, None) for share in shares]
            yield batches, any(batch is not None and not batch.is_last for batch in batches)


def _received(rounds: Iterator[Round] | None, sharding: Sharding) -> Iterator[SourceBatch]:
    """This rank's batches, for as many rounds as rank 0 deals."""
    guard = PartialState().guard
    uneven = UnevenPass(guard, rank=sharding.rank, world_size=sharding.world_size) if guard is not None else None
    more, done = True, False
    while more:
        if done and uneven is not None:
            uneven.attend_until(_OPERATION)  # the others may gather metrics before they come to the next round
        batch, more = _receive(rounds)
        if batch is not None:
            done = batch.is_last
            yield batch


def _receive(rounds: Iterator[Round] | None) -> tuple[SourceBatch | None, bool]:
    """This rank's batch (None if it has no more), and whether another round follows.

    Raises:
        DistributedError: rank 0 could not read, or a rank has left the loop.
    """
    guard = PartialState().guard
    dealt: Round | None = None
    error: Exception | None = None
    if rounds is not None:
        try:
            with nullcontext() if guard is None else guard.busy():
                dealt = next(rounds)
        except Exception as raised:  # whatever the data set raises: the others must hear of it
            error = raised
    said = [None if error is None else f"{type(error).__name__}: {error}"]
    if guard is not None:
        said = guard.meet(_OPERATION, details=said[0])
    if error is not None:
        raise error
    if said[0] is not None:
        raise DistributedError(f"rank 0 could not read {_OPERATION}: {said[0]}", next_step="see rank 0's log")
    received: list[tuple[SourceBatch | None, bool]] = [(None, False)]
    sent = None if dealt is None else [(batch, dealt[1]) for batch in dealt[0]]
    dist.scatter_object_list(received, sent, src=0)
    return received[0]
