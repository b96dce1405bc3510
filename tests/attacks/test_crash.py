"""A server killed at every step between the approval and the running job: afterwards exactly one run, never two."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("crash_driver.py")
KINDS = ("os.mkdir", "os.rename", "open for writing", "subprocess.Popen", "sql BEGIN", "sql INSERT", "sql COMMIT")


def kills(directory: Path, *options: str, timeout_s: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What came of each kill, and of all together."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-W", "error", str(DRIVER), str(directory), *options],
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    *rows, end = [json.loads(line) for line in done.stdout.splitlines()]
    return rows, end


def check(rows: list[dict[str, Any]], end: dict[str, Any]) -> None:
    assert rows[-1]["where"] == "not killed"  # every step before had its turn
    for row in rows:
        assert row["runs"] == [row["told"]], row
        assert (row["starts"], row["results"], row["states"]) == (1, 1, ["succeeded"]), row
    assert (end["all_starts"], end["problems"], end["left_behind"]) == (len(rows), [], [])


@pytest.mark.multiprocess
def test_a_server_killed_at_any_step_of_a_launch_leaves_exactly_one_run(tmp_path: Path) -> None:
    rows, end = kills(tmp_path, timeout_s=170)
    check(rows, end)
    assert end["cleared"] > 5, "kills between making the directory and storing the run left some to clear"
    places = [row["where"] for row in rows]
    assert all(any(place.startswith(kind) for place in places) for kind in KINDS), places
    assert sum(place == "sql COMMIT" for place in places) >= 2  # the approval is used; the run is seen running


@pytest.mark.soak
@pytest.mark.multiprocess
def test_a_server_killed_at_any_read_of_the_database_leaves_exactly_one_run(tmp_path: Path) -> None:
    check(*kills(tmp_path, "--reads", timeout_s=600))
