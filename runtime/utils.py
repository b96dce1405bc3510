"""The second import path of the Accelerate API (`from runtime.utils import set_seed`): the same lazy names."""

import sys
from typing import Any

_PARENT = sys.modules[__name__.rpartition(".")[0]]

__all__ = list(_PARENT.__all__)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_PARENT, name)
