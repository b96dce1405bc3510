"""What a script says of itself without being run: its command-line flags, what it imports, whether it compiles."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

_OTHER_PARSERS = frozenset(
    {
        "HfArgumentParser",
        "TrlParser",
        "tyro",
        "simple_parsing",
        "jsonargparse",
        "fire",
        "typer",
        "click",
        "absl",
        "hydra",
        "docopt",
        "LightningCLI",
        "optparse",
        "getopt",
        "configargparse",
        "tap",
        "cyclopts",
        "plac",
        "defopt",
    }
)
_MAX_MODULES = 40
_FLAG_ACTIONS = frozenset({"store_true", "store_false", "store_const", "append_const", "count", "help", "version"})


@dataclass(frozen=True)
class Flag:
    """One add_argument call. `nargs` is argparse's; 0 for a flag without a value."""

    names: tuple[str, ...]
    nargs: int | str | None = None
    type: str = ""
    choices: tuple[str, ...] = ()
    required: bool = False
    help: str = ""

    @property
    def positional(self) -> bool:
        return not self.names[0].startswith("-")


@dataclass
class ScriptSource:
    """A script and the modules beside it that it imports.

    Attributes:
        syntax_error: why it does not compile; None if it does.
        parser: 'argparse' when add_argument calls were found, 'other' for libraries that build flags another way,
            'none' when nothing reads arguments.
        complete: every flag of the parser is known; otherwise flags may exist that are not listed.
        ignores_unknown: parse_known_args: unknown flags do not stop the script.
        runtime_names: what is imported from a package called `runtime`.
    """

    path: Path
    syntax_error: str | None = None
    parser: Literal["argparse", "other", "none"] = "none"
    parser_name: str = ""
    flags: list[Flag] = field(default_factory=list)
    complete: bool = True
    ignores_unknown: bool = False
    abbreviates: bool = True
    reads_argv: bool = False
    imports_runtime: bool = False
    runtime_names: set[str] = field(default_factory=set)

    @property
    def options(self) -> dict[str, Flag]:
        """Every spelling of every flag."""
        return {name: flag for flag in self.flags if not flag.positional for name in flag.names}

    @property
    def positionals(self) -> list[Flag]:
        return [flag for flag in self.flags if flag.positional]


def read_script(path: Path) -> ScriptSource:
    """Parse the script and, for their flags, the modules of its own folder that it imports."""
    source = ScriptSource(path)
    trees: dict[Path, ast.Module] = {}
    try:
        trees[path] = _parse(path)
    except (SyntaxError, ValueError, RecursionError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        source.syntax_error = f"{getattr(error, 'msg', error)}{line}"
        return source
    _follow_imports(path, trees)
    for tree in trees.values():
        _look(tree, source)
    if source.flags and source.parser != "other":
        source.parser = "argparse"
    _note_runtime(trees[path], source)
    return source


def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_bytes(), filename=str(path))


def _follow_imports(script: Path, trees: dict[Path, ast.Module]) -> None:
    todo = [script]
    while todo and len(trees) < _MAX_MODULES:
        for name in _imported_modules(trees[todo.pop(0)]):
            relative = Path(*name.split("."))
            for candidate in (script.parent / f"{relative}.py", script.parent / relative / "__init__.py"):
                if candidate.is_file() and candidate not in trees and not candidate.is_symlink():
                    try:
                        trees[candidate] = _parse(candidate)
                    except (SyntaxError, ValueError, RecursionError, OSError):
                        continue
                    todo.append(candidate)


def _imported_modules(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def _look(tree: ast.Module, source: ScriptSource) -> None:
    local = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    parsers = _parser_variables(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            _note_other_parser(node, source)
        elif isinstance(node, ast.Attribute) and node.attr == "argv" and isinstance(node.value, ast.Name):
            source.reads_argv = source.reads_argv or node.value.id == "sys"
        elif isinstance(node, ast.Call):
            _look_at_call(node, source, local, parsers)


def _note_other_parser(node: ast.Import | ast.ImportFrom, source: ScriptSource) -> None:
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        names.append((node.module or "").split(".")[0])
    found = next((name for name in names if name.split(".")[0] in _OTHER_PARSERS), None)
    if found:
        source.parser, source.parser_name, source.complete = "other", found, False


def _parser_variables(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _called(node.value) == "ArgumentParser"
        ):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _look_at_call(call: ast.Call, source: ScriptSource, local: set[str], parsers: set[str]) -> None:
    name = _called(call)
    if name == "add_argument":
        _add_flag(call, source)
    elif name == "parse_known_args":
        source.ignores_unknown = True
    elif name == "ArgumentParser":
        source.parser = "argparse" if source.parser == "none" else source.parser
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        source.complete = source.complete and not {"prefix_chars", "fromfile_prefix_chars", None} & set(keywords)
        if isinstance(keywords.get("allow_abbrev"), ast.Constant):
            source.abbreviates = bool(keywords["allow_abbrev"].value)  # type: ignore[attr-defined]  # a Constant
        if keywords.get("parents") is not None:
            source.complete = False
    elif name not in local and any(isinstance(a, ast.Name) and a.id in parsers for a in call.args):
        source.complete = False  # somebody else's function adds flags of its own


def _add_flag(call: ast.Call, source: ScriptSource) -> None:
    names = [arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if not names or len(names) != len(call.args) or None in keywords:
        source.complete = False
        if not names:
            return
    action = _text(keywords.get("action"))
    nargs: int | str | None = 0 if action in _FLAG_ACTIONS else None
    if "nargs" in keywords:
        value = keywords["nargs"]
        nargs = value.value if isinstance(value, ast.Constant) and isinstance(value.value, int | str) else "*"
    if action == "BooleanOptionalAction":
        nargs = 0
        names += [f"--no-{name[2:]}" for name in names if name.startswith("--")]
    choices = keywords.get("choices")
    listed: Sequence[ast.expr] = choices.elts if isinstance(choices, ast.List | ast.Tuple | ast.Set) else ()
    constants = [str(item.value) for item in listed if isinstance(item, ast.Constant)]
    required = keywords.get("required")
    source.flags.append(
        Flag(
            names=tuple(names),
            nargs=nargs,
            type=_text(keywords.get("type")),
            choices=tuple(constants) if len(constants) == len(listed) else (),
            required=isinstance(required, ast.Constant) and bool(required.value),
            help=_text(keywords.get("help"))[:200],
        )
    )


def _text(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _note_runtime(tree: ast.Module, source: ScriptSource) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "runtime":
            source.imports_runtime = True
            if node.module == "runtime":
                source.runtime_names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "runtime" for alias in node.names):
            source.imports_runtime = True
            bound = {alias.asname or "runtime" for alias in node.names if alias.name == "runtime"}
            source.runtime_names |= {
                use.attr
                for use in ast.walk(tree)
                if isinstance(use, ast.Attribute) and isinstance(use.value, ast.Name) and use.value.id in bound
            }


def defined_names(path: Path) -> set[str] | None:
    """Top-level names that a module or package binds; None if that cannot be told (a star import, or no source)."""
    target = path / "__init__.py" if path.is_dir() else path
    names = {entry.stem for entry in path.iterdir()} if path.is_dir() else set()
    if not target.is_file():
        return names if path.is_dir() else None
    try:
        tree = _parse(target)
    except (SyntaxError, ValueError, OSError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            if any(alias.name == "*" for alias in node.names):
                return None
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    if "__getattr__" in names:
        return None
    return names
