"""The line that every benchmark prints first: what its figures belong to."""

import os
import platform
from importlib.metadata import version


def describe_machine(*packages: str) -> str:
    """Python, the versions of these packages, CPUs and their load."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    load = os.getloadavg()[0]
    python = platform.python_version()
    return f"Python {python}, {versions}, {os.cpu_count()} CPUs, {platform.system()}, load average {load:.1f}"
