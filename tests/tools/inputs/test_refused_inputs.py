"""What may not come in is refused: files outside the roots, secrets, reserved variables, text that is none."""

import json
import subprocess
from typing import Any

import pytest

from tests.tools.inputs.conftest import SCRIPT, Project, errors, write_table
from tools.domain.errors import InvalidInput


def test_an_argument_that_names_a_file_outside_the_roots_is_refused(project: Project) -> None:
    outside = project.root.parent / "outside.csv"
    write_table(outside, 0)
    report = project.validate(args=["--train", str(outside)])
    assert "outside the allowed roots" in errors(report)["outside_roots"].message
    (project.root / "link.csv").symlink_to(outside)
    report = project.validate(args=["--train", "link.csv"])
    assert "outside the allowed roots" in errors(report)["outside_roots"].message


def test_secrets_are_passed_by_name_and_never_stored(project: Project) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HF_TOKEN": "SECRET-aaa", "EDITOR": "vi"}
    report = project.validate(settings=project.settings(env={"HF_TOKEN": "SECRET-bbb"}), environment=environment)
    assert "pass_env" in errors(report)["secret_in_env"].hint
    assert "SECRET-" not in report.model_dump_json()
    report = project.validate(settings=project.settings(pass_env="HF_TOKEN"), environment=environment)
    assert report.plan is not None
    assert report.plan.inherited == ("HF_TOKEN",)
    assert "SECRET-" not in report.model_dump_json()
    assert "EDITOR" not in report.plan.environment
    report = project.validate(settings=project.settings(pass_env=["WANDB_API_KEY"]), environment=environment)
    assert "WANDB_API_KEY" in errors(report)["variable_missing"].message
    harmless = project.validate(settings=project.settings(env={"TOKENIZERS_PARALLELISM": "false", "A": "b=c"}))
    assert harmless.plan is not None
    assert harmless.plan.environment["TOKENIZERS_PARALLELISM"] == "false"


def test_a_secret_on_the_command_line_is_refused_without_being_repeated(project: Project) -> None:
    (project.root / "train.py").write_text(SCRIPT.replace('"--lr"', '"--hub_token")\nparser.add_argument("--lr"'))
    report = project.validate(args=["--hub_token", "SECRET-aaa111"])
    assert report.plan is None
    found = errors(report)["secret_argument"]
    assert "--hub_token" in found.message
    assert "pass_env" in found.hint
    assert "SECRET-" not in report.model_dump_json()


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "FORERUN_RUN", "MASTER_ADDR"])
def test_variables_of_the_launcher_are_reserved(project: Project, name: str) -> None:
    report = project.validate(settings=project.settings(env={name: "1"}))
    assert name in errors(report)["reserved_variable"].message


def test_a_runtime_of_the_users_own_is_refused_when_the_script_wants_ours(project: Project) -> None:
    (project.root / "runtime").mkdir()
    (project.root / "runtime/engine.py").write_text("x = 1\n")
    finding = errors(project.validate())["runtime_shadowed"]
    assert "Accelerator" in finding.message
    assert "rename" in finding.hint
    (project.root / "runtime/__init__.py").write_text("class Accelerator: ...\n")
    assert project.validate().plan is not None


def test_variables_that_load_what_no_approval_covers_are_named(project: Project) -> None:
    report = project.validate(settings=project.settings(env={"LD_PRELOAD": "/tmp/x.so", "LR": "1"}))
    (found,) = [finding for finding in report.findings if finding.code == "content_not_covered"]
    assert (found.level, "LD_PRELOAD" in found.message) == ("warning", True)


def test_a_runtime_on_the_jobs_python_path_counts_too(project: Project) -> None:
    other = project.root / "lib"
    other.mkdir()
    (other / "runtime.py").write_text("x = 1\n")
    report = project.validate(settings=project.settings(env={"PYTHONPATH": str(other)}))
    assert str(other / "runtime.py") in errors(report)["runtime_shadowed"].message


def test_code_outside_the_roots_is_not_copied(project: Project) -> None:
    subprocess.run(["git", "init", "-q", project.root.parent], check=True, timeout=50)
    (project.root.parent / "private.txt").write_text("x")
    report = project.validate()
    assert "git work tree" in errors(report)["outside_roots"].message
    assert not project.store.exists()


def test_names_with_control_characters_are_shown_and_not_passed_through(project: Project) -> None:
    hostile = "a\x1b[2J\u202e.csv"
    (project.root / "data" / hostile).write_text("id,x\x1b]0;\n1,nan\n")
    report = project.validate(data=[f"train=data/{hostile}", "holdout=data/\x9bx.csv"])
    text = report.model_dump_json()
    assert not any(character in json.dumps(json.loads(text), ensure_ascii=False) for character in "\x1b\u202e\x9b")
    assert "\\\\x1b" in text


@pytest.mark.parametrize(
    "changes", [{"script": "\udcff.py"}, {"args": ["\udcff"]}, {"settings": {"env": {"A": "\udcff"}}}]
)
def test_text_that_is_no_unicode_is_refused(project: Project, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="no Unicode text"):
        project.validate(**changes)
