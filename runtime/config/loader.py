"""Configuration files: ours, Accelerate's default_config.yaml, or a DeepSpeed JSON. Every key is known or refused."""

import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ..deepspeed_keys import OWN
from ..errors import ConfigurationError
from ..files import write_atomic
from .deepspeed_file import DeepSpeedFile, looks_like_deepspeed, read_deepspeed
from .file_syntax import Branch, Node, Scalar, parse_tree, read_tree
from .option_kinds import Many, Option, WrongValue, parse_text
from .option_table import FORMAT, FORMAT_KEY, all_keys, nearest, own_keys, table

Form = Literal["forerun", "accelerate", "deepspeed"]
_SURELY = 0.9  # how near a key must be for its file to be taken for one of a known form
_HEADER = "# Written by `forerun config`. Shown with every value's origin by `forerun launch --explain SCRIPT`.\n"


@dataclass(frozen=True)
class Given:
    """A value that somebody gave, and where."""

    value: Any
    place: str


@dataclass(frozen=True)
class ConfigFile:
    """What a file says. A key whose value is null is not in `values`."""

    path: Path
    form: Form
    values: dict[str, Given]
    deepspeed: DeepSpeedFile | None = None


@dataclass
class _Reading:
    form: Form = "forerun"
    values: dict[str, Given] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def load(path: Path) -> ConfigFile:
    """Read and check a configuration file.

    Raises:
        ConfigurationError: the file is unreadable or foreign, or some keys or values are wrong; all are named.
    """
    return interpret(read_tree(path), path)


def interpret(tree: Branch, path: Path) -> ConfigFile:
    """What a file's tree says; raises as load does."""
    entries = tree.entries or {}
    if looks_like_deepspeed(entries) or _nearly_deepspeed(entries):
        deepspeed = read_deepspeed(path, tree)
        return ConfigFile(path, "deepspeed", deepspeed_values(deepspeed), deepspeed)
    form = _form(entries, path)
    known = own_keys() if FORMAT_KEY in entries else all_keys()
    reading = _Reading(form)
    for key, node in _leaves(entries, known, reading):
        _read(key, node, known, reading)
    if reading.problems:
        raise ConfigurationError(
            f"{path}: {'; '.join(reading.problems)}",
            next_step="correct the file, or make one with `forerun config`",
        )
    return ConfigFile(path, form, reading.values)


def deepspeed_values(file: DeepSpeedFile) -> dict[str, Given]:
    """The options that a DeepSpeed configuration answers."""
    found = {"strategy": Given("deepspeed", str(file.path))}
    for name, given in (
        ("mixed_precision", file.precision),
        ("zero_stage", file.zero_stage),
        ("gradient_accumulation_steps", file.batches.accumulation),
    ):
        if given is not None and given.value is not None:
            found[name] = Given(given.value, given.place)
    return found


def dump(values: dict[str, Any]) -> str:
    """A file of ours that loads to exactly these values, in the table's order."""
    data: dict[str, Any] = {FORMAT_KEY: FORMAT}
    for name, option in table().items():
        if name not in values or values[name] is None:
            continue
        assert option.in_file, name
        value = list(values[name]) if isinstance(values[name], tuple) else values[name]
        target = data.setdefault(option.section, {}) if option.section else data
        target[option.key.rpartition(".")[2]] = value
    return _HEADER + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=10_000)


