"""Answers: which Python this is, what is installed in it, which torch, and which devices that torch sees."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import site
import sys
from typing import Any

_TORCH_NAMES = ("__version__", "cuda", "hip")


def main() -> None:
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an import prints must not mix with the answer
    json.load(sys.stdin)
    _add_user_site()
    answer = {
        "executable": sys.executable,
        "version": ".".join(map(str, sys.version_info[:3])),
        "packages": _packages(),
        "start_up_sha256": _start_up(),
        **_torch(),
    }
    answer_to.write("\n@@forerun-answer " + json.dumps(answer) + "\n")
    answer_to.flush()


def _add_user_site() -> None:
    """-I leaves the user's own packages out, but a training job of this interpreter has them."""
    if sys.prefix == sys.base_prefix and os.path.isdir(site.getusersitepackages()):
        site.addsitedir(site.getusersitepackages())


def _packages() -> dict[str, str]:
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version or "unknown")
    return dict(sorted(found.items()))


def _start_up() -> str:
    """Digest of the files that Python executes before any program, whatever program it is."""
    digest = hashlib.sha256()
    for folder in sorted({*site.getsitepackages(), site.getusersitepackages(), *sys.path}):
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
            path = os.path.join(folder, name)
            if name.split(".")[0] in ("sitecustomize", "usercustomize") or name.endswith(".pth"):
                path = os.path.join(path, "__init__.py") if os.path.isdir(path) else path
                if os.path.isfile(path):
                    with open(path, "rb") as handle:
                        digest.update(f"{path} {hashlib.sha256(handle.read()).hexdigest()} ".encode())
    return digest.hexdigest()


def _torch() -> dict[str, Any]:
    """The version file is read and not run; torch is imported only if its build could see devices."""
    answer: dict[str, Any] = {"torch_version": None, "cuda_version": None, "cuda_devices": None, "torch_error": None}
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return answer
    values = _constants(os.path.join(next(iter(spec.submodule_search_locations)), "version.py"))
    answer["torch_version"] = values.get("__version__")
    answer["cuda_version"] = values.get("cuda")
    if answer["torch_version"] and values.get("cuda") is None and values.get("hip") is None:
        answer["cuda_devices"] = 0
        return answer
    try:
        torch = importlib.import_module("torch")  # by name: nothing in this project's tools may import it
        answer["torch_version"] = torch.__version__
        answer["cuda_version"] = torch.version.cuda
        answer["cuda_devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except Exception as error:
        answer["torch_error"] = f"{type(error).__name__}: {error}"[:500]
    return answer


def _constants(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as handle:
            tree = ast.parse(handle.read())
    except (OSError, SyntaxError):
        return {}
    found: dict[str, Any] = {}
    for node in tree.body:
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        for target in targets:
            value = getattr(node, "value", None)
            if isinstance(target, ast.Name) and target.id in _TORCH_NAMES and isinstance(value, ast.Constant):
                found[target.id] = value.value
    return found


if __name__ == "__main__":
    main()
