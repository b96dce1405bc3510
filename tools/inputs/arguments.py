"""The script's arguments against its own flags: unknown ones, values of the wrong kind, files that become absolute."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..domain.errors import InvalidInput
from ..domain.paths import AllowedRoots
from ..text import redact, shown
from .notes import Notes, nearest, nearest_files
from .script_source import Flag, ScriptSource

SEED_FLAGS = ("--seed", "--random_seed", "--random-seed", "--manual_seed")
WORKER_FLAGS = ("--num_workers", "--num-workers", "--dataloader_num_workers", "--dataloader-num-workers", "--workers")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$")
_NEGATIVE_NUMBER = re.compile(r"-(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$")
_DATA_SUFFIX = re.compile(r"\.(?:csv|tsv|jsonl?|ndjson|parquet|pq|np[yz]|ya?ml|toml|txt|pt|pth|bin|safetensors)$")
# A flag with one of these words at the start of a word may name what the run writes; the first ones surely do.
_SURE_OUTPUT = ("out", "save", "dump", "export", "write", "dest")
_OUTPUT = (*_SURE_OUTPUT, "log", "pred", "checkpoint", "ckpt", "result", "report", "cache", "tmp", "temp")


@dataclass(frozen=True)
class Value:
    """A value among the arguments: where it stands, and the flag that it belongs to ('' for a positional one)."""

    index: int
    flag: str
    text: str
    inline: bool


def check_arguments(source: ScriptSource, arguments: Sequence[str], notes: Notes, *, what: str) -> list[Value]:
    """Find everything that the script's parser would refuse; returns the values with their flags."""
    if any("\0" in argument for argument in arguments):
        notes.error("bad_argument", f"{what} hold a NUL byte", "no argument can")
        return []
    if redact(" ".join(arguments)) != " ".join(arguments):
        hint = (
            "let the script read it from the environment and name the variable in settings.pass_env; "
            "if it is no secret, give its option a name that does not look like one"
        )
        reason = "every process of the machine can read a command line, and a plan is kept and shown"
        notes.error("secret_argument", f"{what} seem to hold a secret ({_secrets(arguments)}): {reason}", hint)
    if source.parser == "none" and arguments and not source.reads_argv:
        text = f"{source.path.name} does not seem to read arguments, but {what} give {len(arguments)}"
        notes.warning("no_arguments_taken", text, "leave them out, or let the script parse them")
        return _loose_values(arguments)
    if source.parser != "argparse":
        if any(argument.startswith("--") for argument in arguments):
            how = f"they are built by {source.parser_name}" if source.parser_name else "the script reads sys.argv"
            notes.note("flags_not_checked", f"{what}: flags could not be read from the source: {how}", "check_api asks")
        return _loose_values(arguments)
    return _Reader(source, notes, what).read(list(arguments))


def _secrets(arguments: Sequence[str]) -> str:
    """Where the secrets stand, without any part of them."""
    places = []
    for index, argument in enumerate(arguments):
        before = arguments[index - 1] if index and arguments[index - 1].startswith("-") else ""
        alone = redact(argument) != argument
        if alone or (before and redact(shlex.join([before, argument])) != shlex.join([before, argument])):
            option = argument.partition("=")[0] if argument.startswith("-") else before
            places.append(shown(option) if option else f"number {index + 1}")
    return ", ".join(dict.fromkeys(places)) or "spread over several"


def _loose_values(arguments: Sequence[str]) -> list[Value]:
    """Values and the flags before them, when nothing is known of the flags."""
    values, flag = [], ""
    for index, argument in enumerate(arguments):
        if argument.startswith("-") and not _NEGATIVE_NUMBER.match(argument):
            name, equals, value = argument.partition("=")
            flag = "" if equals else name
            values += [Value(index, name, value, True)] if equals else []
        else:
            values.append(Value(index, flag, argument, False))
            flag = ""
    return values


