"""check_api answers from what is installed, and says how it knows."""

import json
import sys
from pathlib import Path

import pytest

from tools.check_api import check_api
from tools.domain.errors import InvalidInput
from tools.domain.paths import AllowedRoots
from tools.domain.reports import ApiName


def ask(*names: str, **options: object) -> list[ApiName]:
    return list(check_api(python=sys.executable, names=names, **options).names)  # type: ignore[arg-type]  # test


ARGPARSE = """
import argparse
open({marker!r}, "w").close()
parser = argparse.ArgumentParser()
parser.add_argument("--learning_rate", "-l", type=float, help="step size")
parser.add_argument("--mode", choices=["a", "b"], required=True)
parser.add_argument("--fast", action=argparse.BooleanOptionalAction)
parser.parse_args()
"""

DYNAMIC = """
import argparse
from runtime import set_seed
parser = argparse.ArgumentParser()
for name in ("alpha", "beta"):
    parser.add_argument("--" + name, help=f"the {name}")
parser.parse_args()
raise SystemExit("trained!")
"""


def test_names_of_the_standard_library_and_parameters() -> None:
    dumps, indent, wrong, typo = ask("json.dumps", "json.dumps(indent)", "json.dumps(idnent)", "json.dmups")
    assert dumps.found
    assert dumps.signature.startswith("(obj")
    assert indent.found
    assert not wrong.found
    assert "indent" in wrong.nearest
    assert typo.nearest[0] == "json.dumps"


def test_flags_are_read_from_the_source_and_the_script_is_not_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ARGPARSE.format(marker=str(tmp_path / "ran")))
    rate, short, negated, mode, absent = ask(
        "--learning_rate", "-l", "train.py --no-fast", "--mode=a", "--lerning_rate", script=script
    )
    assert all(item.found for item in (rate, short, negated, mode))
    assert "source" in rate.reason
    assert rate.summary == "step size"
    assert "one of a, b" in mode.signature
    assert not absent.found
    assert absent.nearest[0] == "--learning_rate"
    assert not (tmp_path / "ran").exists()


def test_flags_that_are_built_at_run_time_are_asked_of_help(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(DYNAMIC)
    alpha, gamma = ask("--alpha", "--gamma", script=script)
    assert alpha.found
    assert "--help" in alpha.reason
    assert not gamma.found
    assert "--alpha" in gamma.nearest


def test_a_script_that_fails_at_help_leaves_the_answer_unknown(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nimport tyro_does_not_exist, click\nprint(sys.argv)\n")
    (answer,) = ask("--lr", script=script)
    assert not answer.found
    assert answer.reason.startswith("unknown: --help ended with exit code 1")


def test_installed_programs_and_modules_are_asked(tmp_path: Path) -> None:
    found, absent, nobody = ask("json.tool --indent", "json.tool --indnet", "no-such-program --x")
    assert found.found
    assert not absent.found
    assert "--indent" in absent.nearest
    assert not nobody.found


def test_paths_outside_the_roots_and_bare_flags_are_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "out.py").write_text("print(1)")
    roots = AllowedRoots.of([tmp_path / "in"])
    outside, bare, unclear = ask("../out.py --lr", "--lr", "?!", roots=roots)
    assert "outside the allowed roots" in outside.reason
    assert "needs the script" in bare.reason
    assert "not understood" in unclear.reason
    (without_roots,) = ask(f"{tmp_path}/out.py --lr")
    assert not without_roots.found


def test_secrets_of_the_server_do_not_reach_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "SECRET-env")
    script = tmp_path / "train.py"
    script.write_text("import os, sys, click\nsys.argv\nprint(*os.environ.values(), '--lr')\n")
    script.write_text(f"import os, sys\nopen({str(tmp_path / 'seen')!r}, 'w').write(str(dict(os.environ)))\nsys.argv\n")
    ask("--lr", script=script)
    assert "SECRET-env" not in (tmp_path / "seen").read_text()


def test_hostile_text_is_shown_and_not_passed_through(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', help='\\x1b[2J\\u202egone')\n"
    )
    (answer,) = ask("--x", script=script)
    text = json.dumps(answer.model_dump(mode="json"), ensure_ascii=False)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "gone" in text


def test_too_many_names_and_no_interpreter_are_errors() -> None:
    with pytest.raises(InvalidInput, match="101 names"):
        ask(*["a.b"] * 101)
    with pytest.raises(InvalidInput, match="no executable file"):
        check_api(python="/nowhere/python", names=["json.dumps"])
