"""check_api: does this name, parameter or command-line flag exist in the installed version, and how was that found."""

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import runtime.worker as worker
from runtime.env import current_environment

from .domain.errors import InvalidInput
from .domain.paths import AllowedRoots
from .domain.reports import ApiName, ApiReport
from .inputs.environment import base_variables
from .inputs.notes import close_names
from .inputs.script_source import ScriptSource, read_script
from .probe import NameAnswer, default_interpreter, find_interpreter, find_program, look_up, program_help
from .text import shown

MAX_NAMES = 100
_DOTTED = re.compile(r"(?P<path>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\s*(?P<parameter>[A-Za-z_]\w*)?\s*=?\s*\))?\Z")
_FLAG = re.compile(r"(?:(?P<program>[^\s-]\S*(?:\s+[^\s-]\S*)*)\s+)?(?P<flag>--?[A-Za-z0-9][\w.\-]*)(?:=.*)?\Z")
_HELP_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z0-9][\w.\-]*)")
_FORMS = "a.dotted.name, a.dotted.name(parameter), --flag with a script, script.py --flag, program --flag"


@dataclass(frozen=True)
class _FlagQuestion:
    name: str
    program: str
    flag: str


def check_api(
    *,
    python: str,
    names: Sequence[str],
    script: Path | None = None,
    roots: AllowedRoots | None = None,
    environment: Mapping[str, str] | None = None,
) -> ApiReport:
    """Look every name up.

    Dotted names are imported in a process of `python`. Flags are read from a script's source; only if they cannot be,
    and for installed programs, is `--help` run, under a deadline.

    Args:
        python: the interpreter that trains; empty: the environment beside the script, or this process's own.
        names: see _FORMS.
        script: the script that a bare --flag belongs to, resolved and inside the roots.
        roots: needed for names that bring their own script.

    Raises:
        InvalidInput: too many names, or none, or no such interpreter.
    """
    if not 0 < len(names) <= MAX_NAMES:
        raise InvalidInput(f"{len(names)} names", allowed=f"1 to {MAX_NAMES}", next_step="call again with fewer")
    executable = _interpreter(python, script)
    environment = base_variables(current_environment() if environment is None else environment)
    dotted = {name: match for name in names if (match := _DOTTED.match(name.strip()))}
    questions = [(match["path"], match["parameter"] or "") for match in dotted.values()]
    answers = look_up(executable, questions, environment=environment) if questions else []
    found = {name: _of_answer(name, answer) for name, answer in zip(dotted, answers, strict=True)}
    flags = _Flags(executable, script, roots, environment)
    for name in names:
        if name not in found:
            found[name] = flags.answer(name)
    return ApiReport(python=executable, names=tuple(_safe(found[name]) for name in names))


def _interpreter(python: str, script: Path | None) -> str:
    if not python:
        near = default_interpreter([script], within=[Path("/")]) if script else None
        return str(near) if near else sys.executable
    path = find_interpreter(python)
    if path is None:
        raise InvalidInput(f"python {python!r} is no executable file", next_step="name the project's own Python")
    return str(path)


def _of_answer(name: str, answer: NameAnswer) -> ApiName:
    return ApiName(
        name=name,
        found=answer.found,
        kind=answer.kind,
        signature=answer.signature[:1500],
        summary=answer.summary,
        nearest=answer.nearest,
        package=answer.package,
        version=answer.version,
        reason=answer.reason,
    )


def _safe(item: ApiName) -> ApiName:
    return item.model_copy(
        update={
            "name": shown(item.name),
            "signature": shown(item.signature),
            "summary": shown(item.summary),
            "nearest": tuple(shown(name) for name in item.nearest),
            "reason": shown(item.reason),
        }
    )


