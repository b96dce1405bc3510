"""Before there is a plan: the machine, and the names that its Python knows."""

import sys
from collections.abc import Sequence
from pathlib import Path

from tools.check_api import check_api
from tools.domain.errors import InvalidInput
from tools.domain.reports import ApiReport, EnvironmentReport
from tools.inspect_environment import inspect_environment
from tools.probe import find_interpreter
from tools.probe.interpreter import default_interpreter

from .workplace import Workplace


def environment(place: Workplace, *, python: str, paths: Sequence[str]) -> EnvironmentReport:
    """The machine as `python` sees it, and the size of what lies at `paths`."""
    resolved = [place.roots.resolve(path, what="path") for path in paths]
    return inspect_environment(python=_interpreter(place, python, resolved), paths=resolved)


def api(place: Workplace, *, python: str, names: Sequence[str], script: str) -> ApiReport:
    """Whether the names exist in what `python` has installed, or as flags of the script."""
    path = place.roots.resolve(script, what="script") if script else None
    return check_api(
        python=_interpreter(place, python, [path] if path else []), names=names, script=path, roots=place.roots
    )


def _interpreter(place: Workplace, python: str, near: Sequence[Path]) -> str:
    """The same choice as validate_inputs makes: as named, else the environment beside the files, else our own."""
    roots = place.roots.roots
    if python:
        found = find_interpreter(python, base=roots[0])
        if found is None:
            raise InvalidInput(
                f"python {python!r} is no executable file",
                allowed="a path such as .venv/bin/python, or empty",
                next_step="name the Python that trains, or leave it empty",
            )
        return str(found)
    return str(default_interpreter([*near, *roots], within=roots) or sys.executable)
