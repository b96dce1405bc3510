"""Answers: does this dotted name, or this parameter of it, exist here; signature, version and nearest names."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import re
import site
import sys
from typing import Any

_MISSING = object()


def main() -> None:
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an import prints must not mix with the answer
    question = json.load(sys.stdin)
    if sys.prefix == sys.base_prefix and os.path.isdir(site.getusersitepackages()):
        site.addsitedir(site.getusersitepackages())
    answers = [_answer(item["path"], item["parameter"]) for item in question["names"]]
    answer_to.write("\n@@forerun-answer " + json.dumps({"names": answers}) + "\n")
    answer_to.flush()
    os._exit(0)  # imported packages may have left threads


def _answer(path: str, parameter: str) -> dict[str, Any]:
    parts = path.split(".")
    answer: dict[str, Any] = {"found": False, "kind": "", "signature": "", "summary": "", "nearest": [], "reason": ""}
    answer["package"] = parts[0]
    answer["version"] = _version(parts[0])
    try:
        value, parent, depth = _resolve(parts)
    except BaseException as error:  # an import may raise anything, SystemExit included
        answer["reason"] = f"importing {parts[0]} failed: {type(error).__name__}: {error}"[:300]
        return answer
    if value is _MISSING:
        answer["nearest"] = _nearest(parts, parent, depth)
        if depth:
            answer["reason"] = f"{'.'.join(parts[:depth])} has no attribute {parts[depth]!r}"
        else:
            answer["reason"] = f"no module {parts[0]!r} is installed"
        return answer
    answer["summary"] = _summary(value)
    signature, how = _signature(value)
    answer["signature"] = signature
    if not parameter:
        answer["found"] = True
        answer["kind"] = _kind(value, parent)
        answer["reason"] = "imported and looked up"
        return answer
    _look_for_parameter(answer, value, parameter, how)
    return answer


def _resolve(parts: list[str]) -> tuple[Any, Any, int]:
    """The object, its parent, and how many parts were found."""
    if importlib.util.find_spec(parts[0]) is None:
        return _MISSING, None, 0
    value: Any = importlib.import_module(parts[0])
    parent: Any = None
    for depth, part in enumerate(parts[1:], 1):
        parent = value
        value = getattr(parent, part, _MISSING)
        if value is _MISSING and inspect.ismodule(parent):
            name = ".".join(parts[: depth + 1])
            try:
                value = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if error.name != name and not name.startswith(str(error.name) + "."):
                    raise
        if value is _MISSING:
            return _MISSING, parent, depth
    return value, parent, len(parts)


def _nearest(parts: list[str], parent: Any, depth: int) -> list[str]:
    if depth == 0:
        names = set(sys.stdlib_module_names) if hasattr(sys, "stdlib_module_names") else set(sys.builtin_module_names)
        names |= set(_top_level())
        return difflib.get_close_matches(parts[0], sorted(names), n=5)
    prefix = ".".join(parts[:depth])
    lowered: dict[str, str] = {}
    for name in dir(parent):
        lowered.setdefault(name.lower(), name)
    close = difflib.get_close_matches(parts[depth].lower(), sorted(lowered), n=5, cutoff=0.55)
    return [f"{prefix}.{lowered[name]}" for name in close]


def _top_level() -> dict[str, list[str]]:
    if hasattr(importlib.metadata, "packages_distributions"):
        return dict(importlib.metadata.packages_distributions())
    found: dict[str, list[str]] = {}
    for distribution in importlib.metadata.distributions():
        for name in (distribution.read_text("top_level.txt") or "").split():
            found.setdefault(name, []).append(distribution.metadata["Name"])
    return found


def _version(package: str) -> str | None:
    if package in getattr(sys, "stdlib_module_names", sys.builtin_module_names):
        return "Python " + ".".join(map(str, sys.version_info[:3]))
    for name in (package, *_top_level().get(package, ())):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _kind(value: Any, parent: Any) -> str:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        return "class"
    if callable(value):
        return "method" if inspect.isclass(parent) else "function"
    return "attribute"


def _summary(value: Any) -> str:
    if not (inspect.ismodule(value) or inspect.isclass(value) or callable(value)):
        return f"{type(value).__name__}: {value!r}"[:200]
    lines = [line.strip() for line in (inspect.getdoc(value) or "").splitlines() if line.strip()]
    return lines[0][:200] if lines else ""


def _signature(value: Any) -> tuple[str, str]:
    """The signature and how it was found: 'inspect', 'docstring' or '' for not at all."""
    if inspect.ismodule(value) or not callable(value):
        return "", ""
    try:
        return str(inspect.signature(value)), "inspect"
    except (TypeError, ValueError):
        pass
    name = getattr(value, "__name__", "")
    lines = [line.strip() for line in (inspect.getdoc(value) or "").splitlines()]
    found = [line for line in lines if name and re.match(rf"(?:[\w.]+\.)?{re.escape(name)}\(.*\)", line)]
    return "; ".join(found)[:1000], "docstring" if found else ""


def _look_for_parameter(answer: dict[str, Any], value: Any, parameter: str, how: str) -> None:
    if how == "inspect":
        parameters = inspect.signature(value).parameters
        names = [name for name, p in parameters.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    else:
        names = sorted(set(re.findall(r"[(,]\s*\*?\s*([A-Za-z_]\w*)", answer["signature"])))
        takes_any = False
    answer["kind"] = "parameter"
    if parameter in names:
        answer["found"] = True
        answer["reason"] = "in the signature" if how == "inspect" else "in the signature that the docstring gives"
        return
    answer["nearest"] = difflib.get_close_matches(parameter, names, n=5, cutoff=0.5) or names[:8]
    if takes_any:
        answer["reason"] = "not named in the signature, which takes **kwargs: whether it is understood is not decidable"
    elif not how:
        answer["reason"] = "the object has no signature that can be read; see its documentation"
    else:
        answer["reason"] = f"no parameter {parameter!r}"


if __name__ == "__main__":
    main()
