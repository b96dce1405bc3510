"""Proposals for the small run, from the script's own flags."""

import shlex
from collections.abc import Sequence

from ..domain.findings import Question
from .script_source import Flag, ScriptSource

_STEPS = (
    "max_steps",
    "num_steps",
    "max_train_steps",
    "max_iters",
    "max_iterations",
    "num_iterations",
    "steps",
    "iters",
)
_EPOCHS = ("epochs", "num_epochs", "num_train_epochs", "max_epochs", "n_epochs")
_LOGGING = ("logging_steps", "log_interval", "log_every", "log_every_n_steps")
SAME = "same"


def ask_for_smoke_args(source: ScriptSource, arguments: Sequence[str], *, num_steps: int) -> Question:
    """All arguments of the small run; proposed are the full run's with the flags that make it short."""
    proposal = shlex.join(propose(source, arguments, num_steps=num_steps)) or SAME
    text = (
        f"Which arguments make the run small (about {num_steps} optimizer steps, with a checkpoint)? They replace all "
        f"of the full run's; `{SAME}` keeps those."
    )
    if source.imports_runtime:
        text += " On forerun's runtime the loaders end after the smoke steps by themselves."
    return Question(id="smoke_args", text=text, proposal=proposal)


def propose(source: ScriptSource, arguments: Sequence[str], *, num_steps: int) -> list[str]:
    """The full run's arguments with the steps or epochs cut, as far as the script has a flag for it."""
    changed = list(arguments)
    if source.parser_name == "HfArgumentParser":  # its TrainingArguments always have these
        for name, value in (("--max_steps", num_steps), ("--logging_steps", 1), ("--save_steps", num_steps)):
            _put(changed, Flag((name,)), str(value))
        return changed
    steps = _flag(source, _STEPS)
    epochs = _flag(source, _EPOCHS)
    if steps:
        _put(changed, steps, str(num_steps))
    elif epochs:
        _put(changed, epochs, "1")
    logging = _flag(source, _LOGGING)
    if logging and not source.imports_runtime:
        _put(changed, logging, "1")
    return changed


def parse_smoke_args(text: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """The answer as arguments.

    Raises:
        ValueError: quotes that do not close.
    """
    if text.strip().lower() in ("", SAME):
        return tuple(arguments)
    return tuple(shlex.split(text))


def _flag(source: ScriptSource, names: Sequence[str]) -> Flag | None:
    options = source.options
    for name in names:
        for spelling in (f"--{name}", f"--{name.replace('_', '-')}"):
            if spelling in options and options[spelling].nargs != 0:
                return options[spelling]
    return None


def _put(arguments: list[str], flag: Flag, value: str) -> None:
    for index, argument in enumerate(arguments):
        name, equals, _ = argument.partition("=")
        if name in flag.names and equals:
            arguments[index] = f"{name}={value}"
            return
        if name in flag.names and index + 1 < len(arguments):
            arguments[index + 1] = value
            return
    arguments += [max(flag.names, key=len), value]
