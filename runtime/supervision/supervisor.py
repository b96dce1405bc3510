"""Owns one job from its claim to its result, detached: `python -I -m runtime.supervision.supervisor RUN_DIR`.

Nothing of the job survives it: it adopts orphans, hunts the run's marker at the end, and a watchdog does so if it dies.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ..checkpoint.manifest import is_complete
from ..config.order import LaunchOrder, ResultState, RunResult
from ..config.plan import TrainingPlan
from ..env import RESUME, current_environment
from ..errors import ForerunError, LaunchError
from ..launchers.process import Child, start_child
from ..launchers.registry import get_launcher
from ..layout import RunLayout
from ..procfs import alive, boot_id, catches
from ..records import append_event
from ..run_files import claim_run, read_cancel, read_heartbeat, read_order, take_over, write_model
from .endings import Ending, Stop
from .interrupts import Interrupts
from .limits import limit_reached, may_save
from .node_link import NodeLink
from .outcome import read_outcome, signal_name
from .preflight import find_place
from .prologue import check_plan
from .pulse import Pulse
from .restarts import last_checkpoint, mark_logs, put_aside, saved_since
from .undertaker import Undertaker

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.2
_LEASE_GRACE_S = 5.0
_RESULT_TRIES_S = 60.0
_SAVING_SHARE = 0.7  # of the grace time, for a checkpoint; then the ranks are asked to end in any case
_T = TypeVar("_T")


def main() -> int:
    layout = RunLayout(Path(sys.argv[1]))
    interrupts = Interrupts(foreground=False)
    if not claim_run(layout) and not take_over(layout):
        sys.stderr.write(f"{layout.root} has an owner already; nothing to do\n")
        return 0
    supervise(layout, interrupts)
    return 0


def supervise(layout: RunLayout, interrupts: Interrupts) -> RunResult | None:
    """Run the job of a claimed run directory to its end; returns what result.json then holds, None if it goes on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        order = read_order(layout)
        if order is None:
            raise LaunchError(f"{layout.launch} is missing", next_step="make the run anew from its plan")
    except ForerunError as error:
        now = time.time()
        result = RunResult(
            run_id=layout.root.name,
            state="failed",
            reason=str(error),
            exit_code=None,
            started_at_s=now,
            ended_at_s=now,
            elapsed_s=0.0,
            disk_bytes=0,
        )
        write_model(layout.result, result)
        return result
    return Supervisor(layout, order, interrupts).supervise()


