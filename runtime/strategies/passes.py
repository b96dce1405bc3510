"""Passes: changes of a model's units that are composed with a strategy, in a fixed order, before it is spread."""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial, wraps
from typing import Any, Protocol

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.checkpoint import checkpoint


class Place(IntEnum):
    """The order in which passes act; the data-parallel strategy itself comes last."""

    TENSOR = 1
    CONTEXT = 2
    ACTIVATION_CHECKPOINTING = 3
    COMPILE = 4


class Pass(Protocol):
    """One change of each unit (of the whole model, where it has no units)."""

    place: Place

    def apply(self, unit: nn.Module, mesh: DeviceMesh) -> nn.Module:
        """The unit changed in place, or another module that takes its place."""
        ...


class ActivationCheckpointing:
    """A unit's activations are not kept for backward: its forward runs again there."""

    place = Place.ACTIVATION_CHECKPOINTING

    def apply(self, unit: nn.Module, mesh: DeviceMesh) -> nn.Module:  # noqa: ARG002  # of the protocol
        original: Callable[..., Any] = unit.forward
        unit.forward = wraps(original)(partial(checkpoint, original, use_reentrant=False))
        return unit


def apply_passes(
    model: nn.Module, units: Sequence[nn.Module], passes: Sequence[Pass], mesh: DeviceMesh
) -> list[nn.Module]:
    """Apply all passes to all units of a model; returns the modules that stand in the units' places."""
    current = list(units)
    for step in sorted(passes, key=lambda step: step.place):
        for index, unit in enumerate(current):
            changed = step.apply(unit, mesh)
            if changed is not unit:
                _replace(model, unit, changed)
                current[index] = changed
    return current


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    inside = {id(module) for module in new.modules()}
    for parent in list(model.modules()):
        if id(parent) in inside:
            continue
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
