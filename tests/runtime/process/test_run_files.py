"""Claims, heartbeats and when a run counts as lost, on this machine and on another."""

import os
import time
from pathlib import Path

import pytest

from runtime.config.order import Claim, Heartbeat, RunResult
from runtime.errors import RecordError
from runtime.layout import RunLayout
from runtime.procfs import boot_id, start_ticks
from runtime.run_files import (
    claim_run,
    is_lost,
    leave_tombstone,
    read_cancel,
    read_claim,
    read_heartbeat,
    request_cancel,
    write_model,
)

NOW = 1_000_000.0


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return RunLayout(tmp_path)


def put(layout: RunLayout, *, boot: str | None = None, alive: bool, beat_s: float | None) -> None:
    ticks = start_ticks(os.getpid()) or 0
    who = {"pid": os.getpid(), "start_ticks": ticks if alive else ticks + 1, "boot_id": boot or boot_id()}
    write_model(layout.claim, Claim(owner="supervisor", time_s=NOW - 500, **who))
    if beat_s is not None:
        beat = Heartbeat(time_s=NOW - beat_s, elapsed_s=1, disk_bytes=1, phase="running", **who)
        write_model(layout.heartbeat, beat)


@pytest.mark.parametrize(
    ("boot", "alive", "beat_s", "lost"),
    [
        (None, True, 9999.0, False),  # stopped or slow, but there
        (None, False, 1.0, False),  # just gone: the watchdog is at work, or a result is coming
        (None, False, 6.0, True),
        (None, False, -3000.0, True),  # the clock was set back
        (None, False, None, True),
        ("another-boot", True, 30.0, False),  # another host: only its silence counts
        ("another-boot", False, 61.0, True),
        ("another-boot", False, None, True),
    ],
)
def test_lost(layout: RunLayout, boot: str | None, alive: bool, beat_s: float | None, lost: bool) -> None:
    put(layout, boot=boot, alive=alive, beat_s=beat_s)
    assert is_lost(layout, now_s=NOW) is lost
    result = RunResult(
        run_id="r",
        state="succeeded",
        reason="",
        exit_code=0,
        started_at_s=1,
        ended_at_s=2,
        elapsed_s=1,
        disk_bytes=0,
    )
    write_model(layout.result, result)
    assert not is_lost(layout, now_s=NOW)


def test_a_run_without_claim_is_not_lost(layout: RunLayout) -> None:
    assert not is_lost(layout, now_s=NOW)
    assert read_claim(layout) is None
    assert read_heartbeat(layout) is None


def test_one_claim_only(layout: RunLayout) -> None:
    assert claim_run(layout)
    assert not claim_run(layout)
    assert not leave_tombstone(layout)
    assert [path.name for path in layout.root.iterdir()] == ["claim.json"]


def test_the_first_cancel_stays(layout: RunLayout) -> None:
    request_cancel(layout, reason="a")
    request_cancel(layout, reason="b")
    cancel = read_cancel(layout)
    assert cancel is not None
    assert cancel.reason == "a"
    assert abs(cancel.time_s - time.time()) < 60


@pytest.mark.parametrize("content", ["", "{", "[]", '{"owner": "me"}', "\x00"])
def test_a_foreign_file_is_an_error_not_a_guess(layout: RunLayout, content: str) -> None:
    layout.claim.write_text(content)
    with pytest.raises(RecordError, match="is no Claim"):
        read_claim(layout)
