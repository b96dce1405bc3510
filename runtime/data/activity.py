"""Which loaders are being iterated: the one that yielded last is the one that the loop's body works on."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..errors import UsageError


class LoaderLimit(Protocol):
    """Ends loaders early (in a smoke run)."""

    def ends(self, loader: Any, num_yielded: int) -> bool:
        """Whether this iteration, which has yielded so many batches, is to end now."""
        ...


@dataclass(eq=False)
class Iteration:
    """One pass over one loader.

    Attributes:
        num_valid: how many samples of the current batch count; None if all do.
        length: number of samples in the current batch of this rank; None if unknown.
        is_last: no batch follows the current one.
    """

    loader: Any
    num_valid: int | None = None
    length: int | None = None
    is_last: bool = False
    num_yielded: int = 0


class Activity:
    """The running iterations of one Accelerator, ordered by their last yield."""

    def __init__(self) -> None:
        self._running: list[Iteration] = []

    def yielded(self, iteration: Iteration) -> None:
        """Note that this iteration hands its current batch to the loop now."""
        self.ended(iteration)
        self._running.append(iteration)
        iteration.num_yielded += 1

    def ended(self, iteration: Iteration) -> None:
        if iteration in self._running:
            self._running.remove(iteration)

    @property
    def current(self) -> Iteration | None:
        return self._running[-1] if self._running else None

    @property
    def at_end(self) -> bool:
        """Whether the current batch is its loader's last."""
        return self.current is not None and self.current.is_last


def valid_rows(tensor: torch.Tensor, num_valid: int | None, length: int | None) -> torch.Tensor:
    """The rows of this rank's batch that are no repetitions.

    Raises:
        UsageError: the tensor's rows are not the batch's samples, so that it cannot be told which ones repeat.
    """
    if num_valid is None or tensor.ndim == 0:
        return tensor
    if tensor.shape[0] != length:
        raise UsageError(
            f"gather_for_metrics of a tensor of shape {list(tensor.shape)}, but this rank's batch has {length} samples",
            allowed="one row per sample of the current batch",
            next_step="reduce to one row per sample first, or use even_batches=False",
        )
    return tensor[:num_valid]
