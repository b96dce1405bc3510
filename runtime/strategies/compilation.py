"""torch.compile as a pass: the forward of each unit is compiled when it first runs."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from ..errors import ConfigurationError
from .passes import Place

_OFF = ("no", "")
_ORIGINAL = "_forerun_uncompiled_forward"


@dataclass(frozen=True)
class TorchDynamoPlugin:
    """How models are compiled.

    Attributes:
        backend: name of a backend of torch.compile (inductor, eager, aot_eager, ...); None or "no" compiles nothing.
        mode, fullgraph, dynamic, options: torch.compile's; None takes its default.
        disable: compile nothing.
        use_regional_compilation: compile each member of the model's nn.ModuleLists by itself, which takes less time
            than the model as a whole; a model without such a list is compiled whole.
    """

    backend: str | None = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool | None = None

    def arguments(self) -> dict[str, Any]:
        """torch.compile's keyword arguments."""
        names = ("backend", "mode", "fullgraph", "dynamic", "options")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Compilation:
    """Compiles the forward of a unit, so that hooks around it, names and state stay what they are."""

    place = Place.COMPILE

    def __init__(self, plugin: TorchDynamoPlugin) -> None:
        self._plugin = plugin

    def apply(self, unit: nn.Module, mesh: DeviceMesh | None) -> nn.Module:  # noqa: ARG002  # of the protocol
        for module in self._regions(unit):
            setattr(module, _ORIGINAL, module.__dict__.get("forward"))
            module.forward = torch.compile(module.forward, **self._plugin.arguments())
        return unit

    def _regions(self, unit: nn.Module) -> list[nn.Module]:
        if not self._plugin.use_regional_compilation:
            return [unit]
        lists = [module for module in unit.modules() if isinstance(module, nn.ModuleList)]
        return [member for members in lists for member in members] or [unit]


def settle_compilation(plugin: TorchDynamoPlugin | None, backend: Any) -> Compilation | None:
    """The pass that was asked for, None for none.

    Args:
        backend: the short form of the plugin's field.

    Raises:
        ConfigurationError: both are given, or torch has no such backend.
    """
    if plugin is not None and backend is not None:
        raise ConfigurationError(
            f"dynamo_backend={backend!r} and a dynamo_plugin", allowed="one of them", next_step="remove one"
        )
    chosen = plugin or TorchDynamoPlugin(None if backend is None else str(getattr(backend, "value", backend)).lower())
    name = (chosen.backend or "").lower()
    if chosen.disable or name in _OFF:
        return None
    known = torch.compiler.list_backends(exclude_tags=())
    if name not in known:
        raise ConfigurationError(
            f"torch.compile has no backend {chosen.backend!r} here",
            allowed=", ".join(known),
            next_step="choose one of these, or leave it out",
        )
    return Compilation(chosen)


def uncompiled(model: nn.Module) -> nn.Module:
    """The model with the forwards that it had before Compilation."""
    for module in model.modules():
        if _ORIGINAL in module.__dict__:
            original = module.__dict__.pop(_ORIGINAL)
            module.__dict__.pop("forward", None)
            if original is not None:
                module.forward = original
    return model
