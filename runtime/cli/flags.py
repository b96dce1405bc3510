"""The command line of `forerun launch`, derived from the table of options: its flags, its help, and what was typed."""

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ..config.option_kinds import FALSE_WORDS, TRUE_WORDS, Flag, Many, Option, Word, write_text
from ..config.option_table import table
from ..errors import ConfigurationError

_SEPARATED = "runtime.cli.separated"
_WORDS = (*TRUE_WORDS, *FALSE_WORDS)
_LAUNCHERS_OWN = (
    "--num-processes",
    "--num-machines",
    "--machine-rank",
    "--main-process-ip",
    "--main-process-port",
    "--multi-gpu",
    "--gpu-ids",
    "--dry-run",
)


@dataclass(frozen=True)
class Typed:
    """One option as it was typed; `text` is None where a value is missing."""

    option: Option
    text: str | None
    negated: bool = False


def normalise(arguments: Sequence[str]) -> list[str]:
    """The same command line with every option of ours as --dashed-name=TEXT; from the script on nothing changes.

    A flag may stand alone, with =WORD, or before one of true, yes, on, 1, false, no, off, 0.

    Raises:
        ConfigurationError: an option is given twice with different values.
    """
    texts: dict[str, str] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "--"):
        typed, used = _read_option(rest)
        if typed is None or typed.text is None:
            break  # unknown, or without its value: typer says so
        name, text = typed.option.name, typed.text
        if name in texts and isinstance(typed.option.kind, Many):
            text = f"{texts[name]},{text}"
        elif texts.get(name, text) != text:
            raise ConfigurationError(
                f"{typed.option.flag} is given twice: {texts[name]} and {text}",
                allowed="one value",
                next_step="leave one of them out",
            )
        texts[name] = text
        del rest[:used]
    return [f"{table()[name].flag}={text}" for name, text in texts.items()] + rest


def misplaced(arguments: Sequence[str]) -> list[str]:
    """Words among the script's arguments that are options of a launcher alone, unless the script has such ones too."""
    return [word for word in arguments if word.partition("=")[0].replace("_", "-") in _LAUNCHERS_OWN]


def knows_options(sources: Iterable[str], words: Sequence[str]) -> bool:
    """Whether a script may have these options itself: its text, or that of a file beside it, names each; or it reads
    sys.argv by itself.

    Args:
        sources: the script's text first; the others' are asked for only as long as they are needed.
    """
    names = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in words}
    for number, source in enumerate(sources):
        if number == 0 and "sys.argv" in source:
            return True
        spelt = source.replace("-", "_")
        names -= {name for name in names if name in spelt}
        if not names:
            return True
    return False


def _read_option(words: Sequence[str]) -> tuple[Typed | None, int]:
    """The option at the front and how many words it takes."""
    head, equals, attached = words[0].partition("=")
    option, negated = _find(head)
    if option is None:
        return None, 0
    following = words[1] if len(words) > 1 else None
    if isinstance(option.kind, Flag):
        text, used = "true", 1
        if equals:
            text = attached
        elif following is not None and (following == "" or following.lower() in _WORDS):
            text, used = following, 2
        if negated:
            text = write_text(not Flag().parse(text)) if text.lower() in _WORDS else text
        return Typed(option, text), used
    if equals:
        return Typed(option, attached), 1
    return Typed(option, following), 2


def _find(head: str) -> tuple[Option | None, bool]:
    if not head.startswith("--"):
        return next(
            (option for option in table().values() if option.letter and head == f"-{option.letter}"), None
        ), False
    name = head[2:].replace("-", "_")
    option = table().get(name)
    if option is not None:
        return option, False
    positive = table().get(name.removeprefix("no_")) if name.startswith("no_") else None
    return (positive, True) if positive is not None and isinstance(positive.kind, Flag) else (None, False)


class LaunchCommand(typer.core.TyperCommand):
    """Sees the words before typer does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            words = normalise(args)
        except ConfigurationError as error:
            sys.stderr.write(f"error: {error}\n")
            raise typer.Exit(2) from error
        ours = next((number for number, word in enumerate(words) if "=" not in word or word[:2] != "--"), len(words))
        ctx.meta[_SEPARATED] = words[ours : ours + 1] == ["--"]
        return super().parse_args(ctx, words)


def with_options(function: Callable[..., None], *, document: str | None) -> Callable[..., None]:
    """The function as typer sees it: script, arguments, each option of the table as a text; and whether -- stood
    before the script."""

    def command(**values: Any) -> None:
        texts = {name: values[name] for name in table() if values.get(name) is not None}
        function(
            values["script"], tuple(values["arguments"] or ()), texts, separated=values["context"].meta[_SEPARATED]
        )

    parameters = {
        "context": typer.Context,
        "script": Annotated[str, typer.Argument(help="Python script (with -m: module) that every process runs.")],
        "arguments": Annotated[
            list[str] | None, typer.Argument(metavar="[ARGUMENTS]...", help="The script's own, passed on untouched.")
        ],
        **{name: Annotated[str | None, _typer_option(option)] for name, option in table().items()},
    }
    command.__doc__ = document
    command.__annotations__ = {**parameters, "return": None}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # what inspect and typer read
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=annotation,
                default=inspect.Parameter.empty if name in ("context", "script") else None,
            )
            for name, annotation in parameters.items()
        ]
    )
    return command


def _typer_option(option: Option) -> Any:
    letters = [f"-{option.letter}"] if option.letter else []
    metavar = "[true|false]" if isinstance(option.kind, Flag) else type(option.kind).__name__.upper()
    if isinstance(option.kind, Word) and len(option.kind.allowed) <= 40:
        metavar = "|".join(option.kind.words)
    text = option.help
    if option.effect == "absent":
        text += " Not in this version."
    if option.effect == "none":
        text += f" No effect: {option.remark}."
    return typer.Option(
        *letters, option.flag, metavar=metavar, help=text, rich_help_panel=option.panel, show_default=False
    )
