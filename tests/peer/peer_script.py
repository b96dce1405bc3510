"""Runs a bundled test script of the accelerate package on our names, and notes every assertion that fails.

A failed assertion does not end the script: each one is looked at. What else raises ends its function alone.
"""

import ast
import importlib
import importlib.util
import sys
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import runtime

PEER_MODULES = (
    "accelerate",
    "accelerate.accelerator",
    "accelerate.data_loader",
    "accelerate.logging",
    "accelerate.optimizer",
    "accelerate.scheduler",
    "accelerate.state",
    "accelerate.test_utils.testing",
    "accelerate.test_utils.training",
    "accelerate.tracking",
    "accelerate.utils",
    "accelerate.utils.dataclasses",
    "accelerate.utils.memory",
    "accelerate.utils.operations",
    "accelerate.utils.random",
)
CHECKS = ("torch.testing.assert_close",)
CONTEXTS = ("assert_exception", "pytest.raises")


@dataclass
class Notes:
    """What happened: assertions that held, by function, and those that did not, as [function, text, error, case]."""

    held: dict[str, int] = field(default_factory=dict)
    failed: list[list[str]] = field(default_factory=list)
    case: str = "main"

    def held_in(self, function: str) -> None:
        self.held[function] = self.held.get(function, 0) + 1

    def failed_in(self, function: str, text: str, error: Exception) -> None:
        self.failed.append([function, text, f"{type(error).__name__}: {str(error)[:300]}", self.case])


def replace_names() -> set[str]:
    """Put every public name of ours in place of the peer's of the same spelling; returns these names."""
    replaced = set()
    for name in runtime.__all__:
        ours = getattr(runtime, name)
        for module in map(importlib.import_module, PEER_MODULES):
            if hasattr(module, name) and not isinstance(getattr(module, name), types.ModuleType):
                setattr(module, name, ours)
                replaced.add(name)
    return replaced


def load(name: str) -> tuple[types.ModuleType, Notes, list[str]]:
    """A script's module with our names, its notes, and the names that it takes from the peer."""
    warnings.simplefilter("default")  # the peer's own warnings are not ours to forbid
    replaced = replace_names()
    spec = importlib.util.find_spec(f"accelerate.test_utils.scripts.{name}")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text())
    wanted = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "accelerate"
        for alias in node.names
        if "test_utils" not in (node.module or "")
    }
    notes, module = Notes(), types.ModuleType(name)
    module.__dict__.update(_held=notes.held_in, _failed=notes.failed_in, __file__=spec.origin)
    sys.modules[name] = module
    exec(compile(ast.fix_missing_locations(_Soft().visit(tree)), spec.origin, "exec"), module.__dict__)
    return module, notes, sorted(wanted - replaced)


def attempt(notes: Notes, function: Callable[..., Any], *args: Any) -> None:
    """Run a function of the script that its main() passes over here."""
    notes.case = " ".join(map(str, args))
    try:
        function(*args)
    except Exception as error:
        notes.failed_in(function.__name__, "raised", error)
    notes.case = "main"


class _Soft(ast.NodeTransformer):
    """Surrounds each check with a note of its outcome; in main() each statement too."""

    def __init__(self) -> None:
        self._function = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outer, self._function = self._function, self._function or node.name
        self.generic_visit(node)
        self._function = outer
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return self._noted(node, ast.unparse(node.test))

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        context = node.items[0].context_expr
        if isinstance(context, ast.Call) and ast.unparse(context.func) in CONTEXTS:
            return self._noted(node, f"{ast.unparse(context)}: {ast.unparse(node.body[0])}")
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func)
            if called in CHECKS:
                return self._noted(node, f"{called}({', '.join(map(ast.unparse, node.value.args))})")
            if self._function == "main":
                return self._noted(node, ast.unparse(node), counts=False)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if self._function == "main" and isinstance(node.targets[0], ast.Attribute):
            return self._noted(node, ast.unparse(node), counts=False)
        return node

    def _noted(self, node: ast.stmt, text: str, *, counts: bool = True) -> ast.AST:
        call = f"_failed({self._function!r}, {text!r}, _error)"
        handler = ast.ExceptHandler(ast.Name("Exception", ast.Load()), "_error", ast.parse(call).body)
        after = ast.parse(f"_held({self._function!r})").body if counts else []
        return ast.copy_location(ast.Try([node], [handler], after, []), node)
