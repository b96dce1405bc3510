"""Where a loader stands: epoch and batches, as plain data for a checkpoint."""

from dataclasses import asdict, dataclass
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
    """

    seed: int
    epoch: int = 0
    batches: int = 0
    batch_size: int | None = None
    in_progress: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def resume_from(self, saved: dict[str, Any]) -> "LoaderPosition":
        """This loader's position after loading what as_dict wrote, perhaps with another batch size.

        Raises:
            CheckpointError: the fields are not those of a position, or the place is inside a batch of the new size.
        """
        try:
            old = LoaderPosition(**saved)
        except TypeError as error:
            raise CheckpointError(f"a loader position with fields {sorted(saved)}", allowed="one saved here") from error
        batches = old.batches
        if old.in_progress and old.batch_size != self.batch_size:
            if old.batch_size is None or self.batch_size is None or (batches * old.batch_size) % self.batch_size:
                raise CheckpointError(
                    f"the checkpoint lies inside an epoch after {batches} batches of {old.batch_size}, "
                    f"and the loader now has batch size {self.batch_size}",
                    allowed="a batch size that ends a batch at the same sample",
                    next_step="use the former batch size, or resume from a checkpoint at an epoch's end",
                )
            batches = batches * old.batch_size // self.batch_size
        return LoaderPosition(old.seed, old.epoch, batches, self.batch_size, old.in_progress)
