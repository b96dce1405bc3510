"""Run directories -> store. Idempotent: every pass may be the first, the last, or one of two at once."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from runtime.config.order import RunResult
from runtime.errors import ForerunError, RecordError
from runtime.launchers.base import Launcher
from runtime.launchers.process import kill_marked
from runtime.layout import RunLayout
from runtime.records import append_event, read_events
from runtime.run_files import is_lost, leave_tombstone, read_claim, read_heartbeat, read_result
from tools.domain.errors import Conflict
from tools.domain.plan_state import PlanRecord, PlanState, require_transition
from tools.domain.ports import PastEstimate, Store
from tools.domain.run_state import RunRecord, RunState, require_run_transition
from tools.probe import checkpoint_problem
from tools.smoke_test import judge_smoke

_log = logging.getLogger("forerun")

_SUBMIT_AGAIN_AFTER_S = 15.0
_GIVE_UP_AFTER_S = 120.0
_KILL_DEADLINE_S = 5.0
_AFTER_SMOKE = {"passed": PlanState.SMOKED, "not_shown": PlanState.NOT_SHOWN, "failed": PlanState.VALID}


class Reconciler:
    """Carries what the files say into the store."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        *,
        launchers: Callable[[str], Launcher],
    ) -> None:
        self._store = store
        self._clock = clock
        self._launchers = launchers
        self._lock = threading.Lock()
        self._being_read: set[str] = set()

    def reconcile_all(self) -> None:
        """Every run that is not over, and every request that may have expired. One bad run does not hide the others."""
        for run in self._store.open_runs():
            try:
                self.reconcile(run)
            except (ForerunError, OSError) as error:
                _log.warning("run %s cannot be reconciled: %s", run.run_id, error)
        for plan in self._store.open_plans():
            self.expire(plan)

    def reconcile(self, run: RunRecord) -> RunRecord:
        """The run as its directory shows it now, saved if that is news."""
        if run.ended and not (run.state is RunState.LOST and run.result is None):
            return run
        with self._lock:
            if run.run_id in self._being_read:
                return run  # another thread is at it: judging a smoke run may take a while
            self._being_read.add(run.run_id)
        try:
            return self._reconcile(run)
        finally:
            with self._lock:
                self._being_read.discard(run.run_id)

    def _reconcile(self, run: RunRecord) -> RunRecord:
        layout = RunLayout(Path(run.run_dir))
        result = read_result(layout)
        if result is not None:
            return self._ended(run, layout, result)
        if run.state is RunState.LOST:
            return run
        claim = read_claim(layout)
        if claim is None:
            return self._unclaimed(run, layout)
        if claim.owner == "tombstone":
            return self._never_started(run, layout)
        if is_lost(layout, now_s=self._clock()) and not self._is_scheduled(run, layout):
            return self._lost(run, layout)
        if run.state is RunState.LAUNCHING:
            return self._save(run, RunState.RUNNING, reason="")
        return run

    def submit(self, run: RunRecord) -> None:
        """Ask the launcher for a supervisor. Doing it twice is safe: the one that claims the run first owns it."""
        layout = RunLayout(Path(run.run_dir))
        append_event(layout.events, "submitted")
        self._launchers(self._launcher_name(run)).submit(layout)

    def expire(self, record: PlanRecord) -> PlanRecord:
        """The plan, as `expired` if its request was not decided or not used in time."""
        if record.state not in (PlanState.REQUESTED, PlanState.APPROVED):
            return record
        request = self._store.request_for_plan(record.plan_id)
        if request is None or max(self._clock(), self._store.latest_time_s()) < request.expires_at_s:
            return record
        expired = record.model_copy(update={"state": PlanState.EXPIRED})
        return self._save_plan(expired, expect=record.state)

    # -- what the files can say ------------------------------------------------------------------------------------

    def _ended(self, run: RunRecord, layout: RunLayout, result: RunResult) -> RunRecord:
        # The plan and the measured values first: a crash in between leaves the run open, and the next pass repeats.
        ended = run.model_copy(update={"state": RunState(result.state), "result": result, "reason": result.reason})
        if run.kind == "smoke":
            if result.state != "cancelled":  # one that was called off is no evidence of anything
                self._judge(ended, layout)
        elif result.state == "succeeded":
            self._measure(ended, result)
        require_run_transition(run, ended.state)
        return self._store_run(ended, expect=run.state)

    def _judge(self, run: RunRecord, layout: RunLayout) -> None:
        record = self._store.plan(run.plan_id)
        judged = record.smoke is not None and record.smoke.run_id == run.run_id
        if judged or record.plan is None or record.plan_digest is None:
            return
        interpreter, environment = record.plan.interpreter.executable, record.plan.environment
        smoke = judge_smoke(
            record.plan,
            plan_digest=record.plan_digest,
            run=run,
            layout=layout,
            check_checkpoint=lambda path: checkpoint_problem(interpreter, path, environment=environment),
        )
        state = _AFTER_SMOKE[smoke.verdict]
        if state is not record.state:
            require_transition(record, state)
        self._save_plan(record.model_copy(update={"state": state, "smoke": smoke}), expect=record.state)

    def _measure(self, run: RunRecord, result: RunResult) -> None:
        estimate = self._store.plan(run.plan_id).estimate
        if estimate is not None:
            past = PastEstimate(estimate, result.elapsed_s, result.peak_memory_bytes)
            self._store.add_actual(past, run_id=run.run_id)

    def _unclaimed(self, run: RunRecord, layout: RunLayout) -> RunRecord:
        """No supervisor has claimed the run: ask for one again, and in the end give up for good."""
        if self._is_scheduled(run, layout):
            return run
        if not layout.launch.exists():
            return self._save(run, RunState.FAILED, reason="the run directory is gone or was never complete")
        if self._clock() - run.created_at_s > _GIVE_UP_AFTER_S:
            if leave_tombstone(layout):
                return self._never_started(run, layout)
            return run
        submitted = [event.time_s for event in read_events(layout.events) if event.event == "submitted"]
        if not submitted or self._clock() - submitted[-1] > _SUBMIT_AGAIN_AFTER_S:
            self.submit(run)
        return run

    def _is_scheduled(self, run: RunRecord, layout: RunLayout) -> bool:
        """Whether a batch system has the run in its queue, or on a machine, and will start a supervisor for it."""
        scheduled = self._launchers(self._launcher_name(run)).poll(layout)
        return scheduled is not None and scheduled.phase != "ended"

    def _never_started(self, run: RunRecord, layout: RunLayout) -> RunRecord:
        if layout.cancel.exists():
            return self._save(run, RunState.CANCELLED, reason="cancelled before any process started", elapsed_s=0.0)
        reason = "no supervisor took the run; no process of it was started"
        return self._save(run, RunState.FAILED, reason=reason, elapsed_s=0.0)

    def _lost(self, run: RunRecord, layout: RunLayout) -> RunRecord:
        survivors = kill_marked(run.run_id, deadline_s=_KILL_DEADLINE_S)
        result = read_result(layout)
        if result is not None:
            return self._ended(run, layout, result)
        reason = "the supervisor is gone without a result (killed, or the machine restarted)"
        if survivors:
            reason += f"; processes that could not be ended: {', '.join(map(str, survivors))}"
        return self._save(run, RunState.LOST, reason=reason, elapsed_s=_last_seen_s(layout))

    # -- the store -------------------------------------------------------------------------------------------------

    def _launcher_name(self, run: RunRecord) -> str:
        plan = self._store.plan(run.plan_id).plan
        if plan is None:
            raise Conflict(f"run {run.run_id} belongs to plan {run.plan_id}, which has no settled inputs")
        return plan.layout.launcher

    def _save(self, run: RunRecord, state: RunState, *, reason: str, elapsed_s: float | None = None) -> RunRecord:
        require_run_transition(run, state)
        saved = run.model_copy(update={"state": state, "reason": reason})
        return self._store_run(saved, expect=run.state, elapsed_s=elapsed_s)

    def _store_run(self, run: RunRecord, *, expect: RunState, elapsed_s: float | None = None) -> RunRecord:
        try:
            self._store.save_run(run, expect=expect, elapsed_s=elapsed_s)
        except Conflict:
            return self._store.run(run.run_id)  # another pass saw the same files first
        return run

    def _save_plan(self, record: PlanRecord, *, expect: PlanState) -> PlanRecord:
        try:
            self._store.save_plan(record, expect=expect)
        except Conflict:
            return self._store.plan(record.plan_id)
        return record


def _last_seen_s(layout: RunLayout) -> float | None:
    """How long the job ran until its last heartbeat; None if there was none."""
    try:
        heartbeat = read_heartbeat(layout)
    except RecordError:
        return None
    return heartbeat.elapsed_s if heartbeat else None
