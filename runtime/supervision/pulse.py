"""The supervisor's heartbeat, and what is measured at each beat: memory, disk, elapsed time."""

import contextlib
import os
import time
from typing import Literal

from ..config.order import Heartbeat
from ..layout import RunLayout
from ..procfs import boot_id, resident_bytes, start_ticks
from ..run_files import write_model
from .undertaker import Undertaker

_BEAT_S = 1.0
_EARLY_S = 5.0  # a short job is looked at more often, so that its peak is seen
_EARLY_BEAT_S = 0.25
_DISK_LEAST_S = 2.0
_DISK_SHARE = 20


class Pulse:
    """Call beat() often: it does its work about once a second."""

    def __init__(self, layout: RunLayout, undertaker: Undertaker) -> None:
        self.phase: Literal["prologue", "running", "stopping"] = "prologue"
        self.started_at_s: float | None = None
        self.attempt = 1
        self.before_s = 0.0
        self.disk_bytes = 0
        self.peak_memory_bytes: int | None = None
        self._layout = layout
        self._undertaker = undertaker
        self._started: float | None = None
        self._next_beat = self._next_disk = 0.0
        self._pid, self._ticks, self._boot_id = os.getpid(), start_ticks(os.getpid()) or 0, boot_id()

    @property
    def elapsed_s(self) -> float:
        """Seconds that the job has run: since it started, and under an earlier supervisor."""
        return self.before_s + (0.0 if self._started is None else time.monotonic() - self._started)

    def start_clock(self) -> None:
        """The job starts now, or again: its time is counted from its first start."""
        self.phase = "running"
        if self._started is None:
            self.started_at_s, self._started = time.time(), time.monotonic()
        self._next_beat = 0.0

    def beat(self) -> None:
        now = time.monotonic()
        if now < self._next_beat:
            return
        early = self._started is not None and now < self._started + _EARLY_S
        self._next_beat = now + (_EARLY_BEAT_S if early else _BEAT_S)
        self._undertaker.reap()
        job = self._undertaker.job_pids()
        self._undertaker.tell_watchdog(job)
        memory_bytes = resident_bytes(job)
        if memory_bytes is not None:
            self.peak_memory_bytes = max(memory_bytes, self.peak_memory_bytes or 0)
        if now >= self._next_disk:
            self.measure_disk()
            took_s = time.monotonic() - now
            self._next_disk = now + max(_DISK_LEAST_S, _DISK_SHARE * took_s)
        with contextlib.suppress(OSError):  # a full disk must not end a job that may still make room
            write_model(self._layout.heartbeat, self._heartbeat())

    def beat_now(self) -> None:
        self._next_beat = 0.0
        self.beat()

    def measure_disk(self) -> None:
        """Bytes that the run directory takes on its disk."""
        total = 0
        for folder, _, names in os.walk(self._layout.root):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
        self.disk_bytes = total

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            time_s=time.time(),
            pid=self._pid,
            start_ticks=self._ticks,
            boot_id=self._boot_id,
            elapsed_s=self.elapsed_s,
            disk_bytes=self.disk_bytes,
            phase=self.phase,
            attempt=self.attempt,
        )
