"""One value for each option, with its origin: argument > command line > environment > file > default."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import ConfigurationError
from .loader import ConfigFile, Given
from .locations import expanded
from .option_kinds import Option, WrongValue, parse_text, write_text
from .option_table import nearest, table, variables

Origin = Literal["argument", "command line", "environment", "file", "default"]
_OTHER_VARIABLES = ("FORERUN_RUN", "FORERUN_RUN_DIR", "FORERUN_SMOKE_STEPS", "FORERUN_RESUME", "FORERUN_NO_SKIPS")


@dataclass(frozen=True)
class Value:
    """An option's value.

    Attributes:
        place: the flag, the variable, or the file and line; empty for a default.
        overruled: what weaker sources said, if they said something else.
    """

    value: Any
    origin: Origin
    place: str = ""
    overruled: tuple[Given, ...] = ()

    @property
    def is_given(self) -> bool:
        return self.origin != "default"

    def said(self, name: str) -> str:
        """Such as "num_machines 1 (config.yaml:3)"."""
        return f"{name} {write_text(self.value)} ({self.place or 'default'})"


@dataclass(frozen=True)
class Source:
    """What one source gives, by option."""

    origin: Origin
    values: Mapping[str, Given]


@dataclass(frozen=True)
class Resolved:
    """Every option of the table."""

    values: Mapping[str, Value]
    file: ConfigFile | None = None

    def __getitem__(self, name: str) -> Value:
        return self.values[name]

    def get(self, name: str) -> Any:
        return self.values[name].value

    def path(self, name: str) -> Path:
        """A given path; a relative one in a file is meant from that file's folder, if it is not found from here."""
        value = self.values[name]
        path = expanded(value.value, value.place)
        if value.origin == "file" and self.file is not None and not path.is_file():
            return self.file.path.parent / path
        return path

    def given(self) -> dict[str, Value]:
        return {name: value for name, value in self.values.items() if value.is_given}


@dataclass
class _Parsed:
    values: dict[str, Given] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, option: Option, text: str, place: str) -> None:
        try:
            value = parse_text(option, text)
        except WrongValue as error:
            self.problems.append(f"{place} {text!r}, allowed: {error}")
            return
        if value is not None:
            self.values[option.name] = Given(value, place)


def from_command_line(texts: Mapping[str, str]) -> Source:
    """Texts of flags, by option.

    Raises:
        ConfigurationError: some are no values; all are named.
    """
    parsed = _Parsed()
    for name, text in texts.items():
        option = table()[name]
        parsed.add(option, text, option.flag)
    _require_none(parsed.problems, "correct them")
    return Source("command line", parsed.values)


def from_environment(environ: Mapping[str, str]) -> Source:
    """The FORERUN_ variables of options; one that is nearly the name of an option is an error.

    Raises:
        ConfigurationError: some are no values, or misspelt; all are named.
    """
    parsed, known = _Parsed(), variables()
    for name, text in sorted(environ.items()):
        if name in known:
            parsed.add(known[name], text, name)
        elif name.startswith("FORERUN_") and name not in _OTHER_VARIABLES:
            near = nearest(name, known, cutoff=0.87)
            if near:
                parsed.problems.append(f"{name} is no variable of forerun, did you mean {near}?")
    _require_none(parsed.problems, "unset or correct them")
    return Source("environment", parsed.values)


def from_arguments(values: Mapping[str, Any]) -> Source:
    """Values that a program gives; they pass the same parser. None is not given.

    Raises:
        ConfigurationError: some are no values, or unknown; all are named.
    """
    parsed = _Parsed()
    for name, value in values.items():
        option = table().get(name)
        if option is None:
            near = nearest(name, table())
            parsed.problems.append(f"unknown argument {name}" + (f", did you mean {near}?" if near else ""))
        elif value is not None:
            parsed.add(option, ",".join(value) if isinstance(value, list) else write_text(value), f"{name}=")
    _require_none(parsed.problems, "correct them")
    return Source("argument", parsed.values)


def resolve(sources: Sequence[Source], file: ConfigFile | None = None) -> Resolved:
    """The first source that gives an option decides it; `sources` are in order, the file comes after them."""
    ordered = [*sources, *([Source("file", file.values)] if file is not None else [])]
    values = {}
    for name, option in table().items():
        said = [(source.origin, source.values[name]) for source in ordered if name in source.values]
        if not said:
            values[name] = Value(option.default, "default")
            continue
        origin, first = said[0]
        overruled = tuple(given for _, given in said[1:] if given.value != first.value)
        values[name] = Value(first.value, origin, first.place, overruled)
    return Resolved(values, file)


def _require_none(problems: list[str], next_step: str) -> None:
    if problems:
        raise ConfigurationError("; ".join(problems), next_step=next_step)
