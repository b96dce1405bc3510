"""A job that fails is started again as a whole, from its last checkpoint; one that is told to stop saves first."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime.launchers.process import run
from runtime.layout import RunLayout
from runtime.records import append_event, read_events
from runtime.run_files import read_order, request_cancel, write_model
from runtime.supervision.restarts import last_checkpoint, mark_logs

pytestmark = pytest.mark.multiprocess  # deadlines leave room for a machine that is busy with other tests

TRAIN = Path(__file__).with_name("resumable.py.txt").read_text()
COUNT = """
import os, sys
here = os.path.dirname(os.path.abspath(__file__))
count = len(os.listdir(here))
open(os.path.join(here, f"started{count}"), "w").close()
print("start", count, "resume", os.environ.get("FORERUN_RESUME"), flush=True)
"""


def _weights(run: Any) -> list[Any]:
    import torch

    return list(torch.load(run.layout.work / "weights.pt", weights_only=True))


def _train(runs: Any, mode: str, **order: Any) -> Any:
    retries = order.get("max_restarts", 0)
    return runs.planned(TRAIN, args=(mode, "."), num_processes=2, max_retries=retries, **order).submit()


@pytest.fixture(scope="module")
def undisturbed(module_runs: Any) -> list[Any]:
    run = _train(module_runs, "calm")
    assert run.result(110.0).state == "succeeded", run.text(run.layout.stderr(0))
    return _weights(run)


def _equal(left: list[Any], right: list[Any]) -> bool:
    return len(left) == len(right) and all(bool((a == b).all()) for a, b in zip(left, right, strict=True))


def test_a_killed_worker_is_resumed_to_the_same_weights(runs: Any, undisturbed: list[Any]) -> None:
    run = _train(runs, "killed", max_restarts=2)
    result = run.result(110.0)
    assert (result.state, result.exit_code, result.attempts) == ("succeeded", 0, 2), run.text(run.layout.stderr(0))
    assert (result.failures, result.survivors) == ((), ())
    checkpoint = str(run.layout.checkpoints / "checkpoint_1")
    for rank in (0, 1):
        words = run.text(run.layout.stdout(rank)).splitlines()
        assert words == ["resume from None", f"resume from {checkpoint}", "trained to step 18"]
        marks = [line for line in run.text(run.layout.stderr(rank)).splitlines() if line.startswith("forerun: attempt")]
        assert marks == [
            f"forerun: attempt 2 of at most 3, from {checkpoint}; attempt 1 ended: rank 1: signal 9 (SIGKILL)"
        ]
    events = [event.event for event in read_events(run.layout.events)]
    assert [name for name in events if name in ("job_started", "attempt_ended", "attempt_started", "job_ended")] == [
        *("job_started", "attempt_ended", "attempt_started", "job_started", "job_ended")
    ]
    first = json.loads((run.layout.attempt(1) / "failures.json").read_text())["failures"]
    assert (first[0]["rank"], first[0]["signal"]) == (1, 9)
    assert _equal(_weights(run), undisturbed)


def test_a_job_that_is_told_to_stop_saves_first_and_goes_on_from_there(
    runs: Any, until: Any, undisturbed: list[Any]
) -> None:
    run = _train(runs, "preempted", grace_s=20.0)
    until(lambda: all((run.layout.work / f"at7.{rank}").exists() for rank in (0, 1)))
    os.kill(run.supervisor(), signal.SIGTERM)
    result = run.result()
    saved = run.layout.checkpoints / "checkpoint_0"
    assert (result.state, result.signals_sent) == ("cancelled", ("SIGUSR1",)), run.text(run.layout.stderr(0))
    assert f"told to stop by SIGTERM; saved first: {saved}; ended on SIGUSR1" in result.reason
    assert last_checkpoint(run.layout) == saved
    later = runs.planned(
        TRAIN.replace("if accelerator.resume_from:", "if True:").replace("load_state()", "load_state(sys.argv[3])"),
        args=("calm", ".", str(saved)),
        environment={"FORERUN_RESUME": "/nowhere"},
        num_processes=2,
    ).submit()
    assert later.result(110.0).state == "succeeded", later.text(later.layout.stderr(0))
    assert "resume from None" in later.text(later.layout.stdout(0)), "the supervisor alone says where to resume"
    assert _equal(_weights(later), undisturbed)


def test_a_rank_that_does_not_come_to_a_batch_is_ended_within_the_grace_time(runs: Any, until: Any) -> None:
    run = _train(runs, "stuck", grace_s=2.0)
    until(lambda: all((run.layout.work / f"at7.{rank}").exists() for rank in (0, 1)))
    os.kill(run.supervisor(), signal.SIGTERM)
    result = run.result(20.0)
    assert result.state == "cancelled"
    assert result.signals_sent[:2] == ("SIGUSR1", "SIGTERM")
    assert "saved first" not in result.reason


def test_a_script_without_a_handler_gets_sigterm_at_once(runs: Any) -> None:
    run = runs.planned("import time\nprint('ready')\ntime.sleep(600)").submit()
    run.wait_for_output("ready", rank=0)
    os.kill(run.supervisor(), signal.SIGUSR1)
    result = run.result()
    assert (result.state, result.signals_sent) == ("cancelled", ("SIGTERM",))


def test_restarts_are_used_up_and_the_last_failure_is_told(runs: Any) -> None:
    run = runs.bare(COUNT + "sys.exit(f'failed at start {count}')", max_restarts=2).submit()
    result = run.result()
    assert (result.state, result.exit_code, result.attempts) == ("failed", 1, 3)
    assert "failed at start 3" in result.reason
    assert "attempt 3, the last" in result.reason
    lines = run.text(run.layout.engine_log).splitlines()
    assert [line.split(";")[0] for line in lines if line.startswith("forerun:")] == [
        "forerun: attempt 2 of at most 3, from the beginning",
        "forerun: attempt 3 of at most 3, from the beginning",
    ]
    assert [line for line in lines if line.startswith("start")] == [f"start {n} resume None" for n in (1, 2, 3)]


def test_a_cancelled_job_and_one_over_its_time_are_not_restarted(runs: Any) -> None:
    sleeper = COUNT + "import time\ntime.sleep(600)"
    cancelled = runs.bare(sleeper, max_restarts=3).submit()
    cancelled.wait_for_output("start 1")
    request_cancel(cancelled.layout, reason="enough")
    assert (cancelled.result().state, cancelled.result().attempts) == ("cancelled", 1)
    late = runs.bare(
        COUNT + "import time\ntime.sleep(1.0 if count == 1 else 600)\nsys.exit(1)", max_restarts=3, wall_time_s=2.0
    )
    result = late.submit().result()
    assert (result.state, result.attempts) == ("stopped_at_limit", 2)
    assert 2.0 <= result.elapsed_s < 10.0, "the wall time is that of all attempts together"


def test_nothing_of_a_failed_attempt_lives_on_in_the_next(runs: Any) -> None:
    script = COUNT + (
        "import subprocess\n"
        "if count == 1:\n"
        "    child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "    print('child', child.pid, flush=True); sys.exit(1)\n"
        "pid = open(sys.argv[1]).read().split('child ')[1].split()[0]\n"
        "stat = f'/proc/{pid}/stat'\n"
        "lives = os.path.exists(stat) and open(stat).read().rpartition(')')[2].split()[0] != 'Z'\n"
        "print('child lives', lives, flush=True)\n"
    )
    run = runs.bare(script, max_restarts=1)
    order = read_order(run.layout)
    spec = order.spec.model_copy(update={"argv": (*order.spec.argv, str(run.layout.engine_log))})
    write_model(run.layout.launch, order.model_copy(update={"spec": spec}))
    assert run.submit().result().attempts == 2
    assert "child lives False" in run.text(run.layout.engine_log)


def test_an_order_with_more_restarts_than_the_plan_allows_never_starts(runs: Any) -> None:
    run = runs.planned("print('started')", max_restarts=2, max_retries=1).submit()
    result = run.result()
    assert result.state == "failed"
    assert "2 restarts are above the plan's 1" in result.reason
    assert not run.text(run.layout.stdout(0))


def test_a_plan_that_was_changed_between_two_attempts_does_not_start_again(runs: Any) -> None:
    script = "import os, sys\nos.chmod(os.path.dirname(__file__), 0o755); os.remove(__file__); sys.exit(1)"
    run = runs.planned(script, max_restarts=1, max_retries=1).submit()
    result = run.result()
    assert (result.state, result.attempts) == ("failed", 2)
    assert "not what was planned" in result.reason


def _checkpoint(directory: Path, *, step: object, ranks: int = 2, rng: int = 2, saved_at_s: float = 1.0) -> Path:
    from runtime.checkpoint.manifest import MANIFEST, Manifest, describe
    from runtime.files import write_json_atomic

    directory.mkdir(parents=True)
    names = ["state.rank0.safetensors", "own.rank0.json"]
    for name in names:
        (directory / name).write_bytes(b"weights")
    for rank in range(1, rng):
        own = {"save_id": "x", "files": []}
        write_json_atomic(directory / f"own.rank{rank}.manifest.json", own)
    (directory / "own.rank7.manifest.json").write_text("{")
    manifest = Manifest(
        save_id="x",
        iteration=0,
        optimizer_steps=step,  # type: ignore[arg-type]  # hostile
        world_size=ranks,
        strategy="ddp",
        replicated=True,
        saved_at_s=saved_at_s,
        needed_own=(),
        plan_digest=None,
        versions={},
        files=tuple(describe(directory / name) for name in names),
    )
    write_json_atomic(directory / MANIFEST, manifest.as_dict())
    return directory


def test_the_checkpoint_to_go_on_from(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert last_checkpoint(layout) is None
    _checkpoint(layout.checkpoints / "early", step=4)
    best = _checkpoint(layout.checkpoints / "later", step=8)
    _checkpoint(layout.checkpoints / "of_rank_0", step=12, rng=1)
    torn = _checkpoint(layout.checkpoints / "torn", step=16)
    (torn / "state.rank0.safetensors").write_bytes(b"weighty")
    short = _checkpoint(layout.checkpoints / "short", step=20)
    (short / "state.rank0.safetensors").unlink()
    _checkpoint(layout.checkpoints / "hostile", step="99")
    _checkpoint(layout.checkpoints / ".checkpoint_9.tmp-x1", step=24)
    assert last_checkpoint(layout) == best
    told = _checkpoint(layout.work / "mine", step=10)
    for path in (str(told), "relative", "\0", None, str(tmp_path / "absent")):
        append_event(layout.events, "checkpoint_saved", rank=0, path=path)
    assert last_checkpoint(layout) == told


def test_of_ranks_that_never_saved_their_states_the_newest_checkpoint_is_taken(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    _checkpoint(layout.checkpoints / "a", step=4, rng=1)
    newest = _checkpoint(layout.checkpoints / "b", step=8, rng=1)
    os.rename(newest, layout.checkpoints / ".b.previous")
    (layout.checkpoints / "b").mkdir()
    assert last_checkpoint(layout) == layout.checkpoints / ".b.previous"


def test_the_mark_of_an_attempt_begins_a_line(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.logs.mkdir()
    layout.stderr(0).write_text("torn")
    layout.stderr(1).write_text("")
    layout.stdout(0).write_text("untouched")
    mark_logs(layout, "mark")
    assert [layout.stderr(rank).read_text() for rank in (0, 1)] == ["torn\nmark\n", "mark\n"]
    assert layout.stdout(0).read_text() == "untouched"


def test_forerun_launch_restarts_and_shows_what_happened(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, pathlib\nmark = pathlib.Path('tried')\n"
        "if not mark.exists():\n    mark.touch()\n    raise ValueError('the first time')\n"
        "print('the second time')\n"
    )
    done = run(
        [sys.executable, "-m", "runtime.cli", "launch", "--max_restarts", "2", "--cpu", "train.py"],
        timeout_s=50.0,
        working_directory=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "the second time\n"), done.stderr
    assert "forerun: attempt 2 of at most 3, from the beginning; attempt 1 ended: rank 0: exit 1" in done.stderr
    assert "ValueError: the first time" in done.stderr
