"""Outlives the supervisor: reads its pulse from a pipe, and ends the whole job when the pipe breaks without a word.

    python -I -m runtime.supervision.watchdog RUN_ID

Each line on stdin names the job's processes as PID:START_TICKS; `done` means that the supervisor has cleared up.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable

from ..procfs import alive, descendants, kill, marked_pids, start_ticks

DONE = b"done"
_DEADLINE_S = 30.0


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    run_id = sys.argv[1]
    known: list[tuple[int, int]] = []
    for line in sys.stdin.buffer:
        if line.strip() == DONE:
            return 0
        if line.endswith(b"\n"):
            known = parse(line)
    end_job(run_id, known)
    return 0


def encode(processes: Iterable[tuple[int, int]]) -> bytes:
    """(pid, start ticks) pairs as one line."""
    return (" ".join(f"{pid}:{ticks}" for pid, ticks in processes) + "\n").encode()


def parse(line: bytes) -> list[tuple[int, int]]:
    """The inverse of encode."""
    pairs = (word.split(b":") for word in line.split())
    return [(int(pid), int(ticks)) for pid, ticks in pairs]


def end_job(run_id: str, known: list[tuple[int, int]]) -> None:
    """SIGKILL whatever carries the marker, was known, or descends from either, until nothing is left."""
    end = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end:
        roots = {pid for pid, ticks in known if alive(pid, ticks)} | set(marked_pids(run_id))
        left = roots.union(*(descendants(pid) for pid in roots)) - {os.getpid()}
        if not left:
            return
        known += [(pid, ticks) for pid, ticks in _identify(left) if (pid, ticks) not in known]
        kill(left)
        time.sleep(0.05)


def _identify(pids: Iterable[int]) -> list[tuple[int, int]]:
    return [(pid, ticks) for pid in pids if (ticks := start_ticks(pid)) is not None]


if __name__ == "__main__":
    sys.exit(main())
