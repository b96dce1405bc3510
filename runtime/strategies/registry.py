"""Strategy name -> class, imported when asked for; and which one a script or a launch asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..env import WorkerEnvironment
from ..errors import ConfigurationError
from ..mesh import ParallelDims
from .base import NOTHING_SAID, Said, Strategy, StrategyContext

_PATHS = {
    "single": ("single", "SingleStrategy"),
    "ddp": ("ddp", "DdpStrategy"),
    "fsdp2": ("fsdp2", "Fsdp2Strategy"),
    "deepspeed": ("deepspeed", "DeepSpeedStrategy"),
}
# Argument of Accelerator -> strategy, and the module whose settle() makes its options.
_PLUGINS = {"fsdp_plugin": ("fsdp2", "sharding_options"), "deepspeed_plugin": ("deepspeed", "deepspeed_options")}
# Word of the launch's option --strategy -> (strategy, argument of Accelerator that asks for it too).
_WORDS = {
    "single": ("single", ""),
    "ddp": ("ddp", ""),
    "fsdp": ("fsdp2", "fsdp_plugin"),
    "fsdp2": ("fsdp2", "fsdp_plugin"),
    "deepspeed": ("deepspeed", "deepspeed_plugin"),
}


@dataclass(frozen=True)
class Choice:
    """A strategy, its options, and what they say of Accelerator's own arguments."""

    name: str
    options: Any
    said: Said = NOTHING_SAID


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
            next_step="use ddp, fsdp2 or deepspeed for several processes, single for one",
        )
    module, attribute = _PATHS[name]
    strategy: Strategy = getattr(import_module(f".{module}", __package__), attribute)(context)
    missing = strategy.requirements()
    if missing:
        raise ConfigurationError("; ".join(missing), next_step="change what is named, or take another strategy")
    return strategy


def choose_strategy(
    environment: WorkerEnvironment,
    plugins: Mapping[str, Any],
    *,
    dims: ParallelDims | None = None,
    ddp_options: Mapping[str, Any] | None = None,
) -> Choice:
    """What was asked for: by an argument of Accelerator, else by the launch, else the default.

    Args:
        plugins: Accelerator's arguments that choose a strategy, None where not given.

    Raises:
        ConfigurationError: two are given, one is wrong, or the degrees need another strategy.
    """
    given = sorted(name for name, value in plugins.items() if value is not None)
    if len(given) > 1:
        raise ConfigurationError(f"{' and '.join(given)} together", allowed="one of them", next_step="remove one")
    word = environment.strategy
    if given:
        argument, value = given[0], plugins[given[0]]
        name = _PLUGINS[argument][0]
    elif word in ("", "auto"):
        name, argument, value = default_strategy_name(environment.world_size), "", None
    elif word in _WORDS:
        (name, argument), value = _WORDS[word], None
    else:
        raise ConfigurationError(
            f"FORERUN_STRATEGY={word!r}", allowed=f"auto, {', '.join(sorted(_WORDS))}", next_step="correct or unset it"
        )
    if argument:
        options = import_module(f".{_PLUGINS[argument][1]}", __package__).settle(value, environment, dims)
        return Choice(name, options, getattr(options, "said", NOTHING_SAID))
    if dims is not None and dims.resolve(environment.world_size).beyond_data():
        raise ConfigurationError(
            f"parallelism_config with {', '.join(dims.beyond_data())} under strategy {name}",
            allowed="data_replicate alone; data_shard with fsdp_plugin",
            next_step="give fsdp_plugin too, or remove parallelism_config",
        )
    return Choice(name, dict(ddp_options or {}))


def default_strategy_name(world_size: int) -> str:
    return "single" if world_size == 1 else "ddp"
