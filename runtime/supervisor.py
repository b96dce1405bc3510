"""Owns one job from its claim to its result: `python -I -m runtime.supervisor RUN_DIR`, detached from everybody.

Nothing of the job survives it: it adopts orphans, hunts the run's marker at the end, and a watchdog does so if it dies.
"""

import contextlib
import ctypes
import os
import select
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from .config.order import LaunchOrder, RankFailure, ResultState, RunResult
from .config.plan import TrainingPlan
from .env import current_environment
from .errors import ForerunError, LaunchError
from .interrupts import Interrupts
from .launchers.process import Child, start_child
from .layout import RunLayout
from .outcome import read_outcome, signal_name
from .procfs import alive
from .prologue import check_plan
from .pulse import Pulse
from .records import append_event
from .run_files import claim_run, read_cancel, read_order, write_model
from .undertaker import Undertaker

_PR_SET_CHILD_SUBREAPER = 36
_TICK_S = 0.2
_LEASE_GRACE_S = 5.0
_RESULT_TRIES_S = 60.0


def main() -> int:
    layout = RunLayout(Path(sys.argv[1]))
    interrupts = Interrupts(foreground=False)
    if not claim_run(layout):
        sys.stderr.write(f"{layout.root} has an owner already; nothing to do\n")
        return 0
    supervise(layout, interrupts)
    return 0


def supervise(layout: RunLayout, interrupts: Interrupts) -> RunResult:
    """Run the job of a claimed run directory to its end; returns what result.json then holds."""
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


@dataclass(frozen=True)
class _Ending:
    state: ResultState
    reason: str
    exit_code: int | None = None
    failures: tuple[RankFailure, ...] = ()


@dataclass(frozen=True)
class _Stop:
    """Why the job is to end before its time."""

    state: ResultState
    reason: str
    signal: int
    grace_s: float


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

    def supervise(self) -> RunResult:
        started_at_s = time.time()
        for folder in (self._layout.logs, self._layout.work, self._layout.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        self._pulse.beat()
        try:
            ending = self._prologue() or self._run()
        except Exception as error:  # whatever it is, the job must not stay behind
            traceback.print_exc()
            ending = _Ending("failed", f"the supervisor failed: {type(error).__name__}: {error}")
        self._pulse.phase = "stopping"
        self._signals += self._undertaker.clear_up(self._order.grace_s, self._pulse.beat)
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
        )
        self._event("job_ended", state=result.state, reason=result.reason)
        self._write(result)
        self._undertaker.dismiss_watchdog()
        return result

    def _prologue(self) -> _Ending | None:
        """Compare everything with the plan; None if the job may start. Heartbeats go on meanwhile."""
        if self._order.without_plan:
            if self._layout.plan.exists():
                return _Ending("failed", "the order says that there is no plan, but plan.json is there")
            return None
        found: list[TrainingPlan | Exception] = []
        check = threading.Thread(target=self._check, args=(found,), daemon=True)
        check.start()
        while check.is_alive():
            check.join(_TICK_S)
            self._pulse.beat()
            if stop := self._stop_wanted():
                return _Ending(stop.state, f"{stop.reason}; the job had not started")
        if isinstance(found[0], TrainingPlan):
            self._plan = found[0]
            return None
        if not isinstance(found[0], ForerunError):
            raise found[0]
        return _Ending("failed", f"not started: {found[0]}")

    def _check(self, found: list[TrainingPlan | Exception]) -> None:
        try:
            found.append(check_plan(self._layout, self._order))
        except Exception as error:  # handed over to the thread that supervises
            found.append(error)

    def _run(self) -> _Ending:
        spec = self._order.spec
        self._link_runtime()
        environment = {**self._base_environment(), **spec.environment}
        self._undertaker.start_watchdog()
        engine = start_child(
            spec.argv,
            environment=environment,
            working_directory=Path(spec.working_directory),
            log=self._layout.engine_log,
        )
        self._undertaker.own.add(engine.pid)
        self._pulse.start_clock()
        self._event("job_started", pid=engine.pid, argv=list(spec.argv))
        descriptor = os.pidfd_open(engine.pid)
        try:
            while (code := engine.poll()) is None:
                self._wait(_TICK_S, descriptor)
                self._pulse.beat()
                if stop := self._stop_wanted():
                    return self._stop(stop, engine, descriptor)
        finally:
            os.close(descriptor)
        outcome = read_outcome(self._layout, code)
        state: ResultState = "succeeded" if outcome.succeeded else "failed"
        return _Ending(state, outcome.reason, outcome.exit_code, outcome.failures)

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
            link.symlink_to(Path(__file__).resolve().parent)

    def _stop_wanted(self) -> _Stop | None:
        """The first reason to end the job now, if there is one."""
        order, grace_s = self._order, self._order.grace_s
        if number := self._interrupts.take():
            return _Stop(
                "cancelled", f"told to stop by {signal_name(number)}", self._interrupts.forwarded(number), grace_s
            )
        sigterm = self._interrupts.gentle
        with contextlib.suppress(ForerunError):  # a torn or foreign cancel.json is no request
            if cancel := read_cancel(self._layout):
                return _Stop("cancelled", f"cancelled: {cancel.reason}", sigterm, grace_s)
        if order.lease is not None and not alive(order.lease.pid, order.lease.start_ticks):
            gone = f"the server that held the lease (process {order.lease.pid}) is gone"
            return _Stop("cancelled", gone, sigterm, min(grace_s, _LEASE_GRACE_S))
        if self._pulse.elapsed_s > order.wall_time_s:
            return _Stop("stopped_at_limit", f"wall time limit of {order.wall_time_s:g} s reached", sigterm, grace_s)
        if self._pulse.disk_bytes > order.disk_bytes:
            used = f"{self._pulse.disk_bytes} bytes used of {order.disk_bytes}"
            return _Stop("stopped_at_limit", f"disk limit reached: {used}", sigterm, grace_s)
        return None

    def _stop(self, stop: _Stop, engine: Child, descriptor: int) -> _Ending:
        """Ask first (the engine passes it on to its ranks), then kill."""
        self._pulse.phase = "stopping"
        self._event("stop_requested", reason=stop.reason)
        engine.send(stop.signal)
        self._signals.append(signal_name(stop.signal))
        began = time.monotonic()
        while engine.poll() is None and time.monotonic() < began + stop.grace_s:
            self._wait(_TICK_S, descriptor)
            self._pulse.beat()
            if self._interrupts.insists():
                break
        waited_s = time.monotonic() - began
        if engine.poll() == 0:  # torchrun gives 0 only if every rank had finished by itself
            return _Ending("succeeded", f"every rank ended with exit 0 before this took effect: {stop.reason}", 0)
        if engine.poll() is not None:
            return _Ending(stop.state, f"{stop.reason}; ended on {signal_name(stop.signal)} after {waited_s:.1f} s")
        self._undertaker.kill_all()
        engine.wait(_LEASE_GRACE_S)
        self._signals.append(f"SIGKILL after {waited_s:.0f} s")
        return _Ending(stop.state, f"{stop.reason}; killed (SIGKILL) after {waited_s:.0f} s")

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