class _Flags:
    """Answers about flags; a program is asked for its help once."""

    def __init__(
        self, python: str, script: Path | None, roots: AllowedRoots | None, environment: Mapping[str, str]
    ) -> None:
        self.python, self.script, self.roots, self.environment = python, script, roots, environment
        self.helps: dict[tuple[str, ...], tuple[str | None, str]] = {}
        self.sources: dict[Path, ScriptSource] = {}

    def answer(self, name: str) -> ApiName:
        match = _FLAG.match(name.strip())
        if match is None:
            return ApiName(name=name, found=False, reason=f"not understood; forms: {_FORMS}")
        question = _FlagQuestion(name, match["program"] or "", match["flag"])
        if question.program and not question.program.split()[0].endswith(".py"):
            return self._of_program(question)
        try:
            script = self._script(question.program)
        except InvalidInput as error:
            return ApiName(name=name, found=False, kind="flag", reason=str(error))
        return self._of_script(question, script)

    def _script(self, text: str) -> Path:
        if not text:
            if self.script is None:
                raise InvalidInput("a bare flag needs the script that it belongs to", next_step="name the script")
            return self.script
        if self.script is not None and text in (self.script.name, str(self.script)):
            return self.script
        if self.roots is None:
            raise InvalidInput(f"script {text} cannot be named here", next_step="give it as `script`")
        path = self.roots.resolve(text, what="script")
        if not path.is_file():
            raise InvalidInput(f"script {path} does not exist", next_step="check the path")
        return path

    def _of_script(self, question: _FlagQuestion, script: Path) -> ApiName:
        if not script.is_file():
            return ApiName(name=question.name, found=False, kind="flag", reason=f"script {script} does not exist")
        source = self.sources.setdefault(script, read_script(script))
        if source.syntax_error:
            reason = f"script {script.name} does not compile: {source.syntax_error}"
            return ApiName(name=question.name, found=False, kind="flag", package=script.name, reason=reason)
        if source.parser == "argparse" and (source.complete or question.flag in source.options):
            return _of_source(question, source)
        if source.parser == "none" and not source.reads_argv:
            reason = "read from the script's source: it does not seem to read arguments"
            return ApiName(name=question.name, found=False, kind="flag", package=script.name, reason=reason)
        # The worker binds `runtime` as a run does; the script itself stops at its --help.
        argv = [self.python, str(Path(worker.__file__)), str(script)]
        return self._of_help(question, argv, script.parent, package=script.name)

    def _of_program(self, question: _FlagQuestion) -> ApiName:
        program, *rest = question.program.split()
        path = find_program(self.python, program)
        if path is not None:
            argv = [str(path), *rest]
        elif _DOTTED.match(program) and "(" not in program:
            (module,) = look_up(self.python, [(program, "")], environment=self.environment)
            if module.kind != "module":
                reason = f"{program} is neither a program beside {self.python} nor a module: {module.reason}"
                return ApiName(name=question.name, found=False, kind="flag", reason=reason, nearest=module.nearest)
            argv = [self.python, "-I", "-m", program, *rest]
        else:
            reason = f"{program} is no program beside {self.python}"
            return ApiName(name=question.name, found=False, kind="flag", reason=reason)
        return self._of_help(question, argv, Path(self.python).parent, package=program)

    def _of_help(self, question: _FlagQuestion, argv: Sequence[str], folder: Path, *, package: str) -> ApiName:
        key = tuple(argv)
        if key not in self.helps:
            self.helps[key] = program_help(argv, environment=self.environment, working_directory=folder)
        text, how = self.helps[key]
        if text is None:
            return ApiName(name=question.name, found=False, kind="flag", package=package, reason=f"unknown: {how}")
        known = sorted(set(_HELP_FLAG.findall(text)))
        # torchrun and others take dashes for underscores though their help shows one of the two
        spelled = {question.flag, question.flag[:2] + question.flag[2:].replace("-", "_")}
        spelled.add(question.flag[:2] + question.flag[2:].replace("_", "-"))
        if question.flag in known:
            return ApiName(
                name=question.name,
                found=True,
                kind="flag",
                summary=_help_line(text, question.flag),
                package=package,
                reason=how,
            )
        other = sorted(spelled & set(known))
        reason = f"{how}: spelled {other[0]} there" if other else f"{how}: not among its flags"
        nearest = (*other, *close_names(question.flag, known))
        return ApiName(
            name=question.name, found=False, kind="flag", package=package, reason=reason, nearest=nearest[:5]
        )


def _of_source(question: _FlagQuestion, source: ScriptSource) -> ApiName:
    how = f"read from the source of {source.path.name} (argparse)"
    flag = source.options.get(question.flag)
    if flag is None:
        nearest = close_names(question.flag, source.options)
        return ApiName(
            name=question.name,
            found=False,
            kind="flag",
            nearest=nearest,
            package=source.path.name,
            reason=f"{how}: it has no flag {question.flag}",
        )
    words = [", ".join(flag.names), flag.type, f"one of {', '.join(flag.choices)}" if flag.choices else ""]
    words += ["required" if flag.required else "", "takes no value" if flag.nargs == 0 else ""]
    return ApiName(
        name=question.name,
        found=True,
        kind="flag",
        signature="; ".join(word for word in words if word),
        summary=flag.help,
        package=source.path.name,
        reason=how,
    )


def _help_line(text: str, flag: str) -> str:
    pattern = re.compile(rf"(?<![\w-]){re.escape(flag)}(?![\w-])")
    lines = [line.strip() for line in text.splitlines() if pattern.search(line)]
    described = [line for line in lines if line.startswith("-")]
    return (described or lines or [""])[0][:200]
