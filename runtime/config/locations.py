"""Where a configuration file lies: the one that is named, else the one at home if it is there."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import ConfigurationError


def default_path(environ: Mapping[str, str]) -> Path:
    """$XDG_CONFIG_HOME/forerun/config.yaml, or that in ~/.config.

    Raises:
        ConfigurationError: there is no home directory.
    """
    base = environ.get("XDG_CONFIG_HOME", "")
    try:
        home = Path(base) if base.startswith("/") else Path("~/.config").expanduser()
    except RuntimeError as error:
        raise ConfigurationError(
            f"no home directory: {error}", next_step="name a file with --config-file, or set HOME"
        ) from error
    return home / "forerun" / "config.yaml"


def expanded(text: str, place: str) -> Path:
    """The path that a text means: a shell expands ~ in a word of its own alone, not in --flag=~/x, variables or files.

    Raises:
        ConfigurationError: it begins with the home of nobody.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigurationError(f"{place} {text!r}: {error}", next_step="correct the path") from error


def find_file(named: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read; None if none is named and none lies at home.

    Raises:
        ConfigurationError: the name begins with the home of nobody.
    """
    return _at_home(environ) if named is None else expanded(named, "--config-file")


def _at_home(environ: Mapping[str, str]) -> Path | None:
    try:
        path = default_path(environ)
    except ConfigurationError:
        return None  # without a home there is no file in it
    try:
        return path if path.exists() else None
    except OSError:
        return path  # it is there, and reading it will say what is wrong
