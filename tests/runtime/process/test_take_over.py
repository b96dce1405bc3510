"""A batch system starts a run's job again: its supervisor goes on, another job's does not."""

import os
from typing import Any

import pytest

from runtime.config.order import Claim, Heartbeat
from runtime.run_files import claim_run, read_claim, take_over, write_model

pytestmark = pytest.mark.multiprocess


def _died(run: Any, *, attempt: int, elapsed_s: float, batch_job: str = "7") -> None:
    """What a supervisor leaves whose machine died."""
    gone = {"pid": 2**22 + 1, "start_ticks": 1, "boot_id": "another"}
    write_model(run.layout.claim, Claim(owner="supervisor", time_s=1.0, batch_job=batch_job, **gone))
    beat = Heartbeat(time_s=1.0, elapsed_s=elapsed_s, disk_bytes=0, phase="running", attempt=attempt, **gone)
    write_model(run.layout.heartbeat, beat)


def test_the_same_job_goes_on_with_the_next_attempt_and_the_time_already_used(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORERUN_BATCH_JOB", "7")
    run = runs.bare("print('again')", max_restarts=1)
    _died(run, attempt=1, elapsed_s=40.0)
    result = run.submit().result()
    assert (result.state, result.attempts) == ("succeeded", 2)
    assert result.elapsed_s >= 40.0
    claim = read_claim(run.layout)
    assert claim is not None
    assert claim.pid != 2**22 + 1


def test_time_and_attempts_that_are_used_up_end_it(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_BATCH_JOB", "7")
    late = runs.bare("import time; time.sleep(600)", max_restarts=1, wall_time_s=60.0)
    _died(late, attempt=1, elapsed_s=61.0)
    assert late.submit().result().state == "stopped_at_limit"
    spent = runs.bare("print('never')", max_restarts=1)
    _died(spent, attempt=2, elapsed_s=1.0)
    result = spent.submit().result()
    assert (result.state, result.attempts) == ("failed", 2)
    assert "lost with its machine" in result.reason
    assert not spent.text(spent.layout.engine_log)


@pytest.mark.parametrize("job", ["8", ""])
def test_another_job_does_not(runs: Any, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    run = runs.bare("print('never')")
    _died(run, attempt=1, elapsed_s=1.0, batch_job="7" if job else "")
    monkeypatch.setenv("FORERUN_BATCH_JOB", job)
    assert not claim_run(run.layout)
    assert not take_over(run.layout)
    claim = read_claim(run.layout)
    assert claim is not None
    assert claim.pid != os.getpid()
