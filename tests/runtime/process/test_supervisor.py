"""The supervisor owns its job: limits, cancel, unclean deaths; and nothing of the job outlives it."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.config.order import CostLimit
from runtime.launchers.local import LocalLauncher
from runtime.procfs import alive, descendants, start_ticks
from runtime.run_files import (
    is_lost,
    leave_tombstone,
    read_claim,
    read_heartbeat,
    read_result,
    request_cancel,
)

pytestmark = pytest.mark.multiprocess

SLEEP = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"
# Ignores SIGTERM; has a child in a session of its own, and one that has also dropped the run's marker.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child', flush=True); time.sleep(600)"
for environment in (None, {"PATH": os.environ["PATH"]}):
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, env=environment,
                             stdout=subprocess.PIPE)
    child.stdout.readline()
    print("pid", child.pid, flush=True)
print("ready", flush=True)
time.sleep(600)
"""


def _pids_told(run: Any) -> dict[int, int | None]:
    """The children that STUBBORN named, with their start times."""
    lines = run.text(run.layout.engine_log).splitlines()
    pids = [int(line.split()[1]) for line in lines if line.startswith("pid ")]
    assert len(pids) == 2
    return {pid: start_ticks(pid) for pid in pids}


def _all_gone(run: Any, told: dict[int, int | None]) -> bool:
    return not run.alive() and not any(ticks is not None and alive(pid, ticks) for pid, ticks in told.items())


def test_a_job_that_ends_well_succeeds_and_is_measured(runs: Any) -> None:
    script = (
        "import time\nblock = bytearray(60_000_000)\nfor i in range(0, len(block), 4096): block[i] = 1\ntime.sleep(1)"
    )
    result = runs.bare(script).submit().result()
    assert (result.state, result.exit_code, result.failures, result.survivors) == ("succeeded", 0, (), ())
    assert 1.0 <= result.elapsed_s < 20.0
    assert result.started_at_s <= result.ended_at_s
    assert result.peak_memory_bytes is not None
    assert 60_000_000 < result.peak_memory_bytes < 400_000_000


def test_an_engine_that_fails_by_itself_is_told_with_its_last_words(runs: Any) -> None:
    result = runs.bare("raise SystemExit('no such card')").submit().result()
    assert (result.state, result.exit_code) == ("failed", 1)
    assert "no such card" in result.reason


def test_cancel_ends_the_job_by_sigterm_and_repeats_are_harmless(runs: Any) -> None:
    run = runs.bare(SLEEP).submit()
    run.wait_for_output("ready")
    for reason in ("first", "second"):
        LocalLauncher().cancel(run.layout, reason=reason)
    result = run.result()
    assert result.state == "cancelled"
    assert "cancelled: first" in result.reason
    assert result.signals_sent == ("SIGTERM",)
    LocalLauncher().cancel(run.layout, reason="too late")
    assert read_result(run.layout) == result


def test_a_job_that_ignores_sigterm_is_killed_with_all_its_descendants(runs: Any) -> None:
    run = runs.bare(STUBBORN, grace_s=1.0).submit()
    run.wait_for_output("ready")
    told = _pids_told(run)
    began = time.monotonic()
    request_cancel(run.layout, reason="enough")
    result = run.result()
    assert time.monotonic() - began < 8.0
    assert result.state == "cancelled"
    assert result.signals_sent == ("SIGTERM", "SIGKILL after 1 s")
    assert "killed (SIGKILL) after 1 s" in result.reason
    assert result.survivors == ()
    assert _all_gone(run, told)


def test_what_a_finished_job_leaves_behind_is_ended_too(runs: Any) -> None:
    leaver = STUBBORN.rpartition("time.sleep")[0]
    run = runs.bare(leaver, grace_s=0.5).submit()
    result = run.result()
    assert result.state == "succeeded"
    assert result.signals_sent == ("SIGTERM to 2 left over", "SIGKILL to 2 left over")
    assert _all_gone(run, _pids_told(run))


@pytest.mark.parametrize("limit", ["wall", "disk", "cost"])
def test_a_limit_stops_the_job(runs: Any, limit: str) -> None:
    writer = "open('big', 'wb').write(b'x' * 20_000_000)\n" + SLEEP
    orders: dict[str, dict[str, Any]] = {
        "wall": {"wall_time_s": 1.5},
        "disk": {"disk_bytes": 10_000_000},
        "cost": {"cost": CostLimit(most="0.05", hourly_rate="120.00", currency="EUR")},  # reached after 1.5 s
    }
    result = runs.bare(writer, **orders[limit]).submit().result(20.0)
    assert result.state == "stopped_at_limit"
    assert f"{limit} " in result.reason
    assert result.exit_code is None


def test_a_job_at_its_cost_is_told_to_save_first(runs: Any) -> None:
    script = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))\n"
        "child = os.fork()\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    result = runs.bare(script, cost=CostLimit(most="0.05", hourly_rate="120.00", currency="EUR")).submit().result(20.0)
    assert result.state == "stopped_at_limit"
    assert result.signals_sent[0] == "SIGUSR1"
    assert result.reason.startswith("cost limit of 0.05 EUR reached after ")
    assert 1.5 <= result.elapsed_s < 15.0


