"""Where a loader stands: epoch and batches, as plain data for a checkpoint."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import CheckpointError


@dataclass
class LoaderPosition:
    """The place after the last batch that the loop took.

    Attributes:
        seed: of the shuffling; with `epoch` it decides the order.
        epoch: of the current or, if not `in_progress`, the next iteration.
        batches: dealt-out batches that all ranks together have taken in this epoch.
        batch_size: nominal size of a dealt-out batch; None if sizes vary.
        readers: for a stream, the part of `batches` that each of its reading workers gave; else empty.
        turn: the reader whose batch is next.
    """

    seed: int
    epoch: int = 0
    batches: int = 0
    batch_size: int | None = None
    in_progress: bool = False
    readers: list[int] = field(default_factory=list)
    turn: int = 0

    def advance(self, num_batches: int, reader: int) -> None:
        """All ranks together have taken these, and this rank's came from `reader`."""
        self.batches += num_batches
        if self.readers:
            self.readers[reader] += num_batches
            self.turn = (reader + 1) % len(self.readers)

    def at(self, epoch: int, batches: int = 0, *, in_progress: bool) -> "LoaderPosition":
        """A place in an epoch of the same loader, with no reader begun."""
        readers = [0] * len(self.readers)
        return replace(self, epoch=epoch, batches=batches, in_progress=in_progress, readers=readers, turn=0)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def resume_from(self, saved: dict[str, Any]) -> "LoaderPosition":
        """This loader's position after loading what as_dict wrote, perhaps with another batch size.

        Raises:
            CheckpointError: the fields are not those of a position, or the place is inside a batch of the new size,
                or inside an epoch that other workers read.
        """
        try:
            old = LoaderPosition(**saved)
        except TypeError as error:
            raise CheckpointError(f"a loader position with fields {sorted(saved)}", allowed="one saved here") from error
        if not old.in_progress:
            return replace(self.at(old.epoch, in_progress=False), seed=old.seed)
        if len(old.readers) != len(self.readers):
            raise CheckpointError(
                f"the checkpoint lies inside an epoch of a stream read by {len(old.readers)} processes of each rank, "
                f"and the loader now has {len(self.readers)}",
                allowed="the same data set and num_workers (0 and 1 are alike)",
                next_step="use the former num_workers, or resume from a checkpoint at an epoch's end",
            )
        batches = [self._in_own_size(count, old.batch_size) for count in [old.batches, *old.readers]]
        return replace(old, batches=batches[0], readers=batches[1:], batch_size=self.batch_size)

    def _in_own_size(self, batches: int, size: int | None) -> int:
        if size == self.batch_size:
            return batches
        if size is None or self.batch_size is None or (batches * size) % self.batch_size:
            raise CheckpointError(
                f"the checkpoint lies inside an epoch after {batches} batches of {size}, "
                f"and the loader now has batch size {self.batch_size}",
                allowed="a batch size that ends a batch at the same sample",
                next_step="use the former batch size, or resume from a checkpoint at an epoch's end",
            )
        return batches * size // self.batch_size
