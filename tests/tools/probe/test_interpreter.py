"""Facts of another interpreter, asked for in a process of its own."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from tools.probe import find_interpreter, probe_interpreter


def test_facts_are_those_of_the_interpreter() -> None:
    facts = probe_interpreter(sys.executable)
    assert facts.error is None
    assert facts.executable == sys.executable
    assert facts.version == ".".join(map(str, sys.version_info[:3]))
    assert facts.packages["pyyaml"] == importlib.metadata.version("pyyaml")
    assert facts.torch_version == importlib.metadata.version("torch")
    assert facts.torch_error is None
    assert facts.cuda_version is not None or facts.cuda_devices == 0


def test_a_hostile_directory_and_pythonpath_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "ast", "site", "torch", "sitecustomize", "usercustomize"):
        (tmp_path / f"{name}.py").write_text("print('@@forerun-answer {}')\nraise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    facts = probe_interpreter(sys.executable)
    assert facts.error is None
    assert facts.version == ".".join(map(str, sys.version_info[:3]))


def test_an_environment_without_torch_says_none_and_not_zero(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True, timeout=50)
    facts = probe_interpreter(str(tmp_path / "bare/bin/python"))
    assert facts.error is None
    assert facts.executable == str(tmp_path / "bare/bin/python")
    assert (facts.torch_version, facts.cuda_devices) == (None, None)


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ("#!/bin/sh\necho no python >&2; exit 3\n", "exit code 3 and no answer: no python"),
        ("#!/bin/sh\nexit 0\n", "it printed nothing"),
        ("#!/nowhere/python\n", "cannot be started"),
    ],
)
def test_what_is_no_python_gives_an_error_and_no_facts(tmp_path: Path, body: str, part: str) -> None:
    program = tmp_path / "python"
    program.write_text(body)
    program.chmod(0o755)
    facts = probe_interpreter(str(program))
    assert facts.error is not None
    assert part in facts.error
    assert (facts.version, facts.torch_version, facts.cuda_devices) == (None, None, None)


def test_a_virtual_environment_keeps_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    assert find_interpreter("bin/python", base=tmp_path) == tmp_path / "bin/python"
    assert find_interpreter(str(tmp_path / "bin/python")) == tmp_path / "bin/python"
    assert find_interpreter("bin/pyhton", base=tmp_path) is None
    assert find_interpreter(str(tmp_path)) is None
    assert find_interpreter("") is None
    assert find_interpreter("a\0b") is None
