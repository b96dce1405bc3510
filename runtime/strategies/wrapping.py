"""Which modules of a model FSDP2 gathers on their own; the rest of the model is one more unit."""

from collections import defaultdict
from collections.abc import Callable

from torch import nn

from ..errors import ConfigurationError
from .sharding_options import FullyShardedDataParallelPlugin

_CONTAINERS = (nn.ModuleList, nn.ModuleDict)


def find_units(model: nn.Module, plugin: FullyShardedDataParallelPlugin) -> list[nn.Module]:
    """The modules to be wrapped, inner ones first, without the model itself.

    A module that shares a parameter with the outside is left out, since the two would come apart.

    Raises:
        ConfigurationError: the names of classes that were given fit no module.
    """
    policy = plugin.auto_wrap_policy
    if policy == "NO_WRAP":
        return []
    if policy == "SIZE_BASED_WRAP":
        found: list[nn.Module] = []
        _by_size(model, plugin.min_num_params, found, set())
    else:
        wanted = policy if callable(policy) else _by_class(model, plugin.transformer_cls_names_to_wrap)
        found = [module for module in reversed(list(model.modules())) if wanted(module)]
    owners: dict[int, set[int]] = defaultdict(set)
    for module in model.modules():
        for parameter in module._parameters.values():
            owners[id(parameter)].add(id(module))
    return [m for m in found if m is not model and not isinstance(m, _CONTAINERS) and _is_closed(m, owners)]


def _by_class(model: nn.Module, names: tuple[str, ...]) -> Callable[[nn.Module], bool]:
    wanted = set(names)
    if wanted:
        present = {type(module).__name__ for module in model.modules()}
        if wanted - present:
            raise ConfigurationError(
                f"transformer_cls_names_to_wrap: the model has no {', '.join(sorted(wanted - present))}",
                allowed=", ".join(sorted(present)),
                next_step="correct the names, or leave them out to wrap the members of nn.ModuleLists",
            )
    else:
        wanted = set(getattr(model, "_no_split_modules", None) or ())
    if wanted:
        return lambda module: type(module).__name__ in wanted
    members = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    layers = {id(layer) for listed in members for layer in listed if next(layer.parameters(), None) is not None}
    return lambda module: id(module) in layers


def _by_size(module: nn.Module, least: int, found: list[nn.Module], seen: set[int]) -> int:
    """Parameters of a module that no unit inside it holds; adds it to `found` where they are enough."""
    if id(module) in seen:
        return 0
    seen.add(id(module))
    own = {id(p): p.numel() for p in module._parameters.values() if p is not None and id(p) not in seen}
    seen.update(own)
    rest = sum(own.values()) + sum(_by_size(child, least, found, seen) for child in module.children())
    if rest < least or isinstance(module, _CONTAINERS):
        return rest
    found.append(module)
    return 0


def _is_closed(module: nn.Module, owners: dict[int, set[int]]) -> bool:
    inside = {id(inner) for inner in module.modules()}
    return all(owners[id(parameter)] <= inside for parameter in module.parameters())
