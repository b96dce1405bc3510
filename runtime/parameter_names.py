"""Names of parameters as the script gave them, and whether optimizers have theirs in the order of a checkpoint."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from .errors import CheckpointError
from .state_parts import Part

_WRAPPER = "_orig_mod."
"""What torch.compile(model) puts before the names of all that is in the model."""


def bare(name: str) -> str:
    """The name that the same tensor has in the model that was not compiled."""
    return name.replace(_WRAPPER, "")


def without_wrappers(part: Part, model: nn.Module) -> Part:
    """The part of a model, with the names that it has whether it was compiled or not."""
    return replace(
        part,
        save=lambda: _renamed(part.save(), bare),
        choose=lambda stored: part.choose(_as_in(model, stored)),
        load=lambda state: part.load(_as_in(model, state)),
    )


def _as_in(model: nn.Module, state: Any) -> Any:
    here = {bare(name): name for name in model.state_dict()}
    return _renamed(state, lambda name: here.get(bare(name), name))


def _renamed(state: Any, rename: Any) -> Any:
    if not isinstance(state, dict) or all(rename(name) == name for name in state):
        return state
    return type(state)({rename(name): value for name, value in state.items()})


def in_order(optimizers: Iterable[torch.optim.Optimizer], named: Mapping[str, nn.Parameter]) -> list[list[str] | None]:
    """The names of each optimizer's parameters, group after group; None for one of which not all have a name."""
    names = {id(parameter): name for name, parameter in named.items()}
    listed = [[names.get(id(p)) for group in o.param_groups for p in group["params"]] for o in optimizers]
    return [None if None in found else [str(name) for name in found] for found in listed]


def check_order(
    saved: Sequence[list[str] | None], here: Sequence[list[str] | None], named: Mapping[str, nn.Parameter]
) -> None:
    """Optimizers know parameters by their place alone: in another place is another parameter's state.

    Raises:
        CheckpointError: an optimizer has the parameters in another order, or others.
    """
    for index, (before, now) in enumerate(zip(saved, here, strict=False)):
        if before is None or now is None or before == now or len(before) != len(now) or not set(before) <= set(named):
            continue
        place = next(place for place, (one, other) in enumerate(zip(before, now, strict=True)) if one != other)
        raise CheckpointError(
            f"parameter {place} of optimizer_{index} is {now[place]}, and in the checkpoint {before[place]}",
            allowed="the same parameters in the same groups and order",
            next_step="build the same optimizer as when it was saved",
        )
