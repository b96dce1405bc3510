"""Starts the ranks of a job by forking a process that has torch and the runtime imported: a second a job, not six.

    python rank_server.py        one request a line on stdin, answers on stdout, ends with stdin

Each rank is what torchrun would start: the same variables, its own interpreter exit, the others stopped when one fails.
"""

import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_GRACE_S = 5.0


@dataclass(frozen=True)
class Job:
    """How a job ended: 0 if every rank did so, 1 if not, None if it was killed at its deadline."""

    returncode: int | None
    output: str


class RankServer:
    """The server's process, as tests see it."""

    def __init__(self, source: Path) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(source), "PYTHONWARNINGS": "error"},
        )

    def run(
        self, script: Path, *arguments: str, ranks: int, deadline_s: float, environment: dict[str, str], output: Path
    ) -> Job:
        """Run a script on several ranks, in its directory; their output goes to a file."""
        assert self._process.stdin is not None
        request = {
            "argv": [str(script), *arguments],
            "ranks": ranks,
            "environment": environment,
            "output": str(output),
        }
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        group = self._answer(60.0)
        assert group is not None, "the rank server does not answer"
        returncode = self._answer(deadline_s)
        if returncode is None:
            os.killpg(group, signal.SIGKILL)
            self._answer(10.0)
        return Job(returncode, output.read_text(errors="replace"))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10.0)
        self._process.stdout.close()

    def _answer(self, deadline_s: float) -> int | None:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], deadline_s)
        if not ready:
            return None
        line = self._process.stdout.readline()
        assert line, "the rank server has died"
        return int(line)


def _serve() -> dict[str, Any] | None:
    """Answer requests until stdin ends; returns in a rank's process alone, with what that rank is to run."""
    _import_everything()
    pending = b""
    while chunk := os.read(0, 65536):
        pending += chunk
        while b"\n" in pending:
            line, pending = pending.split(b"\n", 1)
            request = json.loads(line)
            runner = os.fork()
            if runner == 0:
                os.setsid()
                return _run_job(request)
            os.write(1, f"{runner}\n".encode())
            _, status = os.waitpid(runner, 0)
            os.write(1, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    return None


def _import_everything() -> None:
    import gc

    import numpy  # noqa: F401
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import torch.utils.data
    import torch.utils.data._utils.worker
    import torch.utils.flop_counter

    from runtime import accelerator, migration, remote_saving
    from runtime.checkpoint import export, weights
    from runtime.strategies import fsdp2

    assert accelerator.Accelerator is not None
    assert fsdp2.Fsdp2Strategy is not None
    for asked_for in (migration, remote_saving, export, weights):  # by some trainings alone
        assert asked_for.__name__ in sys.modules
    torch.set_num_threads(1)
    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads cannot be forked safely"
    gc.collect()
    gc.freeze()


def _run_job(request: dict[str, Any]) -> dict[str, Any] | None:
    """In the runner: start all ranks and wait for them; never returns there, but does in each rank."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(descriptor, target)
    os.close(null)
    os.close(output)
    port, store = _start_store()
    ranks: dict[int, int] = {}
    for rank in range(request["ranks"]):
        pid = os.fork()
        if pid == 0:
            return {**request, "rank": rank, "port": port}
        ranks[pid] = rank
    failed, deadline = False, None
    while ranks:
        pid, status = os.waitpid(-1, 0 if deadline is None else os.WNOHANG)
        if pid == 0:
            if time.monotonic() > deadline:
                _signal(ranks, signal.SIGKILL)
            time.sleep(0.02)
            continue
        if pid == store:
            continue
        rank = ranks.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code != 0 and deadline is None:
            print(f"rank {rank} ended with {code}", file=sys.stderr, flush=True)
            failed, deadline = True, time.monotonic() + _GRACE_S
            _signal(ranks, signal.SIGTERM)
    if store:
        os.kill(store, signal.SIGKILL)
    os._exit(1 if failed else 0)


def _signal(pids: dict[int, int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def _start_store() -> tuple[int, int]:
    """A process that holds the job's store, as torchrun's agent does; returns its port and pid."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        from torch.distributed import TCPStore

        listener = socket.socket(socket.AF_INET6 if socket.has_ipv6 else socket.AF_INET)
        listener.bind(("", 0))
        listener.listen(128)
        port = listener.getsockname()[1]
        store = TCPStore("localhost", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
        os.write(writer, str(store.port).encode())
        os.close(writer)
        while True:
            signal.pause()
    os.close(writer)
    port = int(os.read(reader, 16))
    os.close(reader)
    return port, pid


def _become_rank(request: dict[str, Any]) -> None:
    rank, ranks = request["rank"], request["ranks"]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(ranks),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(request["port"]),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        **request["environment"],
    }
    import numpy

    random.seed()
    numpy.random.seed(None)
    script = request["argv"][0]
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(script)
    os.chdir(os.path.dirname(script))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    _mine = _serve()
    if _mine is not None:
        _become_rank(_mine)
