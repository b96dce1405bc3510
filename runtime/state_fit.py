"""Whether stored state fits the objects that are here; asked before anything is loaded."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .errors import CheckpointError
from .state_parts import StoredTensor

_SHOWN = 5


def kind_of(thing: object) -> str:
    """The name of its class, without the module: that may change from one version of torch to the next."""
    return type(thing).__qualname__


def check_model(stored: Any, model: nn.Module) -> Any:
    """Compare names and shapes of stored tensors with the model's; returns `stored`.

    Raises:
        CheckpointError: they differ; up to five differences are named.
    """
    expected: Mapping[str, Any] = model.state_dict()
    wrong = [f"{name} is missing" for name in expected if name not in stored]
    wrong += [f"{name} is not in the model" for name in stored if name not in expected]
    for name, value in expected.items():
        given = stored.get(name)
        if isinstance(value, torch.Tensor) and isinstance(given, StoredTensor) and given.shape != tuple(value.shape):
            wrong.append(f"{name} has shape {list(given.shape)}, the model's {list(value.shape)}")
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if wrong[_SHOWN:] else ""
        raise CheckpointError(
            "; ".join(wrong[:_SHOWN]) + more,
            allowed="the state of the same model",
            next_step="build the same model as when it was saved",
        )
    return stored


def check_optimizer(stored: Any, optimizer: torch.optim.Optimizer) -> Any:
    """Compare parameter groups and the shapes of states with the optimizer's; returns `stored`.

    Raises:
        CheckpointError: they differ.
    """
    saved = [len(group["params"]) for group in stored["param_groups"]]
    here = [len(group["params"]) for group in optimizer.param_groups]
    if saved != here:
        raise CheckpointError(
            f"its parameter groups have {saved} parameters, the optimizer's {here}",
            allowed="the same parameters in the same groups and order",
            next_step="build the same optimizer as when it was saved",
        )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = [place for group in stored["param_groups"] for place in group["params"]]
    for place, parameter in zip(places, parameters, strict=True):
        for name, value in stored["state"].get(place, {}).items():
            if isinstance(value, StoredTensor) and not _fits(value.shape, tuple(parameter.shape)):
                raise CheckpointError(
                    f"{name} of parameter {place} has shape {list(value.shape)}, the parameter {list(parameter.shape)}",
                    allowed="the same parameters in the same groups and order",
                    next_step="build the same model and optimizer as when it was saved",
                )
    return stored


def _fits(shape: tuple[int, ...], parameter: tuple[int, ...]) -> bool:
    """A state has its parameter's shape, or another number of dimensions, or is reduced along some (Adafactor)."""
    return len(shape) != len(parameter) or all(n in (1, m) for n, m in zip(shape, parameter, strict=True))
