"""What happens to a run once it exists: looking, waiting, cancelling, reading, diagnosing."""

import time
from dataclasses import dataclass

from runtime.config.plan import TrainingPlan
from runtime.run_files import leave_tombstone, read_claim
from tools.diagnose_failure import diagnose
from tools.domain.errors import InvalidInput, WrongStep
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.reports import Diagnosis, LogPage, RunProgress
from tools.domain.run_state import RunRecord
from tools.monitor_run import progress
from tools.read_logs import read_logs

from .workplace import Workplace, layout_of

_CANCEL_WAIT_S = 22.0
_POLL_S = 0.2
_STREAMS = ("stdout", "stderr", "engine")


@dataclass(frozen=True)
class Status:
    """What an id stands for, as it is now. `settled`: waiting longer changes nothing."""

    id: str
    state: str
    settled: bool
    plan: PlanRecord
    run: RunRecord | None = None
    progress: RunProgress | None = None
    request_id: str = ""


def status(place: Workplace, id_: str) -> Status:
    """The plan, request or run behind `id_`.

    Raises:
        InvalidInput: no id of ours.
        NotFound: nothing has this id.
    """
    if id_.startswith("run-"):
        run = place.run(id_)
        return Status(id_, run.state.value, run.ended, place.store.plan(run.plan_id), run, run_progress(place, run))
    if id_.startswith("req-"):
        request = place.store.request(id_)
        plan = place.plan(request.plan_id)
        newest = place.store.request_for_plan(request.plan_id)
        if newest is not None and newest.request_id != id_:
            return Status(id_, "replaced by " + newest.request_id, True, plan, request_id=id_)
        return Status(id_, plan.state.value, plan.state is not PlanState.REQUESTED, plan, request_id=id_)
    if id_.startswith("plan-"):
        plan = place.plan(id_)
        newest_run = next(iter(place.store.runs(limit=1, plan_id=id_)), None)
        open_run = newest_run if newest_run and not newest_run.ended else None
        waits = plan.state is PlanState.REQUESTED or open_run is not None
        measured = run_progress(place, open_run) if open_run else None
        return Status(id_, plan.state.value, not waits, plan, open_run, measured)
    raise InvalidInput(f"{id_!r} is no id", allowed="a plan-, req- or run- id", next_step="list_work shows the ids")


def run_progress(place: Workplace, run: RunRecord) -> RunProgress:
    """Step, loss, times of a run."""
    return progress(plan_of(place, run), run, layout_of(run), now_s=place.clock())


def plan_of(place: Workplace, run: RunRecord) -> TrainingPlan:
    """The settled plan that this run carries out."""
    plan = place.store.plan(run.plan_id).plan
    if plan is None:
        raise WrongStep(f"plan {run.plan_id} has no settled inputs", next_step="answer_questions")
    return plan


def wait(place: Workplace, id_: str, wait_s: float) -> Status:
    """The status, as soon as it is settled or `wait_s` is over. Blocks its thread."""
    deadline = time.monotonic() + wait_s
    while True:
        seen = status(place, id_)
        if seen.settled or time.monotonic() >= deadline:
            return seen
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
    place: Workplace, run_id: str, *, rank: int, cursor: str, pattern: str, max_lines: int, stream: str
) -> LogPage:
    """A page of one rank's log."""
    run = place.run(run_id)
    if stream not in _STREAMS:
        raise InvalidInput(f"stream {stream!r}", allowed=", ".join(_STREAMS), next_step="read_logs with one of these")
    num_processes = plan_of(place, run).layout.num_processes
    if not 0 <= rank < num_processes:
        raise InvalidInput(
            f"rank {rank} of a run with {num_processes} processes",
            allowed=f"0 to {num_processes - 1}",
            next_step="read_logs with one of these ranks",
        )
    return read_logs(
        layout_of(run), run_id=run_id, rank=rank, cursor=cursor, pattern=pattern, max_lines=max_lines, stream=stream
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
