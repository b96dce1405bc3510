"""Names of launchers and where they live; a launcher's module is imported when it is asked for."""

import importlib
from typing import cast

from ..errors import ConfigurationError
from .base import Launcher

_LAUNCHERS = {
    "local": (".local", "LocalLauncher"),
    "dry": (".dry", "DryLauncher"),
    "slurm": (".slurm", "SlurmLauncher"),
}
_OF_SEVERAL_NODES = ("slurm",)


def launcher_names() -> list[str]:
    return sorted(_LAUNCHERS)


def launchers_of_several_nodes() -> tuple[str, ...]:
    return _OF_SEVERAL_NODES


def get_launcher(name: str) -> Launcher:
    """The launcher of this name.

    Raises:
        ConfigurationError: there is none.
    """
    if name not in _LAUNCHERS:
        raise ConfigurationError(f"launcher {name!r} is unknown", allowed=", ".join(launcher_names()))
    module, attribute = _LAUNCHERS[name]
    return cast(Launcher, getattr(importlib.import_module(module, __package__), attribute)())
