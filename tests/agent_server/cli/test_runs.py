"""`forerun logs`, `report` and `cancel` on a run that has ended: what its directory holds, made safe to print."""

import subprocess
from pathlib import Path

import pytest

from runtime.config.order import RunResult
from runtime.layout import RunLayout
from tests.agent_server.cli.conftest import Desk
from tests.fakes.approvals import START_S, estimated_record, run_of
from tools.domain.run_state import RunRecord, RunState

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def ended(desk: Desk) -> RunRecord:
    """A failed smoke run with a log of 1,200 lines, more than one page."""
    record = estimated_record()
    desk.store.add_plan(record)
    draft = run_of(record, kind="smoke")
    layout = RunLayout(desk.root / "state" / "runs" / draft.run_id)
    layout.logs.mkdir(parents=True)
    layout.stdout(0).write_text("".join(f"line {n}\n" for n in range(1200)) + "red \x1b[31mtext\n")
    layout.stderr(1).write_text("the second rank\n")
    run = desk.store.add_run(draft.model_copy(update={"run_dir": str(layout.root)}))
    result = RunResult(
        run_id=run.run_id,
        state="failed",
        reason="rank 1 exited with 3",
        exit_code=3,
        started_at_s=START_S,
        ended_at_s=START_S + 5,
        elapsed_s=5,
        disk_bytes=1,
    )
    layout.result.write_text(result.model_dump_json())
    failed = run.model_copy(update={"state": RunState.FAILED, "reason": result.reason, "result": result})
    desk.store.save_run(failed, expect=RunState.LAUNCHING)
    return failed


def forerun(desk: Desk, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*desk.argv, *arguments], env=desk.environment, capture_output=True, text=True, timeout=50, check=False
    )


def test_a_log_is_printed_whole_once_and_without_controls(desk: Desk, ended: RunRecord) -> None:
    done = forerun(desk, "logs", ended.run_id, "--follow")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*(f"line {n}" for n in range(1200)), "red \\x1b[31mtext"]
    assert forerun(desk, "logs", ended.run_id, "--rank", "1", "--stream", "stderr").stdout == "the second rank\n"
    assert forerun(desk, "logs", ended.run_id, "--pattern", "LINE 1199").stdout == "line 1199\n"


def test_a_rank_that_the_plan_has_not_is_bad_input(desk: Desk, ended: RunRecord) -> None:
    done = forerun(desk, "logs", ended.run_id, "--rank", "2")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_cancelling_an_ended_run_leaves_it_as_it_is(desk: Desk, ended: RunRecord) -> None:
    done = forerun(desk, "cancel", ended.run_id)
    assert (done.returncode, done.stdout) == (0, f"{ended.run_id} is failed: rank 1 exited with 3\n")
    assert forerun(desk, "wait", ended.run_id).stdout == f"{ended.run_id} is failed: rank 1 exited with 3\n"


def test_a_report_is_written_verified_and_its_changes_are_found(desk: Desk, ended: RunRecord) -> None:
    before = forerun(desk, "report", ended.run_id, "--verify")
    assert before.returncode == 2
    assert "no report yet" in before.stderr
    written = forerun(desk, "report", ended.run_id)
    assert written.returncode == 0, written.stderr
    report = desk.store.run(ended.run_id).report
    assert report is not None
    assert report.html_path in written.stdout
    assert "not verified:" in written.stdout
    Path(report.markdown_path).write_text("all is well")
    changed = forerun(desk, "report", ended.run_id, "--verify")
    assert changed.returncode == 1
    assert "changed: report/report.md" in changed.stderr
