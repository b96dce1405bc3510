"""Run by path in the plan's interpreter: torchrun's agent of one node, with a record of which rank died first.

    torchrun_engine.py --num-processes N --failures FILE --scratch DIR [--port P] [--grace S] [-m] -- SCRIPT ARGS
    ... --num-nodes M --node-rank R --address A --port P [--backend static|c10d] [--settings K=V,...]

N is the number of processes of this node. R and A may be names of variables that hold them.

Needs the standard library and torch alone. Exits with the code of the first rank that failed (128 + number for a
signal). torchrun by itself exits with 1, tells times to the second, and gives ranks that ignore SIGTERM half a minute.
"""

import argparse
import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

_WORKER = Path(__file__).resolve().parents[1] / "worker.py"
_PR_SET_PDEATHSIG = 1
_LOOK_S = 0.02
_LOOK_LATER_S = 2.0  # a rank that was over before it was seen is looked for less and less
_LOOK_CLOSELY_FOR_S = 10.0
_ONE_NODE = "forerun-one-node"
_MONITOR_S = "0.03"  # between torchrun's looks at its ranks: its own 0.1 s is time lost at the end of each job


def main() -> int:
    own = sys.argv[1 : sys.argv.index("--")]
    target = sys.argv[sys.argv.index("--") + 1 :]
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--num-processes", type=int, required=True)
    parser.add_argument("--failures", type=Path, required=True)
    parser.add_argument("--scratch", type=Path, required=True)
    parser.add_argument("--port", type=int)
    parser.add_argument("--grace", type=float, default=10.0)
    parser.add_argument("--num-nodes", type=int, default=1)
    parser.add_argument("--node-rank", default="0")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--own-address")
    parser.add_argument("--backend", choices=("static", "c10d"), default="static")
    parser.add_argument("--settings", default="")
    parser.add_argument("-m", dest="module", action="store_true")
    options = parser.parse_args(own)
    options.address = os.environ.get(options.address, options.address)
    options.node_rank = int(os.environ.get(options.node_rank, options.node_rank))
    if options.node_rank > 0:  # the failures of all nodes may come to lie in one directory
        options.failures = options.failures.with_name(f"{options.failures.stem}.node{options.node_rank}.json")
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != Path(__file__).resolve().parent]
    deaths = DeathWatch(options.num_processes, grace_s=options.grace)
    signal.signal(signal.SIGUSR1, lambda _number, _frame: deaths.ask_to_save())
    code = 0
    try:
        _run(options, target, deaths)
    except SystemExit:
        raise
    except BaseException as error:
        code = _report(error, options.failures, deaths)
    if options.num_nodes == 1:  # nobody needs this process any more, and taking torch down takes a third of a second
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(code)
    return code


def _run(options: argparse.Namespace, target: list[str], deaths: "DeathWatch") -> None:
    from torch.distributed import run as torchrun

    flags = ["--nproc-per-node", str(options.num_processes), "--max-restarts", "0", "--no-python"]
    flags += ["--nnodes", str(options.num_nodes), "--log-dir", str(options.scratch), *_rendezvous(options)]
    if options.num_nodes == 1:
        flags += ["--monitor-interval", _MONITOR_S]
        _register_one_node()
    parsed = torchrun.parse_args([*flags, sys.executable])  # type: ignore[no-untyped-call]  # torch's own
    module = ["-m"] if options.module else []
    worker = [str(_WORKER), "--parent", str(os.getpid()), *module, *target]
    parsed.training_script_args = [argument.replace("$", "$$") for argument in worker]  # torchrun expands ${...}
    deaths.start()
    torchrun.run(parsed)  # type: ignore[no-untyped-call]  # torch's own


