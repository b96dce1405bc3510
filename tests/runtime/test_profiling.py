"""accelerator.profile(): traces, schedules, and options that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError
from runtime.layout import RunLayout
from runtime.options import ProfileKwargs
from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.usefixtures("fresh_process")


def _work() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def _names(path: Path) -> set[str]:
    return {event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]}


def test_a_block_gives_one_trace_and_the_profiler(tmp_path: Path) -> None:
    accelerator = Accelerator(cpu=True, kwargs_handlers=[ProfileKwargs(activities=["cpu"], record_shapes=True)])
    with accelerator.profile(ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path / "traces"))) as profiler:
        _work()
    assert "aten::mm" in {event.key for event in profiler.key_averages()}
    assert "aten::mm" in _names(tmp_path / "traces" / "profile_0.json")
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["profile_0.json"]


def test_in_a_run_traces_go_to_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    with Accelerator(cpu=True).profile():
        _work()
    assert "aten::mm" in _names(RunLayout(tmp_path).profiles / "profile_0.json")


def test_by_hand_they_go_where_they_are_told_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Accelerator(cpu=True).profile():
        _work()
    assert list(tmp_path.iterdir()) == []


def test_a_schedule_gives_a_trace_for_each_cycle(tmp_path: Path) -> None:
    seen: list[Any] = []
    options = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 1, "warmup": 1, "active": 2, "repeat": 2, "skip_first": 1},
        on_trace_ready=seen.append,
        output_trace_dir=str(tmp_path),
    )
    accelerator = Accelerator(cpu=True, kwargs_handlers=[options])
    with accelerator.profile() as profiler:
        for _ in range(12):
            _work()
            profiler.step()
    assert len(seen) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["profile_0.cycle1.json", "profile_0.json"]
    steps = {name for name in _names(tmp_path / "profile_0.json") if name.startswith("ProfilerStep")}
    assert steps == {"ProfilerStep#3", "ProfilerStep#4"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ProfileKwargs(activities=["gpu"]), "profiler activity 'gpu'.*cpu, cuda"),
        (ProfileKwargs(schedule_option={"wait": 1, "actve": 1}), "unknown actve.*active at least 1"),
        (ProfileKwargs(schedule_option={"wait": 1}), "no `active` steps"),
    ],
)
def test_wrong_options_are_named(options: ProfileKwargs, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message), Accelerator(cpu=True).profile(options):
        pass


def test_an_activity_that_is_not_here_is_left_out_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with Accelerator(cpu=True).profile(ProfileKwargs(activities=["cpu", "mtia"])) as profiler:
        _work()
    assert profiler.activities == {torch.profiler.ProfilerActivity.CPU}
    assert "mtia is not available here" in caplog.text


@pytest.mark.multiprocess
def test_every_rank_writes_its_own_trace(run_ranks: RunRanks, tmp_path: Path) -> None:
    script = """
    from runtime import ProfileKwargs
    accelerator = Accelerator(cpu=True)
    with accelerator.profile(ProfileKwargs(activities=["cpu"], output_trace_dir=str(HERE / "traces"))):
        accelerator.reduce(torch.ones(2))
    say(done=True)
    """
    run_ranks(script)
    assert sorted(path.name for path in (tmp_path / "traces").iterdir()) == ["profile_0.json", "profile_1.json"]
