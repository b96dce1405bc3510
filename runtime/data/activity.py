"""Which loaders are being iterated: the one that yielded last is the one that the loop's body works on."""

from dataclasses import dataclass
from typing import Any, Protocol


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
