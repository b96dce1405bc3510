"""What /proc says of processes: start time, liveness, descendants, memory, and the run's marker; and ending them."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from .env import RUN_MARKER

_PROC = Path("/proc")
_THREADS = _PROC / "self/task"


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of its stat); None if there is none."""
    fields = _stat(pid)
    return None if fields is None else int(fields[19])


def boot_id() -> str:
    """Changes with every boot of the machine."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def alive(pid: int, start_ticks: int) -> bool:
    """Whether this very process still runs; a zombie does not, and neither does a later owner of its pid."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in "ZXx" and int(fields[19]) == start_ticks


def descendants(pid: int) -> list[int]:
    """Living children of `pid`, their children and so on."""
    children: dict[int, list[int]] = {}
    for other in _pids():
        fields = _stat(other)
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(other)
    found, todo = [], list(children.get(pid, ()))
    while todo:
        current = todo.pop()
        todo.extend(children.get(current, ()))
        if not _is_zombie(current):
            found.append(current)
    return found


def marked_pids(run_id: str) -> list[int]:
    """Living processes whose environment holds this run's marker; never this process itself."""
    needle = f"{RUN_MARKER}={run_id}".encode()
    return [pid for pid in _pids() if pid != os.getpid() and _has_marker(pid, needle)]


def kill_marked(run_id: str, *, deadline_s: float) -> list[int]:
    """SIGKILL every process with this run's marker, again and again until none is left.

    Returns:
        The pids that were still there at the deadline; empty is success.
    """
    end = time.monotonic() + deadline_s
    while pids := marked_pids(run_id):
        kill(pids)
        if time.monotonic() >= end:
            return marked_pids(run_id)
        time.sleep(0.02)
    return []


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler of its own for this signal."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def thread_activity(name: str) -> dict[int, tuple[str, int]]:
    """Of this process' threads of that name (15 characters at most): the state's letter and how often they ran."""
    found = {}
    for tid in _threads():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = dict(
                line.split(":", 1) for line in (_THREADS / tid / "status").read_text(errors="replace").splitlines()
            )
            if fields["Name"].strip() == name:
                switches = int(fields["voluntary_ctxt_switches"]) + int(fields["nonvoluntary_ctxt_switches"])
                found[int(tid)] = (fields["State"].split()[0], switches)
    return found


def resident_bytes(pids: Iterable[int]) -> int | None:
    """Summed resident memory; None if none of them could be read."""
    total, seen = 0, False
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            seen = True
    return total if seen else None


def _threads() -> list[str]:
    try:
        return os.listdir(_THREADS)
    except FileNotFoundError:
        return []  # a system without /proc


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; the second may hold spaces and parentheses."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    return text.rpartition(")")[2].split()


def _is_zombie(pid: int) -> bool:
    fields = _stat(pid)
    return fields is None or fields[0] in "ZXx"


def _has_marker(pid: int, needle: bytes) -> bool:
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return needle in environment.split(b"\0") and not _is_zombie(pid)