def save(path: Path, values: dict[str, Any]) -> None:
    """Write a file of ours, whole or not at all; what could not be read again is never written.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    text = dump(values)
    _require_readable(text, path, values)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.encode())
    except OSError as error:
        raise _not_writable(path, error) from error


def require_writable(path: Path) -> None:
    """That save could write this file, as far as a look can tell; nothing is left of it. Raises as save does."""
    folder = path.parent
    try:
        while not os.path.lexists(folder) and folder != folder.parent:
            folder = folder.parent
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_writable(path, error) from error


def _not_writable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written: {error.strerror}",
        allowed="a file in a directory that you may write to",
        next_step="give another one to --config-file",
    )


def _require_readable(text: str, path: Path, values: dict[str, Any]) -> None:
    read = interpret(parse_tree(text, path), path).values
    wanted = {name: value for name, value in values.items() if value is not None}
    assert {name: given.value for name, given in read.items()} == wanted, (read, wanted)


def _form(entries: dict[str, Node], path: Path) -> Form:
    marker = entries.get(FORMAT_KEY)
    if marker is not None:
        number = marker.text if isinstance(marker, Scalar) else None
        if number != str(FORMAT):
            raise ConfigurationError(
                f"{path}: {FORMAT_KEY} is {number!r}",
                allowed=str(FORMAT),
                next_step="install a newer forerun, or make the file again with `forerun config`",
            )
        return "forerun"
    sections = {key.partition(".")[0] for key in all_keys()}
    if entries and not any(_nearest(key, sections, cutoff=_SURELY) in sections for key in entries):
        raise ConfigurationError(
            f"{path} is no configuration of a launch: none of its keys is known ({', '.join(list(entries)[:5])})",
            allowed="a file of `forerun config`, of `accelerate config`, or a DeepSpeed JSON",
            next_step="make a file with `forerun config`",
        )
    own = {key.partition(".")[0] for key in own_keys()}
    theirs = "compute_environment" in entries or "distributed_type" in entries
    return "accelerate" if theirs or any(key not in own for key in entries) else "forerun"


def _nearly_deepspeed(entries: dict[str, Node]) -> bool:
    """Whether all that is known of the keys is that one is a misspelt key of DeepSpeed's."""
    known = {key.partition(".")[0] for key in all_keys()}
    return not known & set(entries) and any(nearest(key, OWN, cutoff=_SURELY) for key in entries)


def _nearest(key: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """As nearest, whatever its case, with spaces or dashes for underscores."""
    return nearest(re.sub(r"[\s-]+", "_", key.strip()).lower(), known, cutoff=cutoff)


def _leaves(entries: dict[str, Node], known: dict[str, Option], reading: _Reading) -> list[tuple[str, Node]]:
    """(key in full, value); sections are opened, a mapping elsewhere is a problem."""
    sections = {key.partition(".")[0] for key in known if "." in key}
    leaves: list[tuple[str, Node]] = []
    for key, node in entries.items():
        if key == FORMAT_KEY:
            continue
        if key not in sections:
            leaves.append((key, node))
        elif isinstance(node, Branch) and node.entries is not None:
            leaves += [(f"{key}.{name}", inner) for name, inner in node.entries.items()]
        elif not (isinstance(node, Scalar) and node.text is None):
            reading.problems.append(f"{key} ({_line(node)}) is a section: write its keys below it")
    return leaves


def _read(key: str, node: Node, known: dict[str, Option], reading: _Reading) -> None:
    option = known.get(key)
    if option is None:
        near = _nearest(key, known)
        meant = f", did you mean {near}?" if near else ""
        reading.problems.append(f"unknown key {key} ({_line(node)}){meant}")
        return
    try:
        value = _value(option, node, reading.form)
    except WrongValue as error:
        seen = repr(node.text) if isinstance(node, Scalar) else "a mapping or list"
        reading.problems.append(f"{key} is {seen} ({_line(node)}), allowed: {error}")
        return
    if value is None:
        return
    earlier = reading.values.get(option.name)
    if earlier is not None and earlier.value != value:
        reading.problems.append(f"{key} is {value!r} ({_line(node)}), but {earlier.value!r} at {earlier.place}")
        return
    reading.values[option.name] = Given(value, node.place)


def _value(option: Option, node: Node, form: Form) -> Any:
    if isinstance(node, Scalar):
        is_unset = node.text is None or (form == "accelerate" and node.text == option.peer_unset != "")
        return None if is_unset else parse_text(option, node.text or "")
    if isinstance(option.kind, Many) and node.items is not None:
        texts = [item.text for item in node.items if isinstance(item, Scalar) and item.text is not None]
        if len(texts) == len(node.items):
            return tuple(texts) or None
    if node.entries == {}:
        return None
    raise WrongValue(option.kind.allowed)


def _line(node: Node) -> str:
    _, _, line = node.place.rpartition(":")
    return f"line {line}" if line.isdecimal() else node.place