def _rendezvous(options: argparse.Namespace) -> list[str]:
    """torchrun's flags on how the nodes find each other."""
    if options.port is None:
        return ["--rdzv-backend", _ONE_NODE, "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "forerun"]
    own_address = [] if options.own_address is None else ["--local-addr", options.own_address]
    if options.backend == "static":
        rank = ["--rdzv-backend", "static", "--node-rank", str(options.node_rank)]
        return [*rank, "--master-addr", options.address, "--master-port", str(options.port), *own_address]
    is_host = f"is_host={int(options.node_rank == 0)}"  # by itself it asks the host's name, which may mean loopback
    settings = ",".join(filter(None, [is_host, options.settings]))
    endpoint = f"{options.address}:{options.port}"
    names = ["--rdzv-backend", "c10d", "--rdzv-id", f"forerun-{options.port}"]
    return [*names, "--rdzv-endpoint", endpoint, "--rdzv-conf", settings, *own_address]


def _register_one_node() -> None:
    """Teach torchrun a rendezvous for one node: static, on a port that the kernel chooses when the store is made.

    --standalone does the same by c10d's rounds, which cost a quarter of a second; a port chosen beforehand may be
    somebody else's by then.
    """
    from datetime import timedelta

    from torch._C._distributed_c10d import PrefixStore, TCPStore
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry
    from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

    class OneNode(StaticTCPRendezvous):
        def get_backend(self) -> str:
            return _ONE_NODE

        def next_rendezvous(self) -> RendezvousInfo:
            store = TCPStore(self.master_addr, 0, 1, True, timedelta(seconds=600), multi_tenant=True)
            place = RendezvousStoreInfo(self.master_addr, store.port)
            return RendezvousInfo(PrefixStore(self.run_id, store), 0, 1, place)

    def make(parameters: RendezvousParameters) -> OneNode:
        return OneNode("127.0.0.1", 0, 0, 1, parameters.run_id, 600)

    rendezvous_handler_registry.register(_ONE_NODE, make)


class DeathWatch(threading.Thread):
    """Notes when and how each rank ended, and ends the others `grace_s` after the first that failed."""

    def __init__(self, num_processes: int, *, grace_s: float) -> None:
        super().__init__(name="deaths", daemon=True)
        self.deaths: dict[int, dict[str, Any]] = {}
        self._num_processes = num_processes
        self._grace_s = grace_s
        self._ranks: dict[int, int] = {}  # pid -> rank
        self._watched: dict[int, int] = {}  # pidfd -> pid
        self._first_failure: float | None = None
        self._first_seen: float | None = None

    def run(self) -> None:
        while self.is_wanted():
            if len(self._ranks) < self._num_processes:
                self._find_ranks()
            self._wait()
            if self._first_failure is not None and time.monotonic() > self._first_failure + self._grace_s:
                for pid in self._watched.values():
                    for end in (os.killpg, os.kill):
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            end(pid, signal.SIGKILL)

    def ask_to_save(self) -> None:
        """Pass SIGUSR1 on to the ranks that handle it; it would end the others."""
        for pid in self._watched.copy().values():
            with contextlib.suppress(OSError, ValueError, StopIteration):
                status = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
                caught = int(next(line for line in status if line.startswith("SigCgt:")).split()[1], 16)
                if caught >> (signal.SIGUSR1 - 1) & 1:
                    os.kill(pid, signal.SIGUSR1)

    def is_wanted(self) -> bool:
        return len(self._ranks) < self._num_processes or bool(self._watched)

    def _find_ranks(self) -> None:
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) in self._ranks:
                continue
            with contextlib.suppress(OSError, ValueError, IndexError, KeyError):
                pid = int(entry)
                stat = Path(f"/proc/{pid}/stat").read_bytes()
                if int(stat.rpartition(b")")[2].split()[1]) != os.getpid():
                    continue
                if str(_WORKER).encode() not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    continue  # not executed yet
                rows = (row.partition(b"=") for row in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
                rank = int({name: value for name, _, value in rows}[b"RANK"])
                descriptor = os.pidfd_open(pid)
                self._ranks[pid] = rank
                self._watched[descriptor] = pid
                self._first_seen = self._first_seen or time.monotonic()

    def _wait(self) -> None:
        poll = select.poll()
        for descriptor in self._watched:
            poll.register(descriptor, select.POLLIN)
        missing = len(self._ranks) < self._num_processes
        closely = self._first_seen is None or time.monotonic() < self._first_seen + _LOOK_CLOSELY_FOR_S
        pause_s = _LOOK_S if missing and closely else _LOOK_LATER_S
        if self._first_failure is not None:
            pause_s = min(pause_s, 0.5)
        for descriptor, _ in poll.poll(pause_s * 1000):
            pid = self._watched.pop(descriptor)
            os.close(descriptor)
            self._note(pid)

    def _note(self, pid: int) -> None:
        death: dict[str, Any] = {"died_at_s": time.time()}
        with contextlib.suppress(ChildProcessError):  # the agent may have been quicker; then it knows the code
            status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is not None:
                exited = status.si_code == os.CLD_EXITED
                death["exit_code"] = status.si_status if exited else None
                death["signal"] = None if exited else status.si_status
        self.deaths[self._ranks[pid]] = death
        if death.get("exit_code") != 0 and self._first_failure is None:
            self._first_failure = time.monotonic()


def _report(error: BaseException, path: Path, deaths: DeathWatch) -> int:
    """Write failures.json and choose the exit code."""
    traceback.print_exception(type(error), error, error.__traceback__)
    name = type(error).__name__
    rows = []
    if name == "ChildFailedError":
        for rank, failure in error.failures.items():  # type: ignore[attr-defined]  # torch is not imported here
            code = failure.exitcode
            row = {"rank": rank, "exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None}
            seen = deaths.deaths.get(rank, {})
            rows.append({**row, "time_s": seen.get("died_at_s", float(failure.timestamp)), "pid": failure.pid})
    rows.sort(key=lambda row: (row["signal"] == signal.SIGTERM, row["time_s"]))
    before = sorted(rank for rank, death in deaths.deaths.items() if rows and _ended_well(death, rows[0]["time_s"]))
    engine_error = "" if rows else f"{name}: {error}"
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps({"failures": rows, "ended_before": before, "engine_error": engine_error}, indent=1))
    os.replace(temporary, path)
    if name == "SignalException":
        return 128 + int(error.sigval)  # type: ignore[attr-defined]  # torch's SignalException
    if not rows:
        return 1
    first = rows[0]
    return int(first["exit_code"] if first["signal"] is None else 128 + first["signal"])


def _ended_well(death: dict[str, Any], before_s: float) -> bool:
    return death.get("exit_code") == 0 and float(death["died_at_s"]) < before_s


if __name__ == "__main__":
    sys.exit(main())
