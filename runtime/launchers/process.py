"""The only place that starts processes: short commands, children that are watched, daemons that outlive us."""

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..env import RUN_MARKER, current_environment
from ..errors import LaunchError
from ..procfs import (
    alive,
    boot_id,
    descendants,
    kill,
    kill_marked,
    marked_pids,
    resident_bytes,
    start_ticks,
)

__all__ = [
    "Child",
    "Completed",
    "alive",
    "boot_id",
    "descendants",
    "kill",
    "kill_marked",
    "marked_pids",
    "resident_bytes",
    "run",
    "start_child",
    "start_detached",
    "start_ticks",
]

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
