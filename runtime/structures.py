"""Nested structures of tensors (lists, tuples, dicts): applying a function to every leaf, and a few uses of that."""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any

import torch

from .errors import UsageError


def is_torch_tensor(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] = is_torch_tensor,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """The same structure with `func(leaf, *args, **kwargs)` in place of each leaf that passes `test_type`.

    Raises:
        UsageError: another leaf is there, and error_on_other_type is set.
    """

    def one(leaf: Any) -> Any:
        if test_type(leaf):
            return func(leaf, *args, **kwargs)
        if error_on_other_type:
            raise UsageError(
                f"{getattr(func, '__name__', 'a function')} applied to a structure that holds a {type(leaf).__name__}",
                allowed="lists, tuples and dicts of leaves that pass test_type",
                next_step="take the other leaves out first",
            )
        return leaf

    return map_leaves(one, data)


def map_leaves(function: Callable[[Any], Any], data: Any) -> Any:
    """The same structure with `function(leaf)` in place of each leaf, called in the order of leaves()."""
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_leaves(function, item) for item in data))
    if isinstance(data, (list, tuple)):
        return type(data)(map_leaves(function, item) for item in data)
    if isinstance(data, Mapping):
        done = {key: map_leaves(function, data[key]) for key in _in_order(data)}
        mapped = {key: done[key] for key in data}
        return mapped if type(data) is dict else _rebuild(data, mapped)
    return function(data)


def leaves(data: Any, path: str = "data") -> Iterator[tuple[str, Any]]:
    """Every leaf with its place, such as data['labels'][0].

    Keys come in an order of their own, so that ranks whose dicts were filled in another order mean the same.
    """
    if isinstance(data, (list, tuple)):
        for index, item in enumerate(data):
            yield from leaves(item, f"{path}[{index}]")
    elif isinstance(data, Mapping):
        for key in _in_order(data):
            yield from leaves(data[key], f"{path}[{key!r}]")
    else:
        yield path, data


def all_tensors(data: Any) -> bool:
    """Whether every leaf is a tensor (an empty structure has none, and is not)."""
    kinds = [isinstance(leaf, torch.Tensor) for _, leaf in leaves(data)]
    return bool(kinds) and all(kinds)


def send_to_device(
    tensor: Any, device: torch.device | str, non_blocking: bool = False, skip_keys: str | list[str] | None = None
) -> Any:
    """Move tensors, and every leaf that has a `to` method.

    Args:
        skip_keys: keys of the outermost dict whose values stay where they are.
    """

    def move(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(device, non_blocking=non_blocking)
        return leaf.to(device) if callable(getattr(leaf, "to", None)) else leaf

    skipped = [skip_keys] if isinstance(skip_keys, str) else skip_keys or []
    if not skipped or not isinstance(tensor, Mapping):
        return map_leaves(move, tensor)
    moved = {key: value if key in skipped else map_leaves(move, value) for key, value in tensor.items()}
    return moved if type(tensor) is dict else _rebuild(tensor, moved)


def convert_to_fp32(tensor: Any) -> Any:
    """Half-precision tensors become float32, those in the fields of dataclasses too; all else stays."""
    return map_leaves(_in_fp32, tensor)


def convert_outputs_to_fp32(model_forward: Callable[..., Any]) -> Callable[..., Any]:
    """A forward that returns what `model_forward` does, with half-precision tensors in float32."""

    @wraps(model_forward)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return convert_to_fp32(model_forward(*args, **kwargs))

    return forward


def find_device(data: Any) -> torch.device | None:
    """The device of the first tensor; None if there is none."""
    return next((leaf.device for _, leaf in leaves(data) if isinstance(leaf, torch.Tensor)), None)


def concatenate(data: list[Any], dim: int = 0) -> Any:
    """Join structures of the same form, tensor by tensor, along `dim`."""
    first = data[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(data, dim=dim)
    if isinstance(first, (list, tuple)):
        return type(first)(concatenate([item[i] for item in data], dim) for i in range(len(first)))
    if isinstance(first, Mapping):
        return {key: concatenate([item[key] for item in data], dim) for key in first}
    raise UsageError(
        f"concatenate of {type(first).__name__}",
        allowed="tensors, or lists, tuples and dicts of them",
        next_step="use gather_object for other data",
    )


def _in_fp32(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.float() if leaf.dtype in (torch.float16, torch.bfloat16) else leaf
    if not is_dataclass(leaf) or isinstance(leaf, type):
        return leaf
    converted = copy(leaf)
    for field in fields(leaf):
        if hasattr(leaf, field.name):
            object.__setattr__(converted, field.name, convert_to_fp32(getattr(leaf, field.name)))
    return converted


def batch_length(data: Any) -> int | None:
    """Length of the first tensor (or sequence of plain values) along dimension 0; None if nothing has one."""
    for _, leaf in leaves(data):
        if isinstance(leaf, torch.Tensor) and leaf.ndim > 0:
            return int(leaf.shape[0])
    return len(data) if isinstance(data, (list, tuple)) else None


def _in_order(data: Mapping[Any, Any]) -> list[Any]:
    return sorted(data, key=lambda key: (type(key).__name__, repr(key)))


def _rebuild(original: Mapping[Any, Any], mapped: dict[Any, Any]) -> Any:
    # ModelOutput-like classes are dicts with a constructor of their own; where it refuses, a dict must do.
    try:
        return type(original)(mapped)  # type: ignore[call-arg]  # a Mapping's constructor is not typed
    except TypeError:
        return mapped
