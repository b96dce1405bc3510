"""State as plain data: what torch.load(weights_only=True) accepts, checked before it is written."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..errors import CheckpointError

_SCALARS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def plain(value: Any, place: str) -> Any:
    """The same value built of tensors, numbers, texts, lists, tuples and dicts alone.

    Args:
        place: name of the value, for the error.

    Raises:
        CheckpointError: something in it could only be pickled, and would not load again.
    """
    if isinstance(value, torch.Tensor):
        return value.detach()
    if isinstance(value, np.generic):
        return value.item()
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Mapping):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((plain(key, f"a key of {place}"), plain(item, f"{place}[{key!r}]")) for key, item in value.items())
    if type(value) in (list, tuple, set):
        return type(value)(plain(item, f"{place}[{index}]") for index, item in enumerate(value))
    raise CheckpointError(
        f"{place} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be loaded without unpickling",
        allowed="tensors, numbers, texts, and lists, tuples and dicts of them",
        next_step="return such data from state_dict()",
    )


def same(left: Any, right: Any) -> bool:
    """Whether two plain values are equal, tensors bit for bit."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and _same_tensor(left, right)
    if isinstance(left, Mapping):
        return (
            isinstance(right, Mapping)
            and left.keys() == right.keys()
            and all(same(left[key], right[key]) for key in left)
        )
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and (left == right or (left != left and right != right))


def _same_tensor(left: torch.Tensor, right: torch.Tensor) -> bool:
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    flat = [t.detach().cpu().contiguous().as_strided((t.numel(),), (1,)) for t in (left, right)]
    if left.dtype.is_floating_point or left.dtype.is_complex:
        flat = [tensor.view(torch.uint8) for tensor in flat]
    return torch.equal(*flat)
