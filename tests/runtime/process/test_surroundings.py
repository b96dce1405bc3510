"""What lies around a run: a changed module, package or secret is named, at the launch and by the supervisor."""

import hashlib
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.config.order import OutsideModule
from runtime.config.plan import Interpreter
from runtime.errors import ConfigurationError
from runtime.run_files import read_order, write_model
from runtime.snapshots.secret_values import keyed_hash, load_key, secret_drift
from runtime.snapshots.surroundings import module_drift, package_drift
from tests.fakes.approvals import training_plan
from tools.probe import probe_interpreter


def outside(path: Path, name: str = "helper") -> OutsideModule:
    return OutsideModule(name=name, path=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())


def test_a_module_that_changed_or_vanished_is_named(tmp_path: Path) -> None:
    path = tmp_path / "helper.py"
    path.write_text("A = 1\n")
    module = outside(path)
    assert module_drift([module]) == []
    path.write_text("A = 2\n")
    (line,) = module_drift([module])
    assert "helper" in line
    assert str(path) in line
    assert "changed since the smoke run" in line
    path.unlink()
    assert "missing" in module_drift([module])[0]
    assert module_drift([module.model_copy(update={"sha256": ""})]) == []


def planned_packages(**changes: str | None) -> dict[str, str]:
    packages = dict(probe_interpreter(sys.executable).packages)
    for name, version in changes.items():
        packages.pop(name, None)
        if version is not None:
            packages[name] = version
    return packages


def plan_with(packages: dict[str, str], *, version: str = "") -> Any:
    interpreter = Interpreter(executable=sys.executable, version=version, packages=packages)
    return training_plan().model_copy(update={"interpreter": interpreter})


def test_the_packages_are_those_that_the_probe_saw() -> None:
    assert package_drift(plan_with(planned_packages())) == []


def test_a_package_of_another_version_added_or_removed_is_named() -> None:
    plan = plan_with(planned_packages(numpy="1.0.0", pluggy=None, vanished="3.1"), version="3.2.1")
    lines = package_drift(plan)
    assert f"version 3.2.1 -> {sys.version.split()[0]}" in lines[0]
    numpy, pluggy, vanished = lines[1:]
    assert numpy.startswith("package numpy: 1.0.0 -> ")
    assert pluggy.startswith("package pluggy: (not installed) -> ")
    assert vanished == "package vanished: 3.1 -> (not installed)"


def test_an_interpreter_that_answers_nothing_is_no_match(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 0\n")
    broken.chmod(0o755)
    interpreter = Interpreter(executable=str(broken), version="", packages={"torch": "1"})
    (line,) = package_drift(training_plan().model_copy(update={"interpreter": interpreter}))
    assert "does not list its packages" in line


def test_a_secret_is_bound_by_its_value_and_never_named_with_it(tmp_path: Path) -> None:
    key_file = tmp_path / "state" / "secret.key"
    key = load_key(key_file, create=True)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    hashes = {"HF_TOKEN": keyed_hash(key, "HF_TOKEN", "SECRET-one")}
    plan = training_plan().model_copy(update={"inherited": ("HF_TOKEN",), "inherited_hashes": hashes})
    assert secret_drift(plan, {"HF_TOKEN": "SECRET-one"}, key_file) == []
    lines = [
        *secret_drift(plan, {"HF_TOKEN": "SECRET-two"}, key_file),
        *secret_drift(plan, {}, key_file),
        *secret_drift(plan, {"HF_TOKEN": "SECRET-one"}, tmp_path / "none.key"),
        *secret_drift(plan, {"HF_TOKEN": "SECRET-one"}, None),
    ]
    assert len(lines) == 4
    assert all("HF_TOKEN" in line and "SECRET" not in line for line in lines)
    key_file.write_bytes(b"x" * 32)
    assert secret_drift(plan, {"HF_TOKEN": "SECRET-one"}, key_file) != []
    assert plan.digest != plan.model_copy(update={"inherited_hashes": {"HF_TOKEN": "0" * 64}}).digest


@pytest.mark.parametrize(("content", "mode"), [(b"short", 0o600), (b"x" * 32, 0o644)])
def test_a_key_that_is_none_or_open_to_others_is_refused(tmp_path: Path, content: bytes, mode: int) -> None:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConfigurationError, match="key"):
        load_key(path)


@pytest.mark.parametrize("what", ["module", "package", "secret"])
def test_the_supervisor_compares_again_and_starts_nothing(runs: Any, tmp_path: Path, what: str) -> None:
    run = runs.planned("print('started')")
    order, plan = read_order(run.layout), run.plan
    path = tmp_path / "helper.py"
    path.write_text("A = 1\n")
    if what == "module":
        order = order.model_copy(update={"outside_modules": (outside(path),)})
        path.write_text("A = 2\n")
    elif what == "package":
        interpreter = plan.interpreter.model_copy(update={"packages": planned_packages(numpy="1.0.0")})
        plan = plan.model_copy(update={"interpreter": interpreter})
    else:
        key_file = tmp_path / "key"
        hashes = {"PATH": keyed_hash(load_key(key_file, create=True), "PATH", "another")}
        plan = plan.model_copy(update={"inherited": ("PATH",), "inherited_hashes": hashes})
        order = order.model_copy(update={"secret_key": str(key_file)})
    write_model(run.layout.plan, plan)
    write_model(run.layout.launch, order.model_copy(update={"plan_digest": plan.digest}))
    result = run.submit().result()
    assert (result.state, run.layout.engine_log.exists()) == ("failed", False)
    named = {"module": "module helper", "package": "package numpy: 1.0.0", "secret": "secret variable PATH"}[what]
    assert named in result.reason
