"""debug_launcher: call a function on several processes of this machine, on the CPU, from a running interpreter.

The processes are copies of this one (fork), so that a function typed into the interpreter will do.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, unlisted
from torch.multiprocessing import _prctl_pr_set_pdeathsig  # type: ignore[attr-defined]  # of the C module

from .accelerator_state import AcceleratorState
from .env import adopt_environment, read_environment
from .errors import ConfigurationError, LaunchError, UsageError
from .procfs import descendants, kill
from .state import PartialState

__all__ = ["debug_launcher"]

_SECONDARY_S = 2.0
_ADDRESS = "127.0.0.1"


def debug_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int = 2,
    *,
    timeout_s: float | None = None,
) -> None:
    """Call function(*args) on `num_processes` ranks over gloo, and return when all have.

    Each rank computes with one thread. Results are what the function writes or prints: nothing is returned.

    Args:
        timeout_s: after which the ranks are ended; None waits.

    Raises:
        LaunchError: a rank failed, with its traceback (of the first to fail, where several did), or ended without a
            word, or the time is over. No process is left.
        UsageError: called on a rank of a job.
        ConfigurationError: num_processes is not positive.
    """
    if not isinstance(num_processes, int) or num_processes < 1:
        raise ConfigurationError(f"num_processes={num_processes!r}", allowed="an integer of at least 1")
    if dist.is_initialized() or read_environment().world_size > 1:
        raise UsageError(
            "debug_launcher on a rank of a job",
            allowed="an interpreter or a script that is not distributed",
            next_step="call the function itself: the ranks are there already",
        )
    store = TCPStore(_ADDRESS, 0, num_processes + 1, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("fork")
    ranks: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(num_processes):
            ours, theirs = context.Pipe(duplex=False)
            words = _variables(rank, num_processes, store.port)
            process = context.Process(target=_become_rank, args=(function, tuple(args), words, theirs))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads, from Python 3.12
                process.start()
            theirs.close()
            ranks.append((process, ours))
        _await(ranks, timeout_s)
    finally:
        _end(ranks)


def _variables(rank: int, world_size: int, port: int) -> dict[str, str]:
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    return {name: str(value) for name, value in own.items()} | {
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # this process has the store: no port is guessed
        "FORERUN_DEVICE": "cpu",
    }


def _become_rank(
    function: Callable[..., Any], args: tuple[Any, ...], variables: Mapping[str, str], words: Connection
) -> None:
    _prctl_pr_set_pdeathsig(signal.SIGKILL)  # no rank outlives the interpreter
    adopt_environment(variables)
    torch.set_num_threads(1)  # a pool of threads does not survive a fork
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        function(*args)
        if PartialState._process is not None:
            PartialState().destroy_process_group()
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            return
        sys.stdout.flush()
        words.send_bytes(json.dumps([time.time(), f"{type(error).__name__}: {error}", traceback.format_exc()]).encode())
        words.close()
        sys.stderr.flush()
        os._exit(1)


def _await(ranks: list[tuple[BaseProcess, Connection]], timeout_s: float | None) -> None:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    running: dict[Any, int] = {process.sentinel: rank for rank, (process, _) in enumerate(ranks)}
    while running:
        left_s = None if deadline is None else deadline - time.monotonic()
        ended = wait(list(running), timeout=left_s)
        if not ended:
            late = ", ".join(str(rank) for rank in sorted(running.values()))
            raise LaunchError(
                f"debug_launcher: rank {late} did not end within {timeout_s:g} s",
                next_step="look for a rank that is alone in a collective, or allow more time",
            )
        for sentinel in ended:
            rank = running.pop(sentinel)
            ranks[rank][0].join()
            if ranks[rank][0].exitcode != 0:
                _raise(ranks, rank)


def _raise(ranks: list[tuple[BaseProcess, Connection]], rank: int) -> None:
    """Raise the first failure: a rank that fails takes others down, and one of those may have ended before it."""
    until = time.monotonic() + _SECONDARY_S
    for process, _ in ranks:
        process.join(max(0.0, until - time.monotonic()))
    said = []
    for number, (_, words) in enumerate(ranks):
        with contextlib.suppress(EOFError, OSError):
            if words.poll():
                when, what, trace = json.loads(words.recv_bytes())
                said.append((when, number, what, trace))
    silent = [(n, p.exitcode) for n, (p, _) in enumerate(ranks) if p.exitcode not in (None, 0, 1)]
    if silent or not said:
        number, code = silent[0] if silent else (rank, ranks[rank][0].exitcode)
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with {code}"
        raise LaunchError(f"debug_launcher: rank {number} of {len(ranks)} {how}, without a traceback")
    _, number, what, trace = min(said)
    raise LaunchError(f"debug_launcher: rank {number} of {len(ranks)} failed: {what}\n\nIts traceback:\n{trace}")


def _end(ranks: list[tuple[BaseProcess, Connection]]) -> None:
    for process, words in ranks:
        words.close()
        if process.is_alive() and process.pid is not None:
            kill([*descendants(process.pid), process.pid])
        process.join()
        process.close()
