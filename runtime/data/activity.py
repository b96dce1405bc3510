"""Which loaders are being iterated: the one that yielded last is the one that the loop's body works on."""

import weakref
from collections.abc import Mapping, Sized
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
        length: number of samples in the current batch of this rank; None if unknown (batches of the data set's own).
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
        self.trained: set[int] = set()
        """Ids of the loaders of which a batch has had a backward."""
        self.joining = False
        """Ranks may train on different numbers of batches: those that have ended take part by themselves."""
        self._earlier: weakref.ref[Activity] | None = None

    def yielded(self, iteration: Iteration) -> None:
        """Note that this iteration hands its current batch to the loop now."""
        running = self._running
        if not running or running[-1] is not iteration:
            self.ended(iteration)
            running.append(iteration)
        iteration.num_yielded += 1

    def ended(self, iteration: Iteration) -> None:
        if iteration in self._running:
            self._running.remove(iteration)

    @property
    def current(self) -> Iteration | None:
        return self._running[-1] if self._running else None

    @property
    def innermost(self) -> Iteration | None:
        """The current iteration, else an earlier Accelerator's: this one may be a helper's, called in its loop."""
        earlier = None if self._earlier is None else self._earlier()
        return self.current if self._running or earlier is None else earlier.innermost

    def follow(self, earlier: "Activity") -> None:
        """Come after another Accelerator's."""
        self._earlier = weakref.ref(earlier)

    @property
    def loaders(self) -> list[Any]:
        """The loaders that are being iterated, the current one last."""
        return [iteration.loader for iteration in self._running]

    @property
    def at_end(self) -> bool:
        """Whether the current batch is its loader's last."""
        return self.current is not None and self.current.is_last


def valid_part(data: Any, num_valid: int | None, length: int | None) -> Any:
    """What belongs to samples that are no repetitions: rows of tensors and arrays, elements of lists.

    Numbers of the whole batch (scalars) stay, unless all of it is a repetition.

    Args:
        num_valid: samples of this rank's batch that count; None if all do.
        length: samples of this rank's batch; None if unknown.

    Raises:
        UsageError: rows or elements are not the batch's samples, so that it cannot be told which ones repeat.
    """
    if isinstance(data, torch.Tensor):
        rows = data.reshape(1) if data.ndim == 0 else data
        return rows if num_valid is None or (data.ndim == 0 and num_valid) else _first(rows, num_valid, length)
    if num_valid is None:
        return data
    if isinstance(data, Mapping):
        return {key: valid_part(value, num_valid, length) for key, value in data.items()}
    if not isinstance(data, (list, tuple)):
        return _first(data, num_valid, length) if _holds_samples(data) else data
    if any(isinstance(item, (torch.Tensor, Mapping, list, tuple)) for item in data) and not _by_sample(data, length):
        parts = [valid_part(item, num_valid, length) for item in data]
        return type(data)(*parts) if hasattr(data, "_fields") else type(data)(parts)
    return _first(data, num_valid, length)


def _holds_samples(data: Any) -> bool:
    """Whether it has elements: an array, a table, a set. A text is one thing; so is an array without dimensions."""
    return isinstance(data, Sized) and not isinstance(data, (str, bytes)) and getattr(data, "ndim", 1) > 0


def _by_sample(data: list[Any] | tuple[Any, ...], length: int | None) -> bool:
    """Whether the elements are samples, and not parts that hold one row for each sample."""
    if len(data) != length:
        return False
    holds_rows = all(isinstance(item, (torch.Tensor, list, tuple)) and _size(item) == length for item in data)
    return not (isinstance(data, tuple) and holds_rows)


def _first(rows: Any, num_valid: int, length: int | None) -> Any:
    if num_valid and _size(rows) != length:
        what = f"a tensor of shape {list(rows.shape)}" if isinstance(rows, torch.Tensor) else f"{len(rows)} elements"
        raise UsageError(
            f"gather_for_metrics of {what}, but this rank's batch has {length} samples",
            allowed="one row or element per sample of the current batch",
            next_step="reduce to one row per sample first, pass a list of samples with use_gather_object=True, "
            "or use even_batches=False",
        )
    try:
        return rows[:num_valid]
    except TypeError as error:
        raise UsageError(
            f"gather_for_metrics of a {type(rows).__name__}, whose first {num_valid} elements cannot be told",
            allowed="tensors, arrays, lists and tuples with one element per sample, and dicts of them",
            next_step="make a list of it, in the batch's order",
        ) from error


def _size(rows: Any) -> int:
    return len(rows) if not isinstance(rows, torch.Tensor) or rows.ndim else 1
