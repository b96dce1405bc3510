"""log_with, init_trackers, log, get_tracker: what reaches which tracker, and what a failing one does."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError, MissingDependencyError, UsageError
from runtime.layout import RunLayout
from runtime.options import ProjectConfiguration
from runtime.records import read_events, read_metrics
from runtime.tracking import GeneralTracker
from runtime.tracking import tensorboard as tensorboard_module

pytestmark = pytest.mark.usefixtures("fresh_process")


class Own(GeneralTracker):
    """Remembers its calls; fails at the steps it is told."""

    name = "own"

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.calls: list[Any] = []
        self.fails_at = fails_at

    @property
    def tracker(self) -> list[Any]:
        return self.calls

    def start(self) -> None:
        self.calls.append("start")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(values)

    def log(self, values: Any, step: int | None = None, **options: Any) -> None:
        if step == self.fails_at:
            raise OSError("the tracking server is gone")
        self.calls.append((dict(values), step, options))

    def finish(self) -> None:
        self.calls.append("finish")


def _events(root: Path, name: str) -> list[dict[str, Any]]:
    return [event.details for event in read_events(RunLayout(root).events) if event.event == name]


def test_an_own_tracker_gets_everything_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    own = Own()
    accelerator = Accelerator(cpu=True, log_with=own)
    accelerator.init_trackers("project", {"lr": 0.1}, {"own": {}})
    accelerator.log({"loss": torch.tensor(0.5), "note": "ok", "by": {"a": 1}}, step=3, log_kwargs={"own": {"tags": 1}})
    assert accelerator.get_tracker("own") is own
    assert accelerator.get_tracker("own", unwrap=True) is own.calls
    accelerator.end_training()
    assert own.calls == [
        "start",
        {"lr": 0.1},
        ({"loss": 0.5, "note": "ok", "by": {"a": 1.0}}, 3, {"tags": 1}),
        "finish",
    ]
    recorded = [(r.name, r.value, r.step) for _, r in read_metrics(RunLayout(tmp_path).metrics(0))]
    assert recorded == [("loss", 0.5, 3), ("by/a", 1.0, 3)]
    assert _events(tmp_path, "tracking_started") == [
        {"project": "project", "trackers": ["own"], "config": {"lr": 0.1}},
    ]


def test_a_tracker_that_fails_is_dropped_aloud_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    bad, good = Own(fails_at=2), Own()
    good.name = "good"  # type: ignore[misc]  # one object's
    accelerator = Accelerator(cpu=True, log_with=[bad, good])
    accelerator.init_trackers("project")
    with caplog.at_level(logging.ERROR):
        for step in (1, 2, 3):
            accelerator.log({"loss": 1.0 / step}, step=step)
        assert "tracker own failed in log() at step 2" in caplog.text
        caplog.clear()
        accelerator.end_training()
        assert "did not get all values" in caplog.text
    assert [call[1] for call in bad.calls[1:]] == [1]
    assert [call[1] for call in good.calls[1:-1]] == [1, 2, 3]
    assert len(list(read_metrics(RunLayout(tmp_path).metrics(0)))) == 3
    (failed,) = _events(tmp_path, "tracker_failed")
    assert "OSError: the tracking server is gone" in failed["failure"]


def test_a_tracker_that_cannot_start_is_an_error_before_training() -> None:
    class Broken(Own):
        def start(self) -> None:
            raise OSError("no route")

    accelerator = Accelerator(cpu=True, log_with=Broken())
    with pytest.raises(OSError, match="no route"):
        accelerator.init_trackers("project")


def test_tensorboard_files_hold_the_values(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    accelerator.init_trackers("run", {"lr": 0.1, "layers": [1, 2]}, {"tensorboard": {"flush_secs": 60}})
    for step in range(3):
        accelerator.log({"loss": 1.0 - step / 10, "note": "hello"}, step=step)
    assert type(accelerator.get_tracker("tensorboard", unwrap=True)).__name__ == "SummaryWriter"
    accelerator.end_training()
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [(event.step, round(event.value, 3)) for event in events.Scalars("loss")] == [(0, 1.0), (1, 0.9), (2, 0.8)]
    assert "note/text_summary" in events.Tags()["tensors"]
    assert "_hparams_/session_start_info" in events.summary_metadata


def test_jsonl_in_a_directory_of_ones_own(tmp_path: Path) -> None:
    configuration = ProjectConfiguration(project_dir=str(tmp_path), logging_dir=str(tmp_path / "logs"))
    accelerator = Accelerator(cpu=True, log_with="jsonl", project_config=configuration)
    assert accelerator.logging_dir == tmp_path / "logs"
    accelerator.init_trackers("run", {"lr": float("inf"), "path": tmp_path})
    accelerator.log({"loss": float("nan"), "by": {"a": 2}, "note": "text"}, step=1)
    path = accelerator.get_tracker("jsonl", unwrap=True)
    assert path == tmp_path / "logs" / "run" / "metrics.jsonl"
    assert [(record.name, str(record.value)) for _, record in read_metrics(path)] == [("loss", "nan"), ("by/a", "2.0")]
    assert json.loads((path.parent / "config.json").read_text()) == {"lr": "inf", "path": str(tmp_path)}
    assert next(read_events(path.parent / "texts.jsonl")).details == {"step": 1, "text": "text"}


def test_in_a_run_trackers_write_to_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    accelerator = Accelerator(cpu=True, log_with="all")
    accelerator.init_trackers("run")
    assert [tracker.name for tracker in accelerator.trackers] == ["jsonl", "tensorboard"]
    accelerator.end_training()
    assert (RunLayout(tmp_path).tracking / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize("name", ["wandb", "mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab", "trackio"])
def test_trackers_of_later_versions_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}.*this version does not have.*jsonl, tensorboard, all"):
        Accelerator(cpu=True, log_with=["jsonl", name], project_dir=tmp_path)


@pytest.mark.parametrize(
    ("log_with", "message"),
    [
        ("tensorbord", "no such tracker"),
        (Own, "is a class"),
        (object(), "lacks name"),
        ("jsonl", "without a directory"),
    ],
)
def test_what_is_no_tracker_is_refused_at_once(log_with: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Accelerator(cpu=True, log_with=log_with)


def test_tensorboard_that_is_not_installed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard_module, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match="pip install tensorboard"):
        Accelerator(cpu=True, log_with="tensorboard", project_dir=tmp_path)
    assert Accelerator(cpu=True, log_with="all", project_dir=tmp_path).log_with == ["jsonl"]


def test_wrong_use_is_said() -> None:
    accelerator = Accelerator(cpu=True, log_with=Own())
    with pytest.raises(UsageError, match="before init_trackers"):
        accelerator.get_tracker("own")
    with pytest.raises(UsageError, match="init_kwargs for tensorboard"):
        accelerator.init_trackers("p", init_kwargs={"tensorboard": {}})
    with pytest.raises(UsageError, match="note='text'"):
        accelerator.log({"note": "text"})
    accelerator.init_trackers("p")
    with pytest.raises(UsageError, match="second time"):
        accelerator.init_trackers("p")
    with pytest.raises(UsageError, match="log_kwargs for wandb"):
        accelerator.log({"a": 1}, log_kwargs={"wandb": {}})
    with pytest.raises(UsageError, match="no such tracker"):
        accelerator.get_tracker("wandb")
