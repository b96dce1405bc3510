"""Putting a batch on the loader's device."""

from collections.abc import Callable
from typing import Any

import torch

from ..structures import send_to_device


def placement(device: torch.device | None, *, non_blocking: bool) -> Callable[[Any], Any]:
    """What does for a batch the same as send_to_device: sooner where it is made of plain lists and dicts of tensors."""
    if device is None:
        return lambda data: data

    def place(data: Any) -> Any:
        kind = type(data)
        if kind is torch.Tensor:
            return data if data.device == device else data.to(device, non_blocking=non_blocking)
        if kind is list:
            return [place(item) for item in data]
        if kind is dict:
            return {key: place(item) for key, item in data.items()}
        if kind is tuple:
            return tuple([place(item) for item in data])
        if kind is str or kind is int or kind is float:
            return data
        return send_to_device(data, device, non_blocking)

    return place
