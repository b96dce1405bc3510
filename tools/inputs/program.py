"""The script and the interpreter: found, readable, and not shadowing our runtime by a package of the same name."""

import sys
from collections.abc import Mapping
from pathlib import Path

import runtime

from ..domain.errors import InvalidInput
from ..domain.paths import AllowedRoots
from ..probe import InterpreterFacts, default_interpreter, find_interpreter, probe_interpreter
from .notes import Notes, nearest_files
from .script_source import ScriptSource, defined_names, read_script

MIN_PYTHON = (3, 11)
MIN_TORCH = (2, 6)


def find_script(text: str, roots: AllowedRoots, notes: Notes) -> ScriptSource | None:
    """The parsed script; None if there is none, with a finding."""
    if not text:
        notes.error("script_missing", "no script was named", "script=PATH of a Python file inside the roots")
        return None
    try:
        path = roots.resolve(text, what="script")
    except InvalidInput as error:
        notes.refusal("outside_roots", error)
        return None
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        notes.error("script_missing", f"script {path} {what}", nearest_files(path, suffix=".py"))
        return None
    source = read_script(path)
    if source.syntax_error:
        notes.error("script_syntax", f"script {path.name} does not compile: {source.syntax_error}", "mend the script")
    return source


def note_shadowing(source: ScriptSource, environment: Mapping[str, str], notes: Notes) -> None:
    """The user's own `runtime` wins over ours; a script that wants ours would then fail, so it is refused here."""
    if not source.imports_runtime:
        return
    folders = [source.path.parent, *(Path(p) for p in environment.get("PYTHONPATH", "").split(":") if p)]
    for folder in folders:
        for own in (folder / "runtime", folder / "runtime.py"):
            is_package = own.is_dir() and any(own.glob("*.py"))
            if own.resolve() == Path(runtime.__file__).resolve().parent or not (is_package or own.is_file()):
                continue
            defined = defined_names(own)
            wanted = sorted(source.runtime_names & set(runtime.__all__))
            lacking = [name for name in wanted if defined is not None and name not in defined]
            if lacking:
                text = f"{source.path.name} imports {', '.join(lacking)} from runtime, but {own} comes before ours"
                hint = f"rename {own} (and its imports), or move the script to a folder without a `runtime` of its own"
                notes.error("runtime_shadowed", text, hint)
            return


def find_python(text: str, source: ScriptSource | None, roots: AllowedRoots, notes: Notes) -> str | None:
    """The interpreter's path; an empty text means the environment beside the script, else this server's own."""
    if text:
        path = find_interpreter(text, base=roots.roots[0])
        if path is None:
            near = nearest_files(Path(text)) if "/" in text else "give a path, such as .venv/bin/python"
            notes.error("python_missing", f"python {text!r} is no executable file", near)
            return None
        return str(path)
    found = default_interpreter([source.path] if source else [], within=roots.roots)
    chosen = str(found) if found else sys.executable
    where = "found beside the script" if found else "the one that runs this server"
    notes.note("python_chosen", f"python was not given: {chosen}, {where}", "give python to use another")
    return chosen


def ask_interpreter(
    python: str, source: ScriptSource | None, environment: Mapping[str, str], notes: Notes
) -> InterpreterFacts | None:
    """What the interpreter says of itself; None if it says nothing. Findings where it cannot train."""
    facts = probe_interpreter(python, environment=environment)
    if facts.error is not None or facts.version is None:
        notes.error("python_fails", f"python {python} does not answer: {facts.error}", "name the project's own Python")
        return None
    if _numbers(facts.version) < MIN_PYTHON:
        wanted = ".".join(map(str, MIN_PYTHON))
        notes.error("python_too_old", f"{python} is Python {facts.version}", f"Python {wanted} or newer trains here")
    if facts.torch_version is None:
        hint = "name the Python in which the project trains, or install torch into this one"
        notes.error("no_torch", f"{python} has no torch", hint)
    elif facts.torch_error:
        notes.error("torch_fails", f"torch in {python} does not import: {facts.torch_error}", "mend that environment")
    elif _numbers(facts.torch_version) < MIN_TORCH:
        wanted = ".".join(map(str, MIN_TORCH))
        notes.error(
            "torch_too_old", f"{python} has torch {facts.torch_version}", f"torch {wanted} or newer trains here"
        )
    if source is not None and source.imports_runtime and "numpy" not in facts.packages:
        notes.error("no_numpy", f"{python} has no numpy, which forerun's runtime needs", "install numpy into it")
    return facts


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)
