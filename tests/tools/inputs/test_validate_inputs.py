"""validate_inputs: a complete request makes a plan; every wrong value is told with what is allowed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.config.digest import digest_file
from tests.fakes.nvml import FakeNvml
from tests.tools.inputs.conftest import LIMITS, SCRIPT, Project, codes, errors, found
from tools.domain.paths import AllowedRoots
from tools.validate_inputs import InputRequest, validate_inputs

MACHINES = Path(__file__).parents[1] / "machine/cases"
TABLES = Path(__file__).parents[1] / "data_files/cases"


def test_a_complete_request_makes_a_plan(project: Project) -> None:
    report = project.validate()
    plan = report.plan
    assert plan is not None, report
    assert report.questions == ()
    train = project.root / "data/train.csv"
    assert plan.argv == ("--train", str(train), "--lr", "0.1", "--output", "{run_dir}/out", "--seed", "3")
    assert plan.smoke.args == ("--train", str(train), "--max_steps", "12", "--seed", "3")
    assert plan.environment == {"HOME": "/nowhere", "PATH": "/usr/bin:/bin"}
    assert plan.code.entry == "train.py"
    assert (project.store / plan.code.sha256 / "train.py").read_text() == SCRIPT
    assert [(d.role, d.path, d.sha256) for d in plan.data] == [
        ("train", str(train), digest_file(train)),
        ("holdout", str(project.root / "data/test.csv"), digest_file(project.root / "data/test.csv")),
    ]
    assert plan.interpreter.executable == sys.executable
    assert plan.interpreter.packages["torch"]
    assert (plan.seed, plan.layout.num_processes, plan.ceilings.wall_time_s) == (3, 2, 600.0)
    assert plan.evaluation is not None
    assert plan.evaluation.predictions == "predictions.csv"
    assert plan.evaluation.train == str(train)
    assert {s.name: s.origin for s in plan.settings}["num_processes"] == "argument"
    assert {s.name: s.origin for s in plan.settings}["max_retries"] == "default"
    assert "absolute_paths" in codes(report)
    assert project.validate().plan == plan
    json.dumps(report.model_dump(mode="json"), allow_nan=False)


def test_strings_from_a_command_line_mean_the_same_as_numbers(project: Project) -> None:
    texts = {"num_processes": "2", "device": "cpu", "seed": "3", "wall_time_s": "600"}
    assert project.validate(settings=texts).plan == project.validate().plan


def test_all_errors_come_at_once_and_nothing_is_written(project: Project) -> None:
    report = project.validate(
        script="trian.py",
        data=["train=data/trian.csv", "hold=data/test.csv", "holdout=../../etc/passwd"],
        python="/nowhere/python",
        settings={"num_processes": 0, "wall_time": 60},
        evaluation={"labels": "label"},
    )
    assert report.plan is None
    assert {"script_missing", "data_missing", "bad_data_role", "outside_roots", "python_missing"} <= set(errors(report))
    assert {"zero_processes", "unknown_setting", "unknown_evaluation_key", "no_predictions"} <= set(errors(report))
    assert not project.store.exists()


@pytest.mark.parametrize(
    ("changes", "code", "parts"),
    [
        ({"script": "trian.py"}, "script_missing", ["trian.py", "train.py"]),
        ({"script": "../outside.py"}, "outside_roots", ["outside.py", "allowed"]),
        ({"script": "data"}, "script_missing", ["is a folder"]),
        ({"script": ""}, "script_missing", ["no script"]),
        ({"args": ["--learning_rate", "1"]}, "unknown_flag", ["--learning_rate", "--lr", "--max_steps"]),
        ({"smoke_args": ["--max_stepz", "1"]}, "unknown_flag", ["smoke_args", "--max_steps"]),
        ({"args": ["--lr", "fast"]}, "bad_value", ["--lr 'fast'", "a number"]),
        ({"args": ["--max_steps", "1.5"]}, "bad_value", ["an integer"]),
        ({"args": ["--lr"]}, "value_missing", ["--lr"]),
        ({"args": ["--amp=1"]}, "flag_without_value", ["--amp"]),
        ({"args": ["--amp", "stray"]}, "unexpected_value", ["'stray'"]),
        ({"args": ["--lr", "a\0b"]}, "bad_argument", ["NUL"]),
        ({"data": ["train=data/trian.csv"]}, "data_missing", ["trian.csv", "data/train.csv"]),
        ({"data": ["test=data/test.csv"]}, "bad_data_role", ["train, validation, holdout, other"]),
        ({"data": ["data/test.csv"]}, "bad_data_role", ["role=path"]),
        ({"data": ["train=data/train.csv", "holdout=data/train.csv"]}, "data_twice", ["train.csv"]),
        ({"python": "python-that-is-not"}, "python_missing", ["python-that-is-not"]),
        ({"python": "/bin/false"}, "python_fails", ["exit code 1"]),
        ({"evaluation": {"predictions": "/tmp/p.csv"}}, "predictions_outside", ["run directory"]),
        ({"evaluation": {"predictions": "{run_dir}/../p.csv"}}, "predictions_outside", ["run directory"]),
        ({"evaluation": {"predictions": "p.csv", "label": "lable"}}, "column_absent", ["'lable'", "id, x, label"]),
        ({"evaluation": {"predictions": "p.csv", "id_column": "nr"}}, "column_absent", ["'nr'", "id, x, label"]),
        ({"evaluation": {"predictions": "p.csv", "metrics": ["acuracy"]}}, "unknown_metric", ["accuracy"]),
        ({"evaluation": {"predictions": "p.csv", "metrics": "rmse"}}, "unknown_metric", ["classification"]),
        ({"evaluation": {"predictions": "p.csv", "baselines": ["mean"]}}, "unknown_baseline", ["majority"]),
        ({"evaluation": {"predictions": "p.csv", "task": "ranking"}}, "bad_evaluation", ["task"]),
        ({"evaluation": {"predictions": "p.csv", "holdout": "x.csv"}}, "evaluation_data", ["not declared"]),
        ({"evaluation": {"predictions": "p.csv", "holdout": "train"}}, "evaluation_data", ["train"]),
        ({"evaluation": {"predictions": "p.csv", "predictionz": "a"}}, "unknown_evaluation_key", ["prediction"]),
    ],
)
def test_a_wrong_value_is_told_with_what_is_allowed(
    project: Project, changes: dict[str, Any], code: str, parts: list[str]
) -> None:
    (project.root.parent / "outside.py").write_text("print(1)")
    report = project.validate(**changes)
    assert report.plan is None
    finding = errors(report)[code]
    for part in parts:
        assert part in finding.message + " " + finding.hint
    assert not project.store.exists()


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("num_processes", 0, "1 to 4096"),
        ("num_processes", -1, "1 to 4096"),
        ("num_processes", True, "an integer"),
        ("num_processes", 1.5, "an integer"),
        ("num_processes", "two", "an integer"),
        ("num_nodes", 2, "a launcher of several nodes: slurm"),
        ("seed", -1, "or none"),
        ("wall_time_s", float("nan"), "a number"),
        ("wall_time_s", float("inf"), "a number"),
        ("wall_time_s", 0, "1 to"),
        ("max_retries", 11, "0 to 10"),
        ("seed", 2**53, "0 to 9007199254740991"),
        ("seed", "9223372036854775807", "0 to 9007199254740991"),
        ("disk_gib", 0, "a number"),
        ("smoke_steps", 5, "6 to"),
        ("device", "gpu", "cpu, cuda"),
        ("launcher", "slurmm", "local"),
        ("mixed_precision", "yes", "no, fp16, bf16, fp8"),
        ("env", "A", "NAME=value"),
        ("env", {"A-B": "1"}, "A-Z"),
        ("env", '{"A": "1", "A": "2"}', "each variable once"),
        ("env", "A=1 A=2", "each variable once"),
        ("env", "[" * 100_000, "NAME=value"),
        ("pass_env", [1], "variable names"),
        ("num_proceses", 2, "num_processes"),
    ],
)
def test_a_wrong_setting_is_told_with_what_is_allowed(project: Project, name: str, value: Any, allowed: str) -> None:
    report = project.validate(settings=project.settings(**{name: value}))
    assert report.plan is None
    (finding,) = errors(report).values()
    assert name in finding.message
    assert allowed in finding.hint
    assert name not in [q.id for q in report.questions]


@pytest.mark.parametrize("value", ["no", "No", "off", False, "false"])
def test_the_words_for_no_precision_are_one(project: Project, value: Any) -> None:
    plan = project.validate(settings=project.settings(mixed_precision=value)).plan
    assert plan is not None
    assert {s.name: s.value for s in plan.settings}["mixed_precision"] == "no"


def test_a_script_that_does_not_compile_is_told_with_its_line(project: Project) -> None:
    (project.root / "train.py").write_text("import os\ndef f(:\n    pass\n")
    finding = errors(project.validate())["script_syntax"]
    assert "in line 2" in finding.message


def test_a_variable_may_be_a_setting_of_its_own(project: Project) -> None:
    plan = project.validate(settings=project.settings(**{"env.A": "1", "env": "B=2"})).plan
    assert plan is not None
    assert (plan.environment["A"], plan.environment["B"]) == ("1", "2")
    report = project.validate(settings=project.settings(PYTORCH_CUDA_ALLOC_CONF="x"))
    assert "env.PYTORCH_CUDA_ALLOC_CONF=VALUE" in errors(report)["unknown_setting"].hint


def test_processes_are_counted_against_processors(project: Project) -> None:
    report = project.validate(settings=project.settings(num_processes=9))
    assert "1 to 8" in errors(report)["too_many_processes"].hint
    report = project.validate(settings=project.settings(num_processes=8))
    assert report.plan is not None
    assert "many_processes" in codes(report)


def test_loader_workers_are_counted_over_all_processes(project: Project) -> None:
    report = project.validate(args=[*project.request["args"], "--num_workers", "8"])
    assert "make 16 on 2 CPUs" in found(report, "many_workers").message


def test_more_processes_than_usable_devices_names_the_broken_ones(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools.inputs import program

    facts = program.probe_interpreter(sys.executable)
    with_cuda = {**vars(facts), "cuda_devices": 4, "cuda_version": "12.8"}
    monkeypatch.setattr(program, "probe_interpreter", lambda *_, **__: type(facts)(**with_cuda))
    settings = project.settings(num_processes=4, device="cuda")
    options = {"open_driver": lambda: FakeNvml.read(MACHINES / "C07/nvml.json")}
    finding = errors(project.validate(settings=settings, **options))["more_processes_than_devices"]
    assert "2 CUDA device(s) can be used" in finding.message
    assert "GPU 2: lost (15)" in finding.message
    assert "GPU 3: " in finding.message
    assert "memory unknown (999)" in finding.message
    assert "1 to 2" in finding.hint
    assert project.validate(settings=project.settings(num_processes=2, device="cuda"), **options).plan is not None


def test_cuda_without_a_cuda_build_is_refused(project: Project) -> None:
    report = project.validate(settings=project.settings(device="cuda"))
    assert "sees no CUDA device" in errors(report)["no_cuda"].message


def test_an_interpreter_without_torch_is_refused(project: Project, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project.root / ".venv"], check=True, timeout=50)
    report = project.validate(python=".venv/bin/python")
    assert "has no torch" in errors(report)["no_torch"].message
    report = project.validate(python="")
    assert "found beside the script" in found(report, "python_chosen").message


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("C73/inf.csv", "nan_values"),
        ("C71/ragged.csv", "ragged_rows"),
        ("C71/unclosed.csv", "unclosed_quote"),
        ("C62/utf16.csv", "utf16"),
        ("C65/broken.jsonl", "broken_lines"),
        ("C68/cut.parquet", "broken_parquet"),
        ("C68/empty.parquet", "no_rows"),
    ],
)
def test_broken_data_are_errors_that_name_the_file(project: Project, name: str, code: str) -> None:
    target = project.root / Path(name).name
    target.write_bytes((TABLES / name).read_bytes())
    report = project.validate(data=[*project.request["data"], f"validation={target.name}"])
    assert errors(report)[code].message.startswith(f"validation {target.name}: ")


def test_a_byte_order_mark_is_a_warning_and_the_label_is_found(project: Project) -> None:
    text = (project.root / "data/test.csv").read_text()
    (project.root / "data/test.csv").write_text("\ufeff" + text)
    report = project.validate()
    assert report.plan is not None
    assert "utf-8-sig" in found(report, "utf8_bom").hint


def test_held_out_rows_that_are_trained_on_are_counted(project: Project) -> None:
    for name in ("train", "test"):
        (project.root / f"data/{name}.csv").write_bytes((TABLES / f"C70/{name}.csv").read_bytes())
    evaluation = {"predictions": "p.csv", "group": "patient"}
    message = found(project.validate(evaluation=evaluation), "leakage").message
    for part in ("2 stand in the training data exactly", "2 stand there but for case", "1 stand there with another"):
        assert part in message
    assert "2 belong to a patient" in message
    assert "1 reuse an id" in message


def test_a_held_out_file_with_repeated_or_missing_ids_is_refused(project: Project) -> None:
    (project.root / "data/test.csv").write_text("id,x,label\n1,1.5,0\n1,2.5,1\n")
    assert "rows 1 and 2" in errors(project.validate())["holdout_ids_repeat"].message
    (project.root / "data/test.csv").write_text("id,x,label\n1,1.5,\n2,2.5,1\n")
    assert "'label' is missing in 1" in errors(project.validate())["holdout_incomplete"].message


def test_an_argument_that_names_a_file_is_covered_even_if_not_declared(project: Project) -> None:
    (project.root / "conf.yaml").write_text("a: 1\n")
    report = project.validate(args=["--train=data/train.csv", "--train", "conf.yaml"])
    assert report.plan is not None
    assert report.plan.argv[0] == f"--train={project.root}/data/train.csv"
    assert ("other", str(project.root / "conf.yaml")) in [(d.role, d.path) for d in report.plan.data]
    assert "declared_other" in codes(report)


def test_what_the_run_writes_stays_relative_to_its_working_directory(project: Project) -> None:
    (project.root / "old.pt").write_text("x")
    (project.root / "out").mkdir()
    for text in ("old.pt", "out/", "./out"):
        report = project.validate(args=["--output", text])
        assert report.plan is not None
        assert report.plan.argv[:2] == ("--output", text)
        assert [d.role for d in report.plan.data] == ["train", "holdout"]


def test_numbers_are_no_files_and_code_files_are_no_data(project: Project) -> None:
    (project.root / "3").write_text("x")
    (project.root / "model.py").write_text("x = 1\n")
    report = project.validate(args=["--max_steps", "3", "--train", "model.py"])
    assert report.plan is not None
    assert report.plan.argv[:4] == ("--max_steps", "3", "--train", str(project.root / "model.py"))
    assert "model.py" in [file.path for file in report.plan.code.files]
    assert [d.role for d in report.plan.data] == ["train", "holdout"]


def test_a_plan_from_a_plan_inherits_and_says_what_changed(project: Project) -> None:
    first = project.validate().plan
    options = {
        "roots": AllowedRoots.of([project.root]),
        "snapshot_store": project.store,
        "base": first,
        "base_inputs": project.request,
        "base_environment": {"PATH": "/usr/bin:/bin", "HOME": "/nowhere"},
        "limits": LIMITS,
    }
    same = validate_inputs(InputRequest(), **options)  # type: ignore[arg-type]  # as G calls it
    assert same.plan == first
    assert same.differences == ()
    change = InputRequest(settings={"seed": 4})
    changed = validate_inputs(change, **options)  # type: ignore[arg-type]  # as G calls it
    assert changed.plan is not None
    assert changed.plan.layout.num_processes == 2
    assert set(changed.differences) == {
        "argument 8: '3' -> '4'",
        "smoke argument 6: '3' -> '4'",
        "seed: 3 -> 4",
        "setting seed: '3' (argument) -> '4' (argument)",
    }


def test_the_servers_own_environment_is_the_default(project: Project) -> None:
    report = validate_inputs(
        InputRequest.model_validate(project.request),
        roots=AllowedRoots.of([project.root]),
        snapshot_store=project.store,
    )
    assert report.plan is not None
    assert report.plan.environment["PATH"] == os.environ["PATH"]
    assert set(report.plan.environment) < set(os.environ)
