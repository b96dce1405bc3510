"""Names looked up in what is installed."""

import sys
from pathlib import Path

import pytest

from tools.probe import look_up


def test_names_parameters_and_versions_of_the_installed_packages() -> None:
    import numpy as np

    questions = [
        ("numpy.linalg.norm", ""),
        ("numpy.linalg.norm", "axis"),
        ("numpy.linalg.norm", "axes"),
        ("numpy.linalg.nrom", ""),
        ("json.dumps", "indent"),
        ("no_such_package.thing", ""),
        ("numpy.ndarray.shape", ""),
        ("xml.etree.ElementTree.parse", ""),
    ]
    norm, axis, axes, nrom, indent, absent, shape, deep = look_up(sys.executable, questions)
    assert norm.found
    assert norm.version == np.__version__
    assert norm.signature.startswith("(x, ord=None")
    assert axis.found
    assert axis.kind == "parameter"
    assert not axes.found
    assert axes.nearest[0] == "axis"
    assert not nrom.found
    assert nrom.nearest[0] == "numpy.linalg.norm"
    assert indent.found
    assert indent.version is not None
    assert indent.version.startswith("Python 3")
    assert not absent.found
    assert absent.version is None
    assert "no module 'no_such_package'" in absent.reason
    assert shape.found
    assert deep.found


def test_a_compiled_function_is_read_from_its_docstring() -> None:
    dtype, wrong = look_up(sys.executable, [("torch.sum", "dtype"), ("torch.sum", "axes_list")])
    assert dtype.found
    assert "docstring" in dtype.reason
    assert not wrong.found


def test_a_function_that_takes_anything_is_not_called_wrong_or_right() -> None:
    (answer,) = look_up(sys.executable, [("subprocess.run", "timeuot")])
    assert not answer.found
    assert "timeout" in answer.nearest or "**kwargs" in answer.reason


def test_nothing_beside_the_working_directory_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (answer,) = look_up(sys.executable, [("mine.f", "")])
    assert not answer.found
    assert not (tmp_path / "ran").exists()


def test_an_interpreter_that_is_none_answers_for_every_name() -> None:
    answers = look_up("/nowhere/python", [("a.b", ""), ("c.d", "")])
    assert [a.found for a in answers] == [False, False]
    assert all("cannot be started" in a.reason for a in answers)