class _Reader:
    """Walks the arguments as argparse does."""

    def __init__(self, source: ScriptSource, notes: Notes, what: str) -> None:
        self.source, self.notes, self.what = source, notes, what
        self.options = source.options
        self.values: list[Value] = []
        self.given: set[Flag] = set()
        self.positional: list[Value] = []

    def read(self, arguments: list[str]) -> list[Value]:
        index = 0
        while index < len(arguments):
            argument = arguments[index]
            if argument == "--":
                self.positional += [Value(i, "", arguments[i], False) for i in range(index + 1, len(arguments))]
                break
            if not self._is_option(argument):
                self.positional.append(Value(index, "", argument, False))
                index += 1
                continue
            index = self._option(arguments, index)
        self._finish()
        return self.values + self.positional

    def _is_option(self, argument: str) -> bool:
        return len(argument) > 1 and argument.startswith("-") and not _NEGATIVE_NUMBER.match(argument)

    def _option(self, arguments: list[str], index: int) -> int:
        name, equals, inline = arguments[index].partition("=")
        flag = self._find(name)
        if flag is None:
            if name[:2] in self.options and not name.startswith("--"):
                self.given.add(self.options[name[:2]])  # -n5
            else:
                self._unknown(name)
                while not equals and index + 1 < len(arguments) and not self._is_option(arguments[index + 1]):
                    index += 1
                    self.values.append(Value(index, name, arguments[index], False))
            return index + 1
        self.given.add(flag)
        if equals:
            if flag.nargs == 0:
                self.notes.error("flag_without_value", f"{self.what}: {name} takes no value", f"write {name} alone")
            self._take(flag, Value(index, name, inline, True))
            return index + 1
        return self._following(arguments, index, name, flag)

    def _following(self, arguments: list[str], index: int, name: str, flag: Flag) -> int:
        most = {None: 1, "?": 1}.get(flag.nargs, flag.nargs if isinstance(flag.nargs, int) else len(arguments))  # type: ignore[arg-type]  # keys beside these two fall to the default
        least = 1 if flag.nargs in (None, "+") else flag.nargs if isinstance(flag.nargs, int) else 0
        taken = 0
        while taken < most and index + 1 < len(arguments) and not self._is_option(arguments[index + 1]):
            index += 1
            taken += 1
            self._take(flag, Value(index, name, arguments[index], False))
        if taken < least:
            self.notes.error("value_missing", f"{self.what}: {name} needs {least} value(s)", f"write {name} VALUE")
        return index + 1

    def _find(self, name: str) -> Flag | None:
        if name in self.options or not (self.source.abbreviates and name.startswith("--")):
            return self.options.get(name)
        fitting = sorted(known for known in self.options if known.startswith(name))
        if len({self.options[known] for known in fitting}) > 1:
            self.notes.error(
                "ambiguous_flag", f"{self.what}: {name} may be any of {', '.join(fitting)}", "write it out"
            )
        elif fitting:
            self.notes.warning("abbreviated_flag", f"{self.what}: {name} is short for {fitting[0]}", "write it out")
        return self.options[fitting[0]] if fitting else None

    def _unknown(self, name: str) -> None:
        known = sorted(self.options)
        hint = f"{nearest(name, known)}; its flags: {', '.join(known[:40])}"
        text = f"{self.what}: {self.source.path.name} has no flag {name}"
        if self.source.ignores_unknown:
            self.notes.warning("unknown_flag", f"{text} and will ignore it (parse_known_args)", hint)
        elif self.source.complete:
            self.notes.error("unknown_flag", text, hint)
        else:
            self.notes.warning(
                "unknown_flag", f"{text} that its source shows; some flags are built while it runs", hint
            )

    def _take(self, flag: Flag, value: Value) -> None:
        self.values.append(value)
        text = value.text
        if flag.choices and text not in flag.choices:
            hint = f"allowed: {', '.join(flag.choices)}"
            self.notes.error("bad_value", f"{self.what}: {value.flag} {text!r} is none of its choices", hint)
        elif flag.type in ("int", "float") and "{run_dir}" not in text:
            try:
                int(text) if flag.type == "int" else float(text)
            except ValueError:
                kind = "an integer" if flag.type == "int" else "a number"
                self.notes.error("bad_value", f"{self.what}: {value.flag} {text!r} is not {kind}", f"give {kind}")

    def _finish(self) -> None:
        source = self.source
        for flag in source.flags:
            if flag.required and flag not in self.given and source.complete:
                text = f"{self.what}: {source.path.name} requires {flag.names[0]}"
                self.notes.error("required_flag", text, flag.help or f"add {flag.names[0]} VALUE")
        takes_any = any(flag.nargs in ("*", "+") or isinstance(flag.nargs, int) for flag in source.positionals)
        extra = self.positional[len(source.positionals) :]
        if extra and not takes_any and source.complete and not source.ignores_unknown:
            text = f"{self.what}: nothing takes {', '.join(repr(v.text) for v in extra[:5])}"
            self.notes.error("unexpected_value", text, "a value belongs right after its flag")


