"""Collectives over nested structures. Ranks agree on shapes and keys first: a mismatch is an error, not a hang."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist

from .errors import DistributedOperationException, UsageError
from .state import PartialState
from .structures import leaves, map_leaves

Reduction = Literal["mean", "sum", "max", "none"]
_REDUCTIONS = ("mean", "sum", "max", "none")
_METRICS = "gather_for_metrics"
_METRIC_OBJECTS = "gather_for_metrics of objects"
_EQUAL_FIRST = "make all other dimensions equal, by pad_across_processes(tensor, dim=1) for one"


def gather(tensor: Any) -> Any:
    """The tensors of all ranks joined along dimension 0, in rank order, on every rank.

    Scalars become vectors of one element per rank, also where there is one process.

    Raises:
        UsageError: a leaf is no tensor.
        DistributedError: structures, dtypes or shapes differ between ranks, or a rank does not come.
    """
    _require_tensors(tensor, "gather")
    described = _meet("gather", tensor)
    _same(described, "gather", _exact, "use pad_across_processes first, or gather_for_metrics")
    return map_leaves(lambda t: _gather_tensor(_vector(t), None), tensor)


def gather_uneven(data: Any) -> Any:
    """Like gather, but dimension 0 may differ between ranks (0 included); nothing is padded in the result."""
    _require_tensors(data, _METRICS)
    described = _meet(_METRICS, data)
    _same(described, _METRICS, _all_but_length, _EQUAL_FIRST)
    order = iter(range(len(described[0])))

    def one(tensor: torch.Tensor) -> torch.Tensor:
        place = next(order)
        lengths = [(rank[place][2] or [1])[0] for rank in described]
        return _gather_tensor(_vector(tensor), lengths)

    return map_leaves(one, data)


def gather_object(object: Any) -> list[Any]:  # the Accelerate API's name
    """Objects of all ranks in rank order; lists are joined to one list."""
    state = PartialState()
    if state.guard is None:
        return list(object) if isinstance(object, (list, tuple)) else [object]
    state.guard.meet("gather_object")
    return _gather_objects(object)


def gather_objects_for_metrics(data: Any, *, counts: bool = True) -> list[Any]:
    """Like gather_object; ranks that have no more batches take part by give_nothing, and are left out.

    Args:
        counts: whether this rank's object does; one that does not is left out too.
    """
    guard = PartialState().guard
    if guard is None:
        return gather_object(data)
    guard.meet(_METRIC_OBJECTS)
    return _gather_objects(data if counts else _Nothing())


def give_nothing(operation: str, details: Any) -> bool:
    """Take part in another rank's gather_for_metrics without having anything to give.

    Args:
        operation, details: with which the other rank has come to the next meeting.

    Returns:
        False if it came to anything else; then nothing has been done.
    """
    state = PartialState()
    assert state.guard is not None, "there are other ranks"
    if operation == _METRIC_OBJECTS:
        state.guard.meet(operation)
        _gather_objects(_Nothing())
    elif operation == _METRICS:
        own = [[path, dtype, [0, *shape[1:]]] for path, dtype, shape in details]
        described = state.guard.meet(operation, details=own)
        _same(described, operation, _all_but_length, _EQUAL_FIRST)
        for place, (_, dtype, shape) in enumerate(own):
            kind: torch.dtype = getattr(torch, dtype.removeprefix("torch."))
            empty = torch.empty(shape, dtype=kind, device=state.device)
            _gather_tensor(empty, [rank[place][2][0] for rank in described])
    else:
        return False
    return True


def reduce(tensor: Any, reduction: Reduction = "mean", scale: float = 1.0) -> Any:
    """The mean, sum or maximum over all ranks of each tensor, times `scale`, on every rank; the input stays as it is.

    Raises:
        DistributedError: structures, dtypes or shapes differ between ranks, or a rank does not come.
    """
    if reduction not in _REDUCTIONS:
        raise UsageError(f"reduction {reduction!r}", allowed=", ".join(_REDUCTIONS), next_step="choose one of these")
    _require_tensors(tensor, "reduce")
    _same(_meet("reduce", tensor), "reduce", _exact, "reduce tensors of one shape")
    return map_leaves(lambda t: _reduce_tensor(t, reduction, scale), tensor)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """The tensors of one rank, on every rank."""
    _require_tensors(tensor, "broadcast")
    _same(_meet("broadcast", tensor), "broadcast", _exact, "pass a tensor of the same shape and dtype on every rank")
    return map_leaves(lambda t: _broadcast_tensor(t, from_process), tensor)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """Replace the elements by those of one rank, in place."""
    state = PartialState()
    if state.guard is not None:
        lengths = state.guard.meet("broadcast_object_list", details=len(object_list))
        if len(set(lengths)) > 1:
            raise DistributedOperationException(
                f"broadcast_object_list of lists of different lengths: {_by_rank(lengths)}",
                allowed="lists of one length",
                next_step="pass a list of the same length on every rank",
            )
        dist.broadcast_object_list(object_list, src=from_process)
    return object_list


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """Pad each tensor along `dim` with `pad_index` to the longest of all ranks.

    Raises:
        DistributedError: structures, dtypes or numbers of dimensions differ between ranks, or a rank does not come.
    """
    _require_tensors(tensor, "pad_across_processes")
    described = _meet("pad_across_processes", tensor)
    _same(described, "pad_across_processes", _all_but_sizes, "bring tensors with as many dimensions on every rank")
    order = iter(range(len(described[0])))

    def one(leaf: torch.Tensor) -> torch.Tensor:
        place = next(order)
        if dim >= leaf.ndim or dim < -leaf.ndim:
            return leaf
        longest = max((rank[place][2][dim] for rank in described), default=0)
        return _pad(leaf, dim, longest, pad_index, pad_first)

    return map_leaves(one, tensor)


class _Nothing:
    """In place of an object from a rank that has none."""


def _gather_objects(own: Any) -> list[Any]:
    received: list[Any] = [None] * PartialState().num_processes
    dist.all_gather_object(received, own)
    given = [item for item in received if not isinstance(item, _Nothing)]
    if all(isinstance(item, (list, tuple)) for item in given):
        return [element for item in given for element in item]
    return given


def _pad(tensor: torch.Tensor, dim: int, length: int, value: float, first: bool) -> torch.Tensor:
    missing = length - tensor.shape[dim]
    if missing <= 0:
        return tensor
    shape = list(tensor.shape)
    shape[dim] = missing
    filling = tensor.new_full(shape, value)
    return torch.cat([filling, tensor] if first else [tensor, filling], dim=dim)


def _vector(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(1) if tensor.ndim == 0 else tensor.detach()


def _gather_tensor(tensor: torch.Tensor, lengths: Sequence[int] | None) -> torch.Tensor:
    """All ranks' tensors joined; travels as bytes, since backends differ in the dtypes that they know."""
    world_size = PartialState().num_processes
    if world_size == 1:
        return tensor
    longest = max(lengths) if lengths is not None else tensor.shape[0]
    padded = _pad(tensor, 0, longest, 0, False).contiguous()
    if padded.numel() == 0:
        total = sum(lengths) if lengths is not None else world_size * longest
        return tensor.new_empty((total, *tensor.shape[1:]))
    raw = _bytes(padded)
    received = [torch.empty_like(raw) for _ in range(world_size)]
    dist.all_gather(received, raw)
    parts = [item.view(padded.dtype).reshape(padded.shape) for item in received]
    if lengths is not None:
        parts = [part[:length] for part, length in zip(parts, lengths, strict=True)]
    return torch.cat(parts)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's bytes. One element counts as contiguous whatever its stride, which view() minds."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def _reduce_tensor(tensor: torch.Tensor, reduction: Reduction, scale: float) -> torch.Tensor:
    state = PartialState()
    total = tensor.detach().clone()
    if state.use_distributed and reduction != "none":
        if total.dtype is torch.bool:
            total = total.long()
        wide = total.float() if total.dtype in (torch.float16, torch.bfloat16) else total
        dist.all_reduce(wide, dist.ReduceOp.MAX if reduction == "max" else dist.ReduceOp.SUM)
        total = wide.to(total.dtype)
    if reduction == "mean" and state.use_distributed:
        total = total / state.num_processes
    return total if math.isclose(scale, 1.0, rel_tol=0, abs_tol=0) else total * scale


