"""What a run depends on beside its snapshot and data: modules from elsewhere and installed packages, compared again."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from ..config.digest import digest_file
from ..config.order import OutsideModule
from ..config.plan import Interpreter, TrainingPlan
from ..errors import LaunchError
from ..launchers import process
from ..layout import RunLayout
from ..loaded_modules import HOOKS, NAMES, folder_digest

_LIST_TIMEOUT_S = 60.0
_NAMED = 8
_MARK = "@@forerun-packages "
START_UP_FILES = "start-up files (.pth, sitecustomize, usercustomize)"  # under this name among a plan's packages
# The same list as the probe's, without asking torch; -I leaves the user's own packages out, a job has them.
_LIST_PACKAGES = f"""
import hashlib, importlib.metadata, json, os, re, site, sys
if sys.prefix == sys.base_prefix and os.path.isdir(site.getusersitepackages()):
    site.addsitedir(site.getusersitepackages())
found = {{}}
for distribution in importlib.metadata.distributions():
    name = distribution.metadata["Name"]
    if name:
        found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version or "unknown")
start_up = hashlib.sha256()
for folder in sorted({{*site.getsitepackages(), site.getusersitepackages(), *sys.path}}):
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        if name.split(".")[0] in ("sitecustomize", "usercustomize") or name.endswith(".pth"):
            path = os.path.join(path, "__init__.py") if os.path.isdir(path) else path
            if os.path.isfile(path):
                with open(path, "rb") as handle:
                    start_up.update(f"{{path}} {{hashlib.sha256(handle.read()).hexdigest()}} ".encode())
found["{START_UP_FILES}"] = start_up.hexdigest()
print("\\n{_MARK}" + json.dumps([".".join(map(str, sys.version_info[:3])), found]), flush=True)
"""


def read_outside_modules(layout: RunLayout) -> tuple[OutsideModule, ...] | None:
    """What the run's ranks loaded from outside, each file once; None if there is no readable record."""
    if not layout.modules(0).is_file():
        return None
    found: dict[str, OutsideModule] = {}
    try:
        for path in sorted(layout.root.glob("modules.rank*.json")):
            for row in json.loads(path.read_text()):
                module = OutsideModule.model_validate(row)
                found.setdefault(module.path, module)
    except (OSError, ValueError, TypeError, ValidationError):
        return None
    return tuple(found[path] for path in sorted(found))


def module_drift(modules: Sequence[OutsideModule]) -> list[str]:
    """How these files differ from what they were when they were loaded, a line a module."""
    lines = []
    for module in modules:
        if not module.sha256:
            continue  # it was gone before the smoke run ended: there is nothing to compare
        if module.name in (NAMES, HOOKS):
            if folder_digest(module.name, module.path) != module.sha256:
                what = "modules" if module.name == NAMES else "start-up hooks"
                lines.append(f"folder {module.path} of PYTHONPATH: {what} were added or removed since the smoke run")
            continue
        try:
            now = digest_file(Path(module.path))
        except OSError as error:
            why = "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
            lines.append(f"module {module.name} ({module.path}): {why}")
            continue
        if now != module.sha256:
            lines.append(
                f"module {module.name} ({module.path}): content changed since the smoke run"
                f" ({module.sha256[:12]} -> {now[:12]})"
            )
    return lines


def package_drift(plan: TrainingPlan) -> list[str]:
    """How the packages that the plan's interpreter has now differ from the plan, a line a package.

    A plan that lists no package says nothing about them.
    """
    interpreter = plan.interpreter
    if not interpreter.packages:
        return []
    try:
        version, packages = _installed(interpreter, plan.environment)
    except LaunchError as error:
        return [f"interpreter {interpreter.executable}: {error.what}"]
    lines = []
    start_up, planned = packages.pop(START_UP_FILES, None), interpreter.packages.get(START_UP_FILES)
    if planned is not None and start_up != planned:
        lines.append(f"interpreter {interpreter.executable}: {START_UP_FILES} were changed, added or removed")
    if interpreter.version and version != interpreter.version:
        lines.append(f"interpreter {interpreter.executable}: version {interpreter.version} -> {version}")
    changed = [
        name
        for name in sorted({*interpreter.packages, *packages} - {START_UP_FILES})
        if _at(interpreter, name) != packages.get(name)
    ]
    for name in changed[:_NAMED]:
        before, after = _at(interpreter, name) or "(not installed)", packages.get(name, "(not installed)")
        lines.append(f"package {name}: {before} -> {after}")
    if len(changed) > _NAMED:
        lines.append(f"and {len(changed) - _NAMED} more packages changed")
    return lines


def _at(interpreter: Interpreter, name: str) -> str | None:
    return interpreter.packages.get(name)


def _installed(interpreter: Interpreter, environment: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Version and packages, asked in a process of their own.

    Raises:
        LaunchError: it does not start or gives no answer.
    """
    done = process.run(
        [interpreter.executable, "-I", "-X", "utf8", "-c", _LIST_PACKAGES],
        timeout_s=_LIST_TIMEOUT_S,
        environment=dict(environment),
        max_output_bytes=16 * 2**20,
    )
    answer = re.findall(rf"^{re.escape(_MARK)}(.*)$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or not answer:
        raise LaunchError(f"it does not list its packages (exit code {done.returncode})")
    version, packages = json.loads(answer[-1])
    return version, packages
