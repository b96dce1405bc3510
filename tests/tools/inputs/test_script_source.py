"""Flags are read from the source as argparse itself would understand them."""

import argparse
import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.inputs.arguments import check_arguments
from tools.inputs.notes import Notes
from tools.inputs.script_source import ScriptSource, read_script

PARSER = """
parser = argparse.ArgumentParser()
parser.add_argument("--rate", "-r", type=float)
parser.add_argument("--steps", type=int)
parser.add_argument("--mode", choices=["a", "b"])
parser.add_argument("--fast", action="store_true")
parser.add_argument("--mix", action=argparse.BooleanOptionalAction)
parser.add_argument("--sizes", nargs="+", type=int)
parser.add_argument("--pair", nargs=2)
parser.add_argument("--maybe", nargs="?")
parser.add_argument("--step_size", type=float)
"""
TOKENS = [
    "--rate", "-r", "--steps", "--mode", "--fast", "--mix", "--no-mix", "--sizes", "--pair", "--maybe", "--step_size",
    "--rate=0.5", "--steps=x", "--fast=1", "--mode=c", "--mod", "--ste", "--step", "--unknown", "--unknown=3", "-x",
    "1", "-1", "2.5", "-2.5", "a", "b", "word",
]  # fmt: skip


def source(tmp_path: Path, text: str) -> ScriptSource:
    path = tmp_path / "train.py"
    path.write_text(text)
    return read_script(path)


def refused_by_us(script: ScriptSource, arguments: list[str]) -> bool:
    notes = Notes()
    check_arguments(script, arguments, notes, what="args")
    return notes.has_errors


def refused_by_argparse(arguments: list[str]) -> bool:
    names: dict[str, argparse.ArgumentParser] = {}
    exec(PARSER, {"argparse": argparse}, names)
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            names["parser"].parse_args(arguments)
        except SystemExit:
            return True
    return False


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=5))
def test_we_refuse_what_argparse_refuses_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, arguments: list[str]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    script = source(folder, "import argparse\n" + PARSER + "parser.parse_args()\n")
    assert refused_by_us(script, arguments) == refused_by_argparse(arguments)


def test_required_flags_and_positionals(tmp_path: Path) -> None:
    text = (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('file')\n"
        "p.add_argument('--out', required=True)\np.parse_args()\n"
    )
    script = source(tmp_path, text)
    assert not refused_by_us(script, ["x", "--out", "y"])
    assert refused_by_us(script, ["x"])
    assert refused_by_us(script, ["x", "z", "--out", "y"])
    assert not refused_by_us(script, ["--out", "y", "--", "-x"])


def test_known_args_and_run_time_flags_are_warnings(tmp_path: Path) -> None:
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--a')\np.parse_known_args()\n"
    assert not refused_by_us(source(tmp_path, text), ["--b", "1"])
    text = (
        "import argparse\np = argparse.ArgumentParser()\nfor n in 'ab':\n    p.add_argument('--' + n)\np.parse_args()\n"
    )
    script = source(tmp_path, text)
    assert not script.complete
    assert not refused_by_us(script, ["--b", "1"])
    text = "import argparse, deepspeed\np = argparse.ArgumentParser()\np.add_argument('--a')\n"
    text += "p = deepspeed.add_config_arguments(p)\np.parse_args()\n"
    assert not source(tmp_path, text).complete


def test_flags_in_a_module_beside_the_script_count(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(
        "import argparse\ndef parser():\n    p = argparse.ArgumentParser()\n"
        "    p.add_argument('--deep')\n    return p\n"
    )
    script = source(tmp_path, "from options import parser\nparser().parse_args()\n")
    assert "--deep" in script.options
    assert refused_by_us(script, ["--dep", "1"]) is False or "--dep" not in script.options
    assert refused_by_us(script, ["--x", "1"])


@pytest.mark.parametrize(
    "line", ["from transformers import HfArgumentParser", "import click", "from fire import Fire", "import hydra"]
)
def test_other_ways_of_reading_arguments_are_not_judged(tmp_path: Path, line: str) -> None:
    script = source(tmp_path, f"{line}\n")
    assert script.parser == "other"
    assert not refused_by_us(script, ["--anything", "1"])


@pytest.mark.parametrize("text", ["def f(:\n", "x = (\n", "\0", "(" * 5000 + ")" * 5000])
def test_what_does_not_compile_is_told(tmp_path: Path, text: str) -> None:
    assert source(tmp_path, text).syntax_error


def test_imports_of_our_runtime_are_seen(tmp_path: Path) -> None:
    script = source(tmp_path, "import runtime as r\nr.Accelerator()\nfrom runtime import set_seed\n")
    assert script.imports_runtime
    assert script.runtime_names >= {"Accelerator", "set_seed"}
    assert not source(tmp_path, "from .runtime import x\nimport runtimes\n").imports_runtime
