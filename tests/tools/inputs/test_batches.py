"""Batch sizes that do not add up are found before there is a plan (C23)."""

import json
from pathlib import Path

import pytest

from tests.tools.inputs.conftest import Project, codes, errors, found

FILES = Path(__file__).parents[2] / "runtime" / "config" / "files"


def _add(project: Project, name: str, *more: str) -> dict[str, list[str]]:
    (project.root / name).write_text((FILES / name).read_text())
    script = project.root / "train.py"
    added = 'parser.add_argument("--ds")\nparser.add_argument("--batch_size", type=int)\noptions ='
    script.write_text(script.read_text().replace("options =", added))
    return {"args": [*project.request["args"], "--ds", name, *more]}


def test_a_sum_that_does_not_add_up_gives_no_plan(project: Project) -> None:
    report = project.validate(**_add(project, "ds_bad.json"))
    assert report.plan is None
    assert "16 != 2 x 2 x 2 = 8" in errors(report)["batch_arithmetic"].message


@pytest.mark.parametrize(
    ("name", "batch", "said"),
    [
        ("ds_auto.json", "3", "24 = 3 x 4 x 2"),
        ("ds_part.json", "2", "8 = 2 x 2 x 2"),
        ("ds_part.json", "", "8 = 2 x 2 x 2"),
    ],
)
def test_what_adds_up_is_noted(name: str, batch: str, said: str, project: Project) -> None:
    report = project.validate(**_add(project, name, *(["--batch_size", batch] if batch else [])))
    assert report.plan is not None, report.findings
    assert said in found(report, "batch_arithmetic").message


def test_a_loader_that_contradicts_the_file_is_an_error(project: Project) -> None:
    report = project.validate(**_add(project, "ds_conflict.json", "--batch_size", "3"))
    assert "the micro-batch is 2" in errors(report)["batch_arithmetic"].message


@pytest.mark.parametrize("text", ["[1]", "{}", "nonsense", json.dumps({"optimizer": "adam", "train_batch_size": 7})])
def test_another_json_is_nobodys_batch(text: str, project: Project) -> None:
    changed = _add(project, "ds_bad.json")
    (project.root / "ds_bad.json").write_text(text)
    assert "batch_arithmetic" not in codes(project.validate(**changed))
