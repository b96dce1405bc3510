"""Reading a batch's samples in this process, as torch's loader does without workers, in fewer steps."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, MapDataPipe, TensorDataset

from .collation import collate_plain, is_default

T = TypeVar("T")
_TRACED = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
"""What torch's loader calls the time of a batch in a trace."""

Fetch = Callable[[list[Any]], Any]


def reads_plainly(loader: DataLoader[Any]) -> bool:
    """Whether reading and collating is all that torch's loader does for a batch."""
    pins = loader.pin_memory and torch.accelerator.is_available()
    return not (loader.num_workers or loader.timeout or pins or isinstance(loader.dataset, MapDataPipe))


def make_fetch(loader: DataLoader[Any]) -> Fetch:
    """What reads the batch with these indices (a loader without batches: the sample with the one index)."""
    dataset: Any = loader.dataset
    own: Any = loader.collate_fn
    if loader.batch_sampler is None:
        return lambda indices: own(dataset[indices[0]])
    is_plain = is_default(own)
    collate = collate_plain if is_plain else own
    together = getattr(dataset, "__getitems__", None)
    if together:
        return lambda indices: collate(together(indices))
    if is_plain and type(dataset) is TensorDataset and all(map(_has_plain_rows, dataset.tensors)):
        return lambda indices: _rows(dataset, indices)
    return lambda indices: collate([dataset[index] for index in indices])


def traced() -> AbstractContextManager[Any]:
    """Around a batch's reading: shown in a trace, if one is being written."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]  # there, not exported
        return torch.autograd.profiler.record_function(_TRACED)
    return _UNTRACED


def traced_all(things: Iterable[T]) -> Iterator[T]:
    """Each thing, the time of its making traced."""
    iterator = iter(things)
    while True:
        with traced():
            try:
                thing = next(iterator)
            except StopIteration:
                return
        yield thing


_UNTRACED = nullcontext()


def _rows(dataset: TensorDataset, indices: list[Any]) -> Any:
    """All rows of a tensor at once, which are what stacking one after the other gives."""
    if set(map(type, indices)) != {int}:
        return collate_plain([dataset[index] for index in indices])
    chosen = torch.tensor(indices)
    return [tensor[chosen] for tensor in dataset.tensors]


def _has_plain_rows(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_nested:
        return False
    special = tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg()
    return tensor.is_cpu and tensor.is_contiguous() and not special