class Supervisor:
    """One job: prologue, engine, limits, end."""

    def __init__(self, layout: RunLayout, order: LaunchOrder, interrupts: Interrupts) -> None:
        self._layout = layout
        self._order = order
        self._interrupts = interrupts
        self._undertaker = Undertaker(order.run_id)
        self._pulse = Pulse(layout, self._undertaker)
        self._plan: TrainingPlan | None = None
        self._signals: list[str] = []
        self._attempt = 1
        self._resume: Path | None = None
        self._nodes = None if order.nodes is None else NodeLink(order.nodes)
        self._over = False

    def supervise(self) -> RunResult | None:
        started_at_s = time.time()
        before = read_heartbeat(self._layout)  # of a supervisor in the same batch job, which was started anew
        for folder in (self._layout.logs, self._layout.work, self._layout.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        if before is not None:
            self._attempt, self._pulse.before_s = before.attempt, before.elapsed_s
            self._pulse.attempt = before.attempt
        self._pulse.beat()
        try:
            ending = self._attempts(anew=before is not None)
        except Exception as error:  # whatever it is, the job must not stay behind
            traceback.print_exc()
            ending = Ending("failed", f"the supervisor failed: {type(error).__name__}: {error}")
        self._pulse.phase = "stopping"
        self._signals += self._undertaker.clear_up(self._order.grace_s, self._pulse.beat)
        if ending.may_requeue and self._requeue(ending):
            return None
        self._pulse.measure_disk()
        result = RunResult(
            run_id=self._order.run_id,
            state=ending.state,
            reason=ending.reason,
            exit_code=ending.exit_code,
            started_at_s=self._pulse.started_at_s or started_at_s,
            ended_at_s=time.time(),
            elapsed_s=self._pulse.elapsed_s,
            disk_bytes=self._pulse.disk_bytes,
            peak_memory_bytes=self._pulse.peak_memory_bytes,
            failures=ending.failures,
            signals_sent=tuple(self._signals),
            survivors=self._undertaker.survivors,
            attempts=self._attempt,
        )
        self._event("job_ended", state=result.state, reason=result.reason)
        self._write(result)
        self._undertaker.dismiss_watchdog()
        return result

    def _attempts(self, *, anew: bool) -> Ending:
        """The job, and again while it fails and restarts are left; `anew`: it was started by another one before."""
        first = Ending("failed", "put back into the queue, or lost with its machine", may_restart=True)
        ending = first if anew else self._prologue() or self._meet() or self._run()
        while ending.may_restart and self._attempt <= self._order.max_restarts:
            ending = self._between(ending) or self._prologue() or self._meet() or self._run()
        if ending.may_restart and self._attempt > 1:
            return replace(ending, reason=f"{ending.reason} (attempt {self._attempt}, the last)")
        return ending

    def _between(self, failed: Ending) -> Ending | None:
        """Clear up after an attempt that failed and make ready for the next; None if it may start."""
        self._event("attempt_ended", attempt=self._attempt, reason=failed.reason, exit_code=failed.exit_code)
        self._pulse.phase = "stopping"
        self._signals += self._undertaker.clear_up(self._order.grace_s, self._pulse.beat)
        if self._undertaker.survivors:
            return replace(failed, reason=f"{failed.reason}; not restarted: processes are left", may_restart=False)
        put_aside(self._layout, self._attempt)
        follows = self._order.nodes is not None and self._order.nodes.rank > 0
        found = None if follows else self._beating(lambda: last_checkpoint(self._layout))
        if isinstance(found, Stop):
            return Ending(found.state, f"{found.reason}; attempt {self._attempt + 1} had not started")
        self._attempt, self._resume = self._attempt + 1, found
        self._pulse.attempt = self._attempt
        place = "where node 0 says" if follows else "the beginning" if found is None else str(found)
        self._event("attempt_started", attempt=self._attempt, resume_from=None if found is None else place)
        mark_logs(
            self._layout,
            f"forerun: attempt {self._attempt} of at most {self._order.max_restarts + 1}, from {place}; "
            f"attempt {self._attempt - 1} ended: {failed.reason.splitlines()[0][:300]}",
        )
        return None

    def _prologue(self) -> Ending | None:
        """Compare everything with the plan; None if the job may start. Heartbeats go on meanwhile."""
        if self._order.without_plan:
            if self._layout.plan.exists():
                return Ending("failed", "the order says that there is no plan, but plan.json is there")
            return None
        try:
            plan = self._beating(lambda: check_plan(self._layout, self._order))
        except ForerunError as error:
            return Ending("failed", f"not started: {error}")
        if isinstance(plan, Stop):
            return Ending(plan.state, f"{plan.reason}; the job had not started")
        self._plan = plan
        return None

    def _meet(self) -> Ending | None:
        """Wait for the other nodes, if there are any; node 0 says from where all go on."""
        nodes, order = self._nodes, self._order.nodes
        if nodes is None or order is None:
            return None
        resume = None if self._resume is None else str(self._resume)
        try:
            address = find_place(order).address
            found = self._beating(
                lambda: nodes.meet(address, attempt=self._attempt, resume=resume, going=lambda: not self._over)
            )
        except ForerunError as error:
            return Ending("failed", f"not started: {error}")
        if isinstance(found, Stop):
            self._over = True
            return Ending(found.state, f"{found.reason}; the job had not started")
        self._resume = None if found is None else Path(found)
        if self._resume is not None and not is_complete(self._resume):
            return Ending("failed", f"not started: node 0 goes on from {found}, which this machine does not see")
        return None

    def _beating(self, work: Callable[[], _T]) -> _T | Stop:
        """Do something that takes long; heartbeats go on, and a reason to stop ends the waiting."""
        results: list[_T] = []
        errors: list[Exception] = []

        def do() -> None:
            try:
                results.append(work())
            except Exception as error:  # handed over to the thread that supervises
                errors.append(error)

        thread = threading.Thread(target=do, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_TICK_S)
            self._pulse.beat()
            if stop := self._stop_wanted():
                return stop
        if errors:
            raise errors[0]
        return results[0]

    def _run(self) -> Ending:
        spec = self._order.spec
        self._link_runtime()
        passed = {name: value for name, value in current_environment().items() if name.startswith(spec.passes)}
        environment = {**passed, **self._base_environment(), **spec.environment}
        environment.pop(RESUME, None)
        if self._resume is not None:
            environment[RESUME] = str(self._resume)
        self._undertaker.start_watchdog()
        engine = start_child(
            spec.argv,
            environment=environment,
            working_directory=Path(spec.working_directory),
            log=self._layout.engine_log,
        )
        self._undertaker.own.add(engine.pid)
        self._pulse.start_clock()
        self._event("job_started", pid=engine.pid, argv=list(spec.argv), attempt=self._attempt)
        descriptor = os.pidfd_open(engine.pid)
        try:
            while (code := engine.poll()) is None:
                self._wait(_TICK_S, descriptor)
                self._pulse.beat()
                if stop := self._stop_wanted() or self._other_nodes():
                    return self._stop(stop, engine, descriptor)
        finally:
            os.close(descriptor)
        outcome = read_outcome(self._layout, code)
        state: ResultState = "succeeded" if outcome.succeeded else "failed"
        if self._nodes is not None:
            self._nodes.tell(state, outcome.reason)
        return Ending(state, outcome.reason, outcome.exit_code, outcome.failures, may_restart=state == "failed")

    def _requeue(self, ending: Ending) -> bool:
        """Whether the batch system, which wanted the machine, will start the run again; then there is no result yet."""
        if self._plan is None or self._attempt > self._order.max_restarts or self._undertaker.survivors:
            return False
        self._event("requeued", attempt=self._attempt, reason=ending.reason)
        self._pulse.beat_now()
        self._undertaker.dismiss_watchdog()
        try:
            return get_launcher(self._plan.layout.launcher).requeue(self._layout)
        except ForerunError:
            return False

    def _base_environment(self) -> dict[str, str]:
        if self._plan is None:
            return current_environment()
        mine = current_environment()
        missing = [name for name in self._plan.inherited if name not in mine]
        if missing:
            raise LaunchError(
                f"the plan passes on {', '.join(missing)}, which the supervisor does not have",
                next_step="set it for the server and launch again, or plan without it",
            )
        return {**self._plan.environment, **{name: mine[name] for name in self._plan.inherited}}

    def _link_runtime(self) -> None:
        self._layout.python_path.mkdir(exist_ok=True)
        link = self._layout.python_path / "runtime"
        with contextlib.suppress(FileExistsError):
            link.symlink_to(Path(__file__).resolve().parents[1])

    def _stop_wanted(self) -> Stop | None:
        """The first reason to end the job now, if there is one."""
        order, grace_s = self._order, self._order.grace_s
        if number := self._interrupts.take():
            said, forwarded = f"told to stop by {signal_name(number)}", self._interrupts.forwarded(number)
            gentle = number != signal.SIGINT
            return Stop("cancelled", said, forwarded, grace_s, may_save=gentle, may_requeue=gentle)
        sigterm = self._interrupts.gentle
        with contextlib.suppress(ForerunError):  # a torn or foreign cancel.json is no request
            if cancel := read_cancel(self._layout):
                return Stop("cancelled", f"cancelled: {cancel.reason}", sigterm, grace_s)
        lease_is_near = order.lease is not None and order.lease.boot_id in ("", boot_id())
        if order.lease is not None and lease_is_near and not alive(order.lease.pid, order.lease.start_ticks):
            gone = f"the server that held the lease (process {order.lease.pid}) is gone"
            return Stop("cancelled", gone, sigterm, min(grace_s, _LEASE_GRACE_S))
        if limit := limit_reached(order, elapsed_s=self._pulse.elapsed_s, disk_bytes=self._pulse.disk_bytes):
            return Stop("stopped_at_limit", limit, sigterm, grace_s, may_save=may_save(limit))
        return None

    def _other_nodes(self) -> Stop | None:
        """What another node says of the job, if it ends it."""
        word = None if self._nodes is None else self._nodes.word()
        if word is None:
            return None
        reason, sigterm = f"node {word.node}: {word.reason}", self._interrupts.gentle
        if word.state in ("cancelled", "stopped_at_limit"):
            state: ResultState = "cancelled" if word.state == "cancelled" else "stopped_at_limit"
            return Stop(state, reason, sigterm, self._order.grace_s, may_save=True, node=word.node)
        return Stop("failed", reason, sigterm, min(self._order.grace_s, _LEASE_GRACE_S), node=word.node)

    def _stop(self, stop: Stop, engine: Child, descriptor: int) -> Ending:
        """Ask first (the engine passes it on to its ranks), then kill."""
        self._pulse.phase = "stopping"
        self._event("stop_requested", reason=stop.reason)
        if self._nodes is not None:
            self._nodes.tell(stop.state, stop.reason, of=stop.node)
        began, began_s = time.monotonic(), time.time()
        last = signal.SIGUSR1 if stop.may_save and self._asks_to_save(engine) else stop.signal
        engine.send(last)
        self._signals.append(signal_name(last))
        if last == signal.SIGUSR1 and not self._ends_by(began + _SAVING_SHARE * stop.grace_s, engine, descriptor):
            last = stop.signal
            engine.send(last)
            self._signals.append(signal_name(last))
        self._ends_by(began + stop.grace_s, engine, descriptor)
        waited_s = time.monotonic() - began
        if engine.poll() == 0:  # torchrun gives 0 only if every rank had finished by itself
            return Ending("succeeded", f"every rank ended with exit 0 before this took effect: {stop.reason}", 0)
        reason = "; ".join([stop.reason, *saved_since(self._layout, began_s)])
        failed = stop.state == "failed"
        if engine.poll() is not None:
            how = f"ended on {signal_name(last)} after {waited_s:.1f} s"
            return Ending(stop.state, f"{reason}; {how}", may_restart=failed, may_requeue=stop.may_requeue)
        self._undertaker.kill_all()
        engine.wait(_LEASE_GRACE_S)
        self._signals.append(f"SIGKILL after {waited_s:.0f} s")
        return Ending(
            stop.state,
            f"{reason}; killed (SIGKILL) after {waited_s:.0f} s",
            may_restart=failed,
            may_requeue=stop.may_requeue,
        )

    def _asks_to_save(self, engine: Child) -> bool:
        """Whether SIGUSR1 reaches a rank that handles it: it would end what does not, and nothing would be saved."""
        ranks = self._undertaker.job_pids() - {engine.pid}
        return catches(engine.pid, signal.SIGUSR1) and any(catches(pid, signal.SIGUSR1) for pid in ranks)

    def _ends_by(self, end: float, engine: Child, descriptor: int) -> bool:
        """Wait until the engine ends, or this moment comes, or somebody insists; whether it has ended."""
        while engine.poll() is None and time.monotonic() < end:
            self._wait(_TICK_S, descriptor)
            self._pulse.beat()
            if self._interrupts.insists():
                break
        return engine.poll() is not None

    def _wait(self, timeout_s: float, engine: int) -> None:
        poll = select.poll()
        poll.register(engine, select.POLLIN)
        poll.register(self._interrupts.fileno(), select.POLLIN)
        poll.poll(timeout_s * 1000)
        self._interrupts.drain()

    def _event(self, event: str, **details: object) -> None:
        with contextlib.suppress(OSError):
            append_event(self._layout.events, event, rank=None, **details)

    def _write(self, result: RunResult) -> None:
        """The last word; a full disk gets a minute to become less full."""
        end = time.monotonic() + _RESULT_TRIES_S
        while True:
            try:
                write_model(self._layout.result, result)
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                self._interrupts.pause(1.0)


if __name__ == "__main__":
    sys.exit(main())
