"""Looking names up in the installed packages, and asking programs for their --help."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import LaunchError
from runtime.launchers import process

from .asking import NoAnswer, ask

_IMPORT_TIMEOUT_S = 180.0
_HELP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class NameAnswer:
    """What the interpreter says of one dotted name or parameter."""

    found: bool
    kind: str = ""
    signature: str = ""
    summary: str = ""
    nearest: tuple[str, ...] = ()
    package: str = ""
    version: str | None = None
    reason: str = ""


def look_up(
    python: str, names: Sequence[tuple[str, str]], *, environment: Mapping[str, str] | None = None
) -> list[NameAnswer]:
    """One answer for each (dotted name, parameter or ''). Only the named packages are imported, over there."""
    question = {"names": [{"path": path, "parameter": parameter} for path, parameter in names]}
    try:
        answer = ask(python, "api", question, timeout_s=_IMPORT_TIMEOUT_S, environment=environment)
    except NoAnswer as error:
        return [NameAnswer(found=False, reason=str(error)) for _ in names]
    return [_name_answer(item) for item in answer["names"]]


def _name_answer(item: dict[str, Any]) -> NameAnswer:
    return NameAnswer(**{**item, "nearest": tuple(item["nearest"])})


def find_program(python: str, name: str) -> Path | None:
    """The console script `name` that lies beside this interpreter; None if there is none."""
    if not re.fullmatch(r"[\w.\-]+", name):
        return None
    path = Path(python).parent / name
    return path if path.is_file() and os.access(path, os.X_OK) else None


def program_help(
    argv: Sequence[str], *, environment: Mapping[str, str], working_directory: Path
) -> tuple[str | None, str]:
    """What `argv --help` prints, and how that went; None if it failed or took too long."""
    try:
        done = process.run(
            [*argv, "--help"], timeout_s=_HELP_TIMEOUT_S, environment=environment, working_directory=working_directory
        )
    except LaunchError as error:
        return None, error.what
    if done.timed_out:
        return None, f"--help did not end within {_HELP_TIMEOUT_S:g} s"
    text = done.stdout + "\n" + done.stderr
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1][:200]
        return None, f"--help ended with exit code {done.returncode}: {last}"
    return text, "read from what --help prints"
