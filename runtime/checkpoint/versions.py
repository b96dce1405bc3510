"""The versions that a checkpoint names: of what wrote it."""

import platform
from importlib.metadata import PackageNotFoundError, version

import torch


def versions() -> dict[str, str | None]:
    """By name; None where it is unknown (the runtime may be used from a folder)."""
    try:
        own: str | None = version("forerun")
    except PackageNotFoundError:
        own = None
    return {"forerun": own, "torch": torch.__version__, "python": platform.python_version()}