def test_a_lease_ends_with_the_process_that_holds_it(runs: Any, lease_of: Callable[[int], Any]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as server:
        run = runs.bare(STUBBORN, grace_s=60.0, lease=lease_of(server.pid)).submit()
        run.wait_for_output("ready")
        told = _pids_told(run)
        server.kill()
        server.wait()
        killed_at = time.monotonic()
        result = run.result()
    assert time.monotonic() - killed_at < 10.0
    assert result.state == "cancelled"
    assert "lease" in result.reason
    assert _all_gone(run, told)


def test_sigterm_to_the_supervisor_cancels_and_sighup_does_nothing(runs: Any, until: Callable[..., Any]) -> None:
    run = runs.bare(SLEEP).submit()
    run.wait_for_output("ready")
    os.kill(run.supervisor(), signal.SIGHUP)
    _wait_for_beats(run, until, 2)
    assert read_result(run.layout) is None
    os.kill(run.supervisor(), signal.SIGTERM)
    assert run.result().state == "cancelled"


def test_the_job_outlives_the_server_and_its_terminal(runs: Any) -> None:
    """C13: the client goes, its session gets SIGHUP, its process tree is killed."""
    run = runs.bare("import time\nprint('ready', flush=True)\ntime.sleep(2)\nprint('end', flush=True)\n")
    code = (
        "import sys; from pathlib import Path; from runtime.launchers.local import LocalLauncher;"
        "from runtime.layout import RunLayout; LocalLauncher().submit(RunLayout(Path(sys.argv[1])));"
        "print('submitted', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(run.layout.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"submitted\n"
        run.wait_for_output("ready")
        assert run.supervisor() not in descendants(server.pid)
        os.killpg(server.pid, signal.SIGHUP)
    result = run.result()
    assert result.state == "succeeded"
    assert run.text(run.layout.engine_log).endswith("end\n")


@pytest.mark.parametrize("first_kill_the_watchdog", [False, True])
def test_kill_9_of_the_supervisor_stops_the_job_and_the_run_is_lost(
    runs: Any, until: Callable[..., Any], first_kill_the_watchdog: bool
) -> None:
    run = runs.bare(STUBBORN).submit()
    run.wait_for_output("ready")
    told = _pids_told(run)
    supervisor = run.supervisor()
    if first_kill_the_watchdog:
        watchdog = _watchdog_of(supervisor)
        assert watchdog is not None
        os.kill(watchdog, signal.SIGKILL)
        until(lambda: _watchdog_of(supervisor) not in (None, watchdog), "a new watchdog")
    _wait_for_beats(run, until, 2)  # the watchdog has been told of every process
    assert not is_lost(run.layout, now_s=time.time() + 3600)
    os.kill(supervisor, signal.SIGKILL)
    until(lambda: _all_gone(run, told), "the end of the job", 10.0)
    until(lambda: is_lost(run.layout, now_s=time.time()), "lost", 10.0)
    assert read_result(run.layout) is None


def _wait_for_beats(run: Any, until: Callable[..., Any], count: int) -> None:
    for _ in range(count):
        last = read_heartbeat(run.layout)
        until(lambda last=last: read_heartbeat(run.layout) != last, "a heartbeat")


def _watchdog_of(supervisor: int) -> int | None:
    for pid in descendants(supervisor):
        if b"runtime.supervision.watchdog" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    return None


def test_submits_at_the_same_time_start_one_job(runs: Any) -> None:
    run = runs.bare("import os, time\nprint('job', os.getpid(), flush=True)\ntime.sleep(0.5)")
    threads = [threading.Thread(target=run.submit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.result().state == "succeeded"
    run.submit()
    log = run.text(run.layout.engine_log)
    assert log.count("job ") == 1


def test_a_tombstone_keeps_a_late_supervisor_from_starting(runs: Any, until: Callable[..., Any]) -> None:
    run = runs.bare(SLEEP)
    assert leave_tombstone(run.layout)
    assert leave_tombstone(run.layout)
    run.submit()
    until(lambda: "has an owner" in run.text(run.layout.supervisor_log), "the supervisor's refusal")
    assert not run.alive()
    assert read_result(run.layout) is None
    assert not is_lost(run.layout, now_s=time.time() + 3600)


def test_no_tombstone_on_a_claimed_run(runs: Any) -> None:
    run = runs.bare(SLEEP).submit()
    run.supervisor()
    assert not leave_tombstone(run.layout)
    claim = read_claim(run.layout)
    assert claim is not None
    assert claim.owner == "supervisor"
    request_cancel(run.layout, reason="test over")
    run.result()


def test_an_order_that_hides_its_plan_is_refused(runs: Any) -> None:
    run = runs.bare(SLEEP)
    run.layout.plan.write_text("{}")
    result = run.submit().result()
    assert result.state == "failed"
    assert "plan.json is there" in result.reason
    assert not run.layout.engine_log.exists()


def test_a_damaged_order_fails_the_run_with_a_reason(runs: Any) -> None:
    run = runs.bare(SLEEP)
    run.layout.launch.write_text('{"run_id": 3')
    result = run.submit().result()
    assert result.state == "failed"
    assert "LaunchOrder" in result.reason


def test_a_program_that_cannot_start_fails_the_run(runs: Any) -> None:
    result = runs.bare("", argv=("/nonexistent/python",)).submit().result()
    assert result.state == "failed"
    assert "/nonexistent/python cannot be started" in result.reason
