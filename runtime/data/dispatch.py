"""A stream that rank 0 alone reads, dealing its batches out to the others."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, tee
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from .samplers import Sharding
from .sources import DealtStream, SourceBatch, set_epoch, stream_count, with_last, worker_options


class DispatchedSource:
    """Rank 0 reads every share of a round and scatters them; ranks without a share in the last round end."""

    def __init__(self, loader: DataLoader[Any], sharding: Sharding) -> None:
        self.sharding = sharding
        self._loader = loader

    def batches(self, *, seed: int, epoch: int, start: int) -> Iterator[SourceBatch]:  # noqa: ARG002  # of the protocol
        set_epoch(self._loader.dataset, epoch)
        skipped = start // self.sharding.base_batches(1)
        shares = self._all_ranks(skipped) if self.sharding.rank == 0 else None
        while True:
            received: list[SourceBatch | None] = [None]
            dealt = None if shares is None else [next(share, None) for share in shares]
            dist.scatter_object_list(received, dealt, src=0)
            batch = received[0]
            if batch is None:
                return
            yield batch
            if batch.is_last:
                return

    def count(self, rank: int) -> int:
        return stream_count(self._loader, replace(self.sharding, rank=rank))

    def _all_ranks(self, skipped: int) -> list[Iterator[SourceBatch]]:
        options = worker_options(self._loader) | {"collate_fn": _listed}
        reader: DataLoader[Any] = DataLoader(self._loader.dataset, batch_size=1, generator=torch.Generator(), **options)
        copies = tee((batch[0] for batch in reader), self.sharding.world_size)
        shares = []
        for rank, samples in enumerate(copies):
            stream = DealtStream(self._loader, replace(self.sharding, rank=rank), samples=samples)
            shares.append(with_last(islice(iter(stream), skipped, None)))
        return shares


def _listed(samples: Any) -> Any:
    return samples
