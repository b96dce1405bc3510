"""YAML and JSON read into texts with places: no scalar is interpreted here, so no syntax can change a value."""

import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigurationError

_MAX_BYTES = 2**20
_PLAIN_NULLS = ("", "~", "null")


@dataclass(frozen=True)
class Scalar:
    """A text as it stands in a file, None for null; `place` names file and line."""

    text: str | None
    place: str


@dataclass(frozen=True)
class Branch:
    """A mapping (`entries`) or a list (`items`) in a file."""

    place: str
    entries: "dict[str, Scalar | Branch] | None" = None
    items: "tuple[Scalar | Branch, ...] | None" = None


Node = Scalar | Branch


def read_tree(path: Path) -> Branch:
    """The mapping that the file holds.

    Raises:
        ConfigurationError: it is no readable text file of at most 1 MiB, no YAML or JSON, or no mapping.
    """
    return parse_tree(_read_text(path), path)


def parse_tree(text: str, path: Path) -> Branch:
    """read_tree for a text that is to be, or was, the content of the file."""
    stripped = text.lstrip("\ufeff \t\r\n")
    tree = _from_json(stripped, path) if stripped.startswith("{") else _from_yaml(text, path)
    if isinstance(tree, Scalar) and tree.text is None:
        return Branch(str(path), entries={})
    if not isinstance(tree, Branch) or tree.entries is None:
        raise ConfigurationError(
            f"{path} holds no settings: its top level is no mapping",
            allowed="lines such as `num_processes: 2`",
            next_step="make a file with `forerun config`",
        )
    return tree


def _read_text(path: Path) -> str:
    what = ""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            what = "is a directory"
        elif not stat.S_ISREG(status.st_mode) and str(path) != os.devnull:
            what = "is no regular file"
        elif status.st_size > _MAX_BYTES:
            what = f"has {status.st_size} bytes, too many for a configuration (at most {_MAX_BYTES})"
        else:
            return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"is no UTF-8 text (byte {error.start})"
    except (OSError, ValueError) as error:
        what = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error}"
    raise ConfigurationError(
        f"configuration file {str(path)!r} {what}",
        allowed="a YAML or JSON file",
        next_step="correct --config-file, or make a file with `forerun config`",
    )


def _broken(path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"{path}{what}", next_step="correct the file, or make one with `forerun config`")


def _from_yaml(text: str, path: Path) -> Node:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise _broken(path, f"{line} is no YAML: {problem}") from error
    except RecursionError as error:
        raise _broken(path, " is nested too deeply") from error
    if root is None:
        return Scalar(None, str(path))
    return _Tree(path).convert(root)


class _Tree:
    """Converts YAML's nodes; an alias would make one node stand in two places, so none is allowed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: set[int] = set()

    def convert(self, node: yaml.Node) -> Node:
        place = f"{self._path}:{node.start_mark.line + 1}"
        if id(node) in self._seen:
            raise _broken(self._path, f":{node.start_mark.line + 1} is used a second time by an alias: write it out")
        self._seen.add(id(node))
        if not node.tag.startswith("tag:yaml.org,2002:") or node.tag.startswith("tag:yaml.org,2002:python"):
            raise _broken(self._path, f":{node.start_mark.line + 1} has the tag {node.tag}: remove it")
        if isinstance(node, yaml.ScalarNode):
            plain = node.style is None
            return Scalar(None if plain and node.value.lower() in _PLAIN_NULLS else node.value, place)
        if isinstance(node, yaml.SequenceNode):
            return Branch(place, items=tuple(self.convert(item) for item in node.value))
        assert isinstance(node, yaml.MappingNode)
        return Branch(place, entries=dict(self._entries(node)))

    def _entries(self, node: yaml.MappingNode) -> Iterator[tuple[str, Node]]:
        places: dict[str, str] = {}
        for key, value in node.value:
            place = f"{self._path}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise _broken(self._path, f":{key.start_mark.line + 1} has a key that is no word")
            if key.value in places:
                raise _broken(self._path, f": {key.value!r} stands at {places[key.value]} and again at {place}")
            places[key.value] = place
            converted = self.convert(value)
            yield key.value, converted if isinstance(converted, Branch) else Scalar(converted.text, place)


class _Repeated(ValueError):
    pass


def _from_json(text: str, path: Path) -> Node:
    def pairs(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in entries:
            if key in found:
                raise _Repeated(f": {key!r} stands there twice")
            found[key] = value
        return found

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_int=_Raw, parse_float=_Raw, parse_constant=_no_constant)
    except _Repeated as error:
        raise _broken(path, str(error)) from error
    except RecursionError as error:
        raise _broken(path, " is nested too deeply") from error
    except ValueError as error:
        try:
            return _from_yaml(text, path)  # YAML's flow style looks like JSON
        except ConfigurationError:
            raise _broken(path, f" is no JSON: {error}") from error
    return _from_data(data, str(path))


class _Raw(str):
    """A number of a JSON file as it is written there."""


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def _from_data(data: Any, place: str, name: str = "") -> Node:
    where = f"{place} ({name})" if name else place
    if isinstance(data, dict):
        prefix = f"{name}." if name else ""
        return Branch(where, entries={key: _from_data(value, place, f"{prefix}{key}") for key, value in data.items()})
    if isinstance(data, list):
        return Branch(where, items=tuple(_from_data(item, place, f"{name}[{i}]") for i, item in enumerate(data)))
    if data is None:
        return Scalar(None, where)
    if isinstance(data, bool):
        return Scalar("true" if data else "false", where)
    return Scalar(str(data), where)
