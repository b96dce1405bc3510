"""What happens to a run once it exists: looking, waiting, cancelling, reading, diagnosing."""

import time
from dataclasses import dataclass, replace

from runtime.config.plan import MOST_SWEEP_RUNS, TrainingPlan
from runtime.run_files import leave_tombstone, read_claim
from tools.diagnose_failure import diagnose
from tools.domain.errors import InvalidInput, WrongStep
from tools.domain.ids import require_id
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.reports import Diagnosis, LogPage, RunProgress
from tools.domain.run_state import RunRecord
from tools.monitor_run import progress
from tools.read_logs import Stream, read_logs

from .spending import spent_on
from .workplace import Workplace, layout_of

_CANCEL_WAIT_S = 22.0
_POLL_S = 0.2


@dataclass(frozen=True)
class Status:
    """What an id stands for, as it is now. `settled`: waiting longer changes nothing."""

    id: str
    state: str
    settled: bool
    plan: PlanRecord
    run: RunRecord | None = None
    progress: RunProgress | None = None


def status(place: Workplace, id_: str) -> Status:
    """The plan, request or run behind `id_`, with the progress of the run if one is going on.

    Raises:
        InvalidInput: no id of ours.
        NotFound: nothing has this id.
    """
    found = look(place, id_)
    return found if found.run is None else replace(found, progress=run_progress(place, found.run))


def look(place: Workplace, id_: str) -> Status:
    """status without reading metrics: quick enough to be asked again and again."""
    if id_.startswith("run-"):
        run = place.run(id_)
        return Status(id_, run.state.value, run.ended, place.store.plan(run.plan_id), run)
    if id_.startswith("req-"):
        request = place.store.request(require_id(id_, "req"))
        plan = place.plan(request.plan_id)
        newest = place.store.request_for_plan(request.plan_id)
        if newest is not None and newest.request_id != id_:
            return Status(id_, f"replaced by {newest.request_id}", True, plan)
        return Status(id_, plan.state.value, plan.state is not PlanState.REQUESTED, plan)
    if id_.startswith("plan-"):
        plan = place.plan(id_)
        going_on = next(
            (run for run in place.store.runs(limit=MOST_SWEEP_RUNS + 5, plan_id=id_) if not run.ended), None
        )
        return Status(id_, plan.state.value, plan.state is not PlanState.REQUESTED and going_on is None, plan, going_on)
    raise InvalidInput(
        f"{id_!r} is no id",
        allowed="a plan-, req- or run- id",
        next_step="list_work, `forerun approvals` or `forerun runs` shows the ids",
    )


def run_progress(place: Workplace, run: RunRecord) -> RunProgress:
    """Step, loss, times of a run, and what it has cost."""
    found = progress(plan_of(place, run), run, layout_of(run), now_s=place.clock())
    spent = spent_on(place.store, [run], now_s=place.now_s())[run.run_id]
    if spent.cost is None:
        return found
    return found.model_copy(update={"spent_cost": float(spent.cost), "currency": spent.currency})


def plan_of(place: Workplace, run: RunRecord) -> TrainingPlan:
    """The settled plan that this run carries out; of a sweep, with the arguments of this run."""
    plan = place.store.plan(run.plan_id).plan
    if plan is None:
        raise WrongStep(f"plan {run.plan_id} has no settled inputs", next_step="answer_questions")
    return plan.of_member(run.member)


def wait(place: Workplace, id_: str, wait_s: float) -> Status:
    """The status, as soon as it is settled or `wait_s` is over. Blocks its thread."""
    deadline = time.monotonic() + wait_s
    while True:
        if look(place, id_).settled or time.monotonic() >= deadline:
            return status(place, id_)
        time.sleep(_POLL_S)


def cancel(place: Workplace, run_id: str, actor: str, *, wait_s: float = _CANCEL_WAIT_S) -> RunRecord:
    """Stop a run and wait, within bounds, until its processes are gone. An ended run stays as it is."""
    run = place.run(run_id)
    if run.ended:
        return run
    layout = layout_of(run)
    place.store.append_audit(actor=actor, event="cancel_requested", subject=run_id, details={"state": run.state.value})
    place.launchers(plan_of(place, run).layout.launcher).cancel(layout, reason=f"cancelled by {actor}")
    if read_claim(layout) is None:
        leave_tombstone(layout)  # no supervisor may take a run that nobody wants any more
    return wait(place, run_id, wait_s).run or run


def logs(
    place: Workplace, run_id: str, *, rank: int, cursor: str, pattern: str, max_lines: int, stream: Stream
) -> LogPage:
    """A page of one rank's log."""
    return read_logs(
        layout_of(place.run(run_id)),
        run_id=run_id,
        rank=rank,
        cursor=cursor,
        pattern=pattern,
        max_lines=max_lines,
        stream=stream,
    )


def diagnosis(place: Workplace, run_id: str) -> Diagnosis:
    """Why a run ended as it did.

    Raises:
        WrongStep: the run goes on.
    """
    run = place.run(run_id)
    if not run.ended:
        raise WrongStep(
            f"run {run_id} is {run.state.value}; there is nothing to diagnose yet",
            allowed="a run that has ended",
            next_step=f"monitor_run(id={run_id}, wait_s=25)",
        )
    return diagnose(run, layout_of(run))
