"""Plain data as JSON: numbers, texts, lists, dicts; tensors stand in it by name. Nothing that could only be pickled."""

import base64
import math
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..errors import CheckpointError
from ..state_parts import Shard

_TAG = "$"
_FACTORIES = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
Name = Callable[[Any, str], str]
"""Takes a tensor or Shard and its place, gives the name under which it is stored."""


def encode(value: Any, place: str, name: Name) -> Any:
    """The value as JSON data.

    Args:
        place: name of the value, for errors and for names of tensors.

    Raises:
        CheckpointError: something in it could only be pickled, and would not load again.
    """
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, place, name)
    if isinstance(value, Shard):
        return {_TAG: "tensor", "v": name(value, place)}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if isinstance(value, Mapping):
        return _encode_mapping(value, place, name)
    if type(value) is set and any(isinstance(item, torch.Tensor) for item in value):
        raise CheckpointError(f"{place} is a tensor in a set", allowed="lists and dicts of tensors")
    if type(value) in (list, tuple, set):
        items = [encode(item, f"{place}[{index}]", name) for index, item in enumerate(value)]
        return items if type(value) is list else {_TAG: type(value).__name__, "v": items}
    return _encode_scalar(value, place, name)


def decode(data: Any, tensor: Callable[[str], Any]) -> Any:
    """The inverse of encode.

    Args:
        tensor: gives what stands in the place of a stored tensor.

    Raises:
        CheckpointError: it is not what encode wrote.
    """
    if isinstance(data, list):
        return [decode(item, tensor) for item in data]
    if not isinstance(data, dict):
        return data
    if _TAG not in data:
        return {key: decode(item, tensor) for key, item in data.items()}
    try:
        return _decode_tagged(data[_TAG], data["v"], tensor)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(
            f"the index holds {str(data)[:80]}, which is no stored value ({error!r})",
            allowed="files that save_state wrote",
            next_step="load another checkpoint",
        ) from error


def _encode_tensor(value: torch.Tensor, place: str, name: Name) -> dict[str, Any]:
    if value.layout == torch.sparse_coo:
        parts = value.detach().coalesce()
        found = [parts.indices(), parts.values(), list(parts.shape)]
        return {_TAG: "sparse", "v": encode(found, place, name)}
    kind = _unstorable(value)
    if kind:
        raise CheckpointError(
            f"{place} is a tensor that is {kind}",
            allowed="dense tensors with values, and sparse_coo ones",
            next_step="return a dense tensor from state_dict(); of a DTensor, full_tensor() on all ranks",
        )
    return {_TAG: "tensor", "v": name(value.detach(), place)}


def _unstorable(value: torch.Tensor) -> str:
    """Why there are no values to be stored, in words; empty if there are."""
    if value.is_quantized:
        return "quantized"
    if value.is_meta:
        return "on the meta device"
    if value.is_nested:
        return "nested"
    wraps: Any = is_traceable_wrapper_subclass
    if wraps(value):
        return f"a {type(value).__name__}"
    return "" if value.layout == torch.strided else str(value.layout)


def _encode_mapping(value: Mapping[Any, Any], place: str, name: Name) -> Any:
    items = [(key, encode(item, f"{place}[{key!r}]", name)) for key, item in value.items()]
    special = isinstance(value, (OrderedDict, Counter, defaultdict))
    if not special and all(type(key) is str and key != _TAG for key, _ in items):
        return dict(items)
    pairs = [[encode(key, f"a key of {place}", name), item] for key, item in items]
    if isinstance(value, defaultdict):
        return {_TAG: "default", "v": [_factory_name(value, place), pairs]}
    return {_TAG: "ordered" if isinstance(value, OrderedDict) else "counter" if special else "dict", "v": pairs}


def _factory_name(value: defaultdict[Any, Any], place: str) -> str | None:
    factory: Any = value.default_factory
    if factory is None or _FACTORIES.get(getattr(factory, "__name__", "")) is factory:
        return None if factory is None else str(factory.__name__)
    raise CheckpointError(
        f"{place} is a defaultdict of {factory!r}, which cannot be loaded without unpickling",
        allowed=f"defaultdicts of {', '.join(_FACTORIES)}",
        next_step="return dict(...) of it from state_dict()",
    )


def _encode_scalar(value: Any, place: str, name: Name) -> Any:
    if type(value) is float:
        return value if math.isfinite(value) else {_TAG: "float", "v": str(value)}
    if type(value) is complex:
        return {_TAG: "complex", "v": encode([value.real, value.imag], place, name)}
    if type(value) is bytes:
        return {_TAG: "bytes", "v": base64.b64encode(value).decode()}
    if type(value) is torch.dtype:
        return {_TAG: "dtype", "v": dtype_name(value)}
    if type(value) is torch.device:
        return {_TAG: "device", "v": str(value)}
    if type(value) is torch.Size:
        return {_TAG: "size", "v": list(value)}
    if type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.char not in "gG":
        native = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("=")).reshape(value.shape)
        return {_TAG: "array", "v": encode(torch.from_numpy(native), place, name)}
    raise CheckpointError(
        f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be loaded without unpickling",
        allowed="tensors, numbers, texts, and lists, tuples and dicts of them",
        next_step="return such data from state_dict()",
    )


def _decode_tagged(tag: str, value: Any, tensor: Callable[[str], Any]) -> Any:
    if tag == "tensor":
        return tensor(str(value))
    if tag in ("dict", "ordered"):
        pairs = [(_key(decode(key, tensor)), decode(item, tensor)) for key, item in value]
        return OrderedDict(pairs) if tag == "ordered" else dict(pairs)
    if tag in ("counter", "default"):
        factory, pairs = value if tag == "default" else (None, value)
        items = {_key(decode(key, tensor)): decode(item, tensor) for key, item in pairs}
        return Counter(items) if tag == "counter" else defaultdict(factory and _FACTORIES[factory], items)
    inner = decode(value, tensor)
    match tag:
        case "tuple":
            return tuple(inner)
        case "set":
            return set(inner)
        case "float":
            return float(inner)
        case "complex":
            return complex(*inner)
        case "bytes":
            return base64.b64decode(inner, validate=True)
        case "dtype":
            return dtype_named(inner)
        case "device":
            return torch.device(inner)
        case "size":
            return torch.Size(inner)
        case "sparse" | "array":
            return Composed(tag, inner)
    raise ValueError(f"unknown tag {tag!r}")


def _key(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Composed:
    """A value that is made of tensors, once these have been read."""

    def __init__(self, tag: str, parts: Any) -> None:
        self.tag = tag
        self.parts = parts

    def compose(self, parts: Any) -> Any:
        if self.tag == "array":
            return parts.numpy()
        indices, values, shape = parts
        try:
            return torch.sparse_coo_tensor(indices, values, shape, is_coalesced=True, check_invariants=True)
        except RuntimeError as error:
            raise CheckpointError(f"a sparse tensor does not fit: {error}", next_step="load another one") from error


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: Any) -> torch.dtype:
    """
    Raises:
        ValueError: there is no such dtype.
    """
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype {name!r}")
    return found
