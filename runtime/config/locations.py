"""Where a configuration file lies: the one that is named, else the one at home if it is there."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigurationError


def default_path(environ: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/forerun/config.yaml, or that in ~/.config."""
    base = environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path("~/.config").expanduser()) / "forerun" / "config.yaml"


def find_file(named: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read; None if none is named and none lies at home.

    Raises:
        ConfigurationError: the name begins with the home of nobody.
    """
    if named is None:
        path = default_path(environ)
        return path if path.exists() else None
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(f"--config-file {named!r}: {error}", next_step="correct the path") from error