def _broadcast_tensor(tensor: torch.Tensor, from_process: int) -> torch.Tensor:
    if not PartialState().use_distributed or tensor.numel() == 0:
        return tensor.detach().clone()
    raw = _bytes(tensor.detach().contiguous()).clone()
    dist.broadcast(raw, src=from_process)
    return raw.view(tensor.dtype).reshape(tensor.shape)


Description = list[list[Any]]


def _meet(operation: str, data: Any) -> list[Description]:
    own: Description = [[path, str(leaf.dtype), list(leaf.shape)] for path, leaf in leaves(data)]
    guard = PartialState().guard
    return [own] if guard is None else guard.meet(operation, details=own)


def _exact(description: Description) -> Any:
    return description


def _all_but_length(description: Description) -> Any:
    return [[path, dtype, shape[1:], len(shape)] for path, dtype, shape in description]


def _all_but_sizes(description: Description) -> Any:
    return [[path, dtype, len(shape)] for path, dtype, shape in description]


def _same(described: list[Description], operation: str, view: Callable[[Description], Any], next_step: str) -> None:
    if all(view(other) == view(described[0]) for other in described):
        return
    raise DistributedOperationException(
        f"{operation} of different things: {_by_rank([_words(item) for item in described])}",
        allowed="the same keys, dtypes and shapes on every rank",
        next_step=next_step,
    )


def _words(description: Description) -> str:
    return ", ".join(f"{path} {dtype.removeprefix('torch.')}{shape}" for path, dtype, shape in description) or "nothing"


def _by_rank(values: Sequence[Any]) -> str:
    return "; ".join(f"rank {rank}: {value}" for rank, value in enumerate(values))


def _require_tensors(data: Any, operation: str) -> None:
    wrong = [f"{path} is {type(leaf).__name__}" for path, leaf in leaves(data) if not isinstance(leaf, torch.Tensor)]
    if wrong:
        raise UsageError(
            f"{operation} of what is no tensor: {', '.join(wrong[:5])}",
            allowed="tensors, or lists, tuples and dicts of them",
            next_step="use gather_object for other data, or make them tensors",
        )
