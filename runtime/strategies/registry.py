"""Strategy name -> class, imported when asked for."""

from importlib import import_module

from ..errors import ConfigurationError
from .base import Strategy, StrategyContext

_PATHS = {"single": ("single", "SingleStrategy"), "ddp": ("ddp", "DdpStrategy")}


def strategy_names() -> list[str]:
    return sorted(_PATHS)


def get_strategy(name: str, context: StrategyContext) -> Strategy:
    """The strategy of this name, able to run here.

    Raises:
        ConfigurationError: there is none of this name, or its requirements are not met.
    """
    if name not in _PATHS:
        raise ConfigurationError(
            f"strategy {name!r} does not exist in this version",
            allowed=", ".join(strategy_names()),
            next_step="use ddp for several processes, single for one",
        )
    module, attribute = _PATHS[name]
    strategy: Strategy = getattr(import_module(f".{module}", __package__), attribute)(context)
    missing = strategy.requirements()
    if missing:
        raise ConfigurationError("; ".join(missing), next_step="change the strategy or the number of processes")
    return strategy


def default_strategy_name(world_size: int) -> str:
    return "single" if world_size == 1 else "ddp"
