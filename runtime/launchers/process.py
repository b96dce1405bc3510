"""The only place that starts processes; and what /proc says of them: start time, liveness, descendants, run marker."""

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..env import RUN_MARKER, current_environment
from ..errors import LaunchError

_PROC = Path("/proc")
_DETACH = Path(__file__).with_name("detach.py")
_AFTER_EXIT_S = 0.5
_PIECE_BYTES = 65536


@dataclass(frozen=True)
class Completed:
    """A finished process. `stdout` and `stderr` are cut at max_output_bytes; `returncode` is -signal for a signal."""

    returncode: int
    stdout: str
    stderr: str
    timed_out: bool


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    working_directory: Path | None = None,
    stdin_text: str | None = None,
    max_output_bytes: int = 4 * 2**20,
) -> Completed:
    """Run a short command to its end and collect its output.

    stdin is empty unless a text is given. At the end nothing that it started is left: neither its process group nor
    a child that made a session of its own (those carry a marker of this call in their environment).

    Raises:
        LaunchError: the program cannot be started.
    """
    marker = f"probe-{secrets.token_hex(8)}"
    base = current_environment() if environment is None else environment
    try:
        return _run(
            argv,
            environment={**base, RUN_MARKER: marker},
            working_directory=working_directory,
            stdin_text=stdin_text,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )
    finally:
        kill_marked(marker, deadline_s=5.0)


def start_detached(argv: Sequence[str], *, environment: Mapping[str, str], working_directory: Path, log: Path) -> int:
    """Start a process that outlives this one: own session, no parent here, stdin empty, output appended to `log`.

    Returns:
        Its pid. The process is nobody's child here, so it leaves no zombie and dies with no tree kill of this process.

    Raises:
        LaunchError: it cannot be started.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    done = _run(
        [sys.executable, "-I", "-S", str(_DETACH), str(log), str(working_directory), *argv],
        environment=environment,
        working_directory=None,
        stdin_text=None,
        timeout_s=30.0,
        max_output_bytes=_PIECE_BYTES,
    )
    if done.returncode != 0 or not done.stdout.strip().isdigit():
        raise LaunchError(f"{argv[0]} could not be started: {done.stderr.strip()[-500:]}")
    return int(done.stdout)


@dataclass(frozen=True)
class Child:
    """A child process that the caller watches to its end."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        """Its exit code, -signal for a signal, None while it runs."""
        return self.process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """poll() after at most `timeout_s` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(timeout_s)
        return None

    def send(self, number: int) -> None:
        """Send a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    @property
    def stdin(self) -> IO[bytes] | None:
        return self.process.stdin


def start_child(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    working_directory: Path,
    log: Path | None,
    pipe_stdin: bool = False,
) -> Child:
    """Start a child in a session of its own; output goes to `log`, stdin is empty or a pipe from here.

    Raises:
        LaunchError: the program cannot be started.
    """
    with contextlib.ExitStack() as stack:
        out = subprocess.DEVNULL if log is None else stack.enter_context(log.open("ab")).fileno()
        try:
            return Child(
                subprocess.Popen(
                    list(argv),
                    stdin=subprocess.PIPE if pipe_stdin else subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=dict(environment),
                    cwd=working_directory,
                    start_new_session=True,
                )
            )
        except (OSError, ValueError) as error:
            raise _cannot_start(argv, error) from error


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


def resident_bytes(pids: Iterable[int]) -> int | None:
    """Summed resident memory; None if none of them could be read."""
    total, seen = 0, False
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += int((_PROC / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            seen = True
    return total if seen else None


def _run(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    working_directory: Path | None,
    stdin_text: str | None,
    timeout_s: float,
    max_output_bytes: int,
) -> Completed:
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd=working_directory,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise _cannot_start(argv, error) from error
    try:
        stdout, stderr, timed_out = _communicate(
            process, stdin_text=stdin_text, deadline=time.monotonic() + timeout_s, max_output_bytes=max_output_bytes
        )
    finally:
        if process.poll() is None:
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                _close(pipe)
    return Completed(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"), timed_out)


def _cannot_start(argv: Sequence[str], error: Exception) -> LaunchError:
    return LaunchError(
        f"{argv[0] if argv else '(nothing)'} cannot be started: {error}",
        allowed="an executable program",
        next_step="check the path and its permissions",
    )


def _communicate(
    process: "subprocess.Popen[bytes]", *, stdin_text: str | None, deadline: float, max_output_bytes: int
) -> tuple[bytes, bytes, bool]:
    """Feed and drain until the process ended and its pipes are closed, or shortly after it ended, or the deadline."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    kept = {process.stdout: bytearray(), process.stderr: bytearray()}
    to_write = memoryview((stdin_text or "").encode())
    end = deadline
    with selectors.DefaultSelector() as selector:
        for pipe in kept:
            os.set_blocking(pipe.fileno(), False)
            selector.register(pipe, selectors.EVENT_READ)
        if to_write:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        else:
            process.stdin.close()
        while selector.get_map():
            now = time.monotonic()
            if now >= end:
                break
            if process.poll() is not None:
                end = min(end, now + _AFTER_EXIT_S)  # a grandchild may hold the pipes open for ever
            for key, _ in selector.select(min(0.05, end - now)):
                if key.fileobj is process.stdin:
                    to_write = _write_some(process.stdin, to_write)
                    finished = not to_write
                    if finished:
                        selector.unregister(process.stdin)
                        _close(process.stdin)
                else:
                    finished = not _read_some(key.fd, kept[key.fileobj], max_output_bytes)  # type: ignore[index]  # registered above
                    if finished:
                        selector.unregister(key.fileobj)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return bytes(kept[process.stdout]), bytes(kept[process.stderr]), process.poll() is None


def _write_some(pipe: IO[bytes], data: memoryview) -> memoryview:
    try:
        return data[os.write(pipe.fileno(), data[:_PIECE_BYTES]) :]
    except BlockingIOError:
        return data
    except BrokenPipeError:
        return data[:0]


def _read_some(descriptor: int, kept: bytearray, max_output_bytes: int) -> bool:
    """Read what is there, keep what fits; False at end of file."""
    try:
        piece = os.read(descriptor, _PIECE_BYTES)
    except BlockingIOError:
        return True
    kept += piece[: max(0, max_output_bytes - len(kept))]
    return bool(piece)


def _close(pipe: IO[bytes]) -> None:
    with contextlib.suppress(OSError):
        pipe.close()


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


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