def seed_flag(source: ScriptSource) -> str | None:
    """The script's own seed flag."""
    return next((name for name in SEED_FLAGS if name in source.options), None)


def value_of(values: Sequence[Value], flags: Sequence[str]) -> str | None:
    """The last value given to one of these flags."""
    return next((value.text for value in reversed(values) if value.flag in flags), None)


def make_absolute(
    arguments: Sequence[str], values: Sequence[Value], *, script: Path, roots: AllowedRoots, notes: Notes, what: str
) -> tuple[tuple[str, ...], list[Path]]:
    """Arguments that name existing files become absolute, for the run has another working directory.

    Returns:
        The arguments, and the files and folders that they name.
    """
    changed = list(arguments)
    found: list[Path] = []
    words: list[str] = []
    for value in values:
        path = _existing(value, script, roots, notes, what)
        if path is None:
            continue
        found.append(path)
        if str(path) != value.text:
            changed[value.index] = f"{value.flag}={path}" if value.inline else str(path)
            words.append(f"{value.text} -> {path}")
    if words:
        notes.note("absolute_paths", f"arguments made absolute: {'; '.join(dict.fromkeys(words))}")
    return tuple(changed), found


def _existing(value: Value, script: Path, roots: AllowedRoots, notes: Notes, what: str) -> Path | None:
    """The resolved file that a value names; None if it names none. Folders count when written as a path."""
    text = value.text
    if not text or "{run_dir}" in text or len(text) > 4000 or "://" in text or _NUMBER.match(text):
        return None
    if _names(value.flag, _SURE_OUTPUT):
        return None  # stays relative: the run writes into its own working directory
    given = Path(text).expanduser()
    places = [given] if given.is_absolute() else [roots.roots[0] / given, script.parent / given]
    try:
        folders = "/" in text and not _names(value.flag, _OUTPUT)
        existing = [place for place in places if place.is_file() or (folders and place.is_dir())]
    except OSError:
        return None
    if not existing:
        _note_missing_input(value, places, notes, what)
        return None
    try:
        resolved = [roots.resolve(str(place), what=f"{value.flag or 'argument'}") for place in existing]
    except InvalidInput as error:
        notes.refusal("outside_roots", error)
        return None
    if len(set(resolved)) > 1:
        text = f"{what}: {text!r} names both {resolved[0]} and {resolved[1]}; the first is taken"
        notes.warning("ambiguous_path", text, "give an absolute path")
    return resolved[0]


def _names(flag: str, beginnings: Sequence[str]) -> bool:
    """Whether a word of the flag's name begins with one of these."""
    return any(word.startswith(tuple(beginnings)) for word in re.split(r"[-_.]+", flag.lower()))


def _note_missing_input(value: Value, places: Sequence[Path], notes: Notes, what: str) -> None:
    if not value.flag or not _DATA_SUFFIX.search(value.text.lower()) or _names(value.flag, _OUTPUT):
        return
    hint = f"{nearest_files(places[-1])}; a file that the run itself writes belongs below {{run_dir}}"
    notes.warning("argument_file_missing", f"{what}: {value.flag} names {value.text!r}, which does not exist", hint)
