"""How long the server lives: no longer than its client, whatever way the client goes."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from types import FrameType
from typing import NoReturn

from mcp.server import MCPServer

from runtime.launchers.process import descendants, kill

_PARENT_POLL_S = 1.0
_LAST_WORDS_S = 3.0


def run_until_the_client_is_gone(server: "MCPServer[None]") -> None:
    """Serve over stdin and stdout; then the process ends, whatever still blocks one of its threads.

    It ends by EOF on stdin, a broken stdout, the death of the parent process, SIGTERM, SIGINT or SIGHUP. Smoke runs
    hold a lease on this process and end with it; full runs go on.
    """
    _keep_the_wire_clean()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _on_signal)
    threading.Thread(target=_watch_parent, name="forerun-parent", daemon=True).start()
    try:
        server.run("stdio")
    except* (BrokenPipeError, ConnectionResetError):
        pass  # the client closed its end in mid-answer
    finally:
        # The wire is done with: what Python still prints while it exits goes to stderr.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(2, 1)
        kill(descendants(os.getpid()))


@contextlib.asynccontextmanager
async def last_words(_: "MCPServer[None]") -> AsyncIterator[None]:
    """Around the serving loop of a process of our own: once it is over nothing may hold it, no thread reading stdin."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()  # now, while fd 1 still leads to stderr
        threading.Thread(target=_end_soon, name="forerun-end", daemon=True).start()


def _keep_the_wire_clean() -> None:
    """What a library prints must not wait in a buffer until the wire is back on fd 1."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True)


def _on_signal(number: int, _: FrameType | None) -> NoReturn:
    _end(128 + number)


def _end_soon() -> None:
    time.sleep(_LAST_WORDS_S)
    _end(0)


def _watch_parent() -> None:
    """A client that was killed may leave the pipe open in another of its children: then there is no EOF."""
    time.sleep(_PARENT_POLL_S)  # a wrapper that only starts the server may exit first
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    _end_soon()


def _end(code: int) -> NoReturn:
    # Short-lived children (probes of an interpreter) end here; supervisors of runs are nobody's children.
    kill(descendants(os.getpid()))
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    os._exit(code)
