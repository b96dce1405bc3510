"""Finds every process of a job and ends it: marked ones, descendants, adopted orphans; with a watchdog in reserve."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..env import RUN_MARKER, current_environment
from ..launchers.process import Child, start_child
from ..procfs import descendants, kill, marked_pids, start_ticks
from . import watchdog

_LEFTOVER_GRACE_S = 3.0
_KILL_DEADLINE_S = 10.0
_PAUSE_S = 0.05


class Undertaker:
    """Belongs to the process that supervises; what that process had as children before is not the job's."""

    def __init__(self, run_id: str) -> None:
        self.own: set[int] = set()  # children that somebody else polls
        self.survivors: tuple[int, ...] = ()
        self._run_id = run_id
        self._foreign = set(descendants(os.getpid()))
        self._watchdog: Child | None = None

    def job_pids(self) -> set[int]:
        """Every living process of the job."""
        not_mine = set(self._foreign)
        if self._watchdog is not None:
            not_mine.add(self._watchdog.pid)
        for pid in self._foreign:
            not_mine.update(descendants(pid))
        return (set(descendants(os.getpid())) | set(marked_pids(self._run_id))) - not_mine

    def clear_up(self, grace_s: float, beat: Callable[[], None]) -> list[str]:
        """End what is left of the job: SIGTERM, a short wait, SIGKILL. Returns what was sent, in words."""
        left = self.job_pids()
        if not left:
            return []
        sent = [f"SIGTERM to {len(left)} left over"]
        kill(left, signal.SIGTERM)
        end = time.monotonic() + min(grace_s, _LEFTOVER_GRACE_S)
        while (left := self.job_pids()) and time.monotonic() < end:
            beat()
            self.reap()
            time.sleep(_PAUSE_S)
        if left:
            sent.append(f"SIGKILL to {len(left)} left over")
            self.kill_all()
        return sent

    def kill_all(self) -> None:
        """SIGKILL until nothing is left or the deadline has passed; then the rest are survivors."""
        end = time.monotonic() + _KILL_DEADLINE_S
        while left := self.job_pids():
            if time.monotonic() > end:
                break
            kill(left)
            self.reap()
            time.sleep(_PAUSE_S)
        self.survivors = tuple(sorted(left))

    def reap(self) -> None:
        """Bury adopted orphans; children that have a Popen are left to it."""
        with contextlib.suppress(ChildProcessError):
            while status := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                watched = self.own if self._watchdog is None else self.own | {self._watchdog.pid}
                if status.si_pid in watched | self._foreign:
                    return
                os.waitpid(status.si_pid, 0)

    def start_watchdog(self) -> None:
        """Have a process of its own ready to end the job if this one dies."""
        environment = {name: value for name, value in current_environment().items() if name != RUN_MARKER}
        self._watchdog = start_child(
            [sys.executable, "-I", "-m", "runtime.supervision.watchdog", self._run_id],
            environment=environment,
            working_directory=Path("/"),
            log=None,
            pipe_stdin=True,
        )

    def tell_watchdog(self, job: set[int]) -> None:
        """Tell it whom to end; start another one if it is gone."""
        if self._watchdog is None:
            return
        line = watchdog.encode([(pid, ticks) for pid in job if (ticks := start_ticks(pid)) is not None])
        if self._watchdog.poll() is not None or not self._say(line):
            self.start_watchdog()
            self._say(line)

    def dismiss_watchdog(self) -> None:
        """The job is over and cleared up."""
        if self._watchdog is not None:
            self._say(watchdog.DONE + b"\n")
            if self._watchdog.wait(_KILL_DEADLINE_S) is None:
                self._watchdog.send(signal.SIGKILL)
                self._watchdog.wait(_KILL_DEADLINE_S)
            if self._watchdog.stdin is not None:
                with contextlib.suppress(OSError):
                    self._watchdog.stdin.close()

    def _say(self, line: bytes) -> bool:
        assert self._watchdog is not None
        assert self._watchdog.stdin is not None
        try:
            self._watchdog.stdin.write(line)
            self._watchdog.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True
