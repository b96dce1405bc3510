"""Runs begin here: smoke_test, and launch_training for what a human approved."""

import os
import time
from dataclasses import dataclass, replace

from agent_server.approvals.policy.budgets import free_launches
from agent_server.approvals.policy.check import Rules, check_request, cost_limit, reservation, shares
from agent_server.approvals.policy.model import LEVELS
from runtime.config.order import CostLimit, Lease, RunKind
from runtime.config.plan import TrainingPlan
from runtime.env import current_environment
from runtime.errors import ForerunError, LaunchError
from runtime.launchers.process import boot_id, start_ticks
from runtime.run_files import leave_tombstone, read_claim
from runtime.snapshots.data_manifest import FOLDER
from runtime.snapshots.secret_values import secret_drift
from runtime.snapshots.snapshot import origin_drift
from runtime.snapshots.surroundings import module_drift, package_drift
from tools.domain.approval import Approval
from tools.domain.errors import InvalidInput, Refused, WrongStep
from tools.domain.ids import new_id
from tools.domain.plan_state import NEXT_TOOL, PlanRecord, PlanState, require_transition
from tools.domain.reports import SmokeResult
from tools.domain.run_state import RunRecord, RunState
from tools.inspect_environment import inspect_environment
from tools.launch_training import discard_run, prepare_run, write_environment
from tools.leftovers import mark_prepared
from tools.request_approval import launch_refusals, member_refusals

from .comparing import in_words
from .ruling import assessment, require_enforceable_cost, require_small_smoke_run, rules
from .workplace import Workplace, layout_of, require_plan

_CLAIM_POLL_S = 0.05
_NEEDS_APPROVAL = frozenset({PlanState.ESTIMATED, PlanState.REQUESTED, PlanState.REFUSED, PlanState.EXPIRED})


@dataclass(frozen=True)
class Started:
    """The run of a plan; `already` if an earlier call had started it; `left`: members of the sweep that have not."""

    run: RunRecord
    already: bool
    left: tuple[int, ...] = ()


@dataclass(frozen=True)
class ApprovalRequired:
    """Why a plan may not launch yet: an ordinary answer, nothing has failed."""

    record: PlanRecord
    request_id: str
    missing: tuple[str, ...]


def smoke_test(place: Workplace, plan_id: str) -> Started:
    """Start the smoke run of a valid plan, or find the one that was started before.

    Raises:
        WrongStep: open questions.
        LaunchError: no supervisor could be started.
    """
    record = place.plan(plan_id)
    require_plan(record, "the smoke test")
    earlier = place.run_of(plan_id, "smoke")
    if earlier and (not earlier.ended or record.state is not PlanState.VALID):
        return Started(earlier, already=True)
    require_transition(record, PlanState.SMOKED)
    if record.plan is not None:
        require_small_smoke_run(record.plan, rules(place))
    run = _prepare(place, record, "smoke", lease=_own_lease())
    kept = place.store.add_run(run)
    return _start(place, run, kept)


def launch_training(place: Workplace, plan_id: str, member: int | None = None) -> Started | ApprovalRequired:
    """Start the run that a human approved, once; every repeated call returns the same run.

    Args:
        member: of a sweep, which of the argument sets that the plan lists, the first being 1.

    Raises:
        InvalidInput: the plan lists no such run.
        WrongStep: the procedure is not that far.
        Refused: the approval does not cover what would run now; each reason is named.
        LaunchError: no supervisor could be started.
    """
    record = place.plan(plan_id)
    require_plan(record, "the training")
    request = place.store.request_for_plan(plan_id)
    approval = place.store.approval(request.request_id) if request else None
    _require_member(record, member)
    if approval and (used_by := approval.run_for(member)):
        return Started(place.run(used_by), already=True, left=_left(record, approval))
    if record.state is PlanState.LAUNCHED and member is None and (earlier := place.run_of(plan_id, "full")):
        return Started(earlier, already=True)  # it was in the free tier
    if record.state is PlanState.ESTIMATED and (free := _launch_free(place, record)):
        return free
    if record.state in _NEEDS_APPROVAL:
        missing = [
            f"no human has approved plan {plan_id}: it is {record.state.value}",
            *in_words(place.store, record),
        ]
        return ApprovalRequired(record, request.request_id if request else "", tuple(missing))
    going_on = record.state is PlanState.LAUNCHED and member is not None  # other runs of the sweep have started
    approved = record.state is PlanState.APPROVED or going_on
    if not approved or request is None or approval is None or record.plan is None:
        raise WrongStep(
            f"plan {plan_id} is {record.state.value}: a smoke run, an estimate and an approval come before the launch",
            next_step=NEXT_TOOL[record.state],
        )
    require_enforceable_cost(record, rules(place))
    drift = _drift(place, record.plan, record.smoke)
    enrolled = place.store.keys()
    key = next((k for k in enrolled if k.key_id == approval.decision.key_id), None)
    now = rules(place)
    checked = check_request(record, request, now)
    refusals = [
        *drift,
        *launch_refusals(record, request, approval, key, now_s=place.now_s(), required=checked.required, member=member),
        *checked.reasons,
        *_devices_since(place, record, now, approval),
    ]
    if refusals:
        raise Refused(
            f"plan {plan_id} may not launch: {'; '.join(refusals)}",
            allowed="exactly what was approved, unchanged, once, before it expires",
            next_step=f"put it back as it was, or validate_inputs with base_plan_id={plan_id} for what it is now"
            if drift
            else f"validate_inputs with base_plan_id={plan_id} and the runs that are left"
            if going_on
            else "request_approval",
        )
    cost = _cost_limit(record, now, request_id=request.request_id, member=member)
    run = _prepare(place, record, "full", lease=None, request_id=request.request_id, cost=cost, member=member)
    try:
        kept = place.store.consume_approval(request.request_id, run)
    except ForerunError:
        discard_run(layout_of(run))
        raise
    used = place.store.approval(request.request_id) or approval
    return replace(_start(place, run, kept), left=_left(record, used))


def _require_member(record: PlanRecord, member: int | None) -> None:
    """Raise InvalidInput unless the plan lists this run."""
    if problems := member_refusals(record.plan, member):
        num_runs = record.plan.num_runs if record.plan else 1
        raise InvalidInput(
            f"launch of plan {record.plan_id}: {'; '.join(problems)}",
            allowed=f"member 1 to {num_runs}" if num_runs > 1 else "no member: it is one run",
            next_step=f"launch_training(plan_id={record.plan_id}" + (", member=1)" if num_runs > 1 else ")"),
        )


def _left(record: PlanRecord, approval: Approval) -> tuple[int, ...]:
    """The members of the sweep that have not started."""
    num_runs = len(record.plan.sweep) if record.plan else 0
    return tuple(member for member in range(1, num_runs + 1) if approval.run_for(member) is None)


def _cost_limit(record: PlanRecord, now: Rules, *, request_id: str, member: int | None = None) -> CostLimit | None:
    """The most that this run may cost; the store compares the prices with those of the approval again."""
    whole = reservation(record, now, reservation_id=request_id, now_s=0.0, expires_at_s=0.0)
    return cost_limit(shares(whole, record.plan.num_runs if record.plan else 1)[(member or 1) - 1])


def _launch_free(place: Workplace, record: PlanRecord) -> Started | None:
    """The run without an approval, if the applied policy's free tier covers the plan as it is now."""
    now = rules(place)
    if now.policy.policy.free_tier is None or record.plan is None:
        return None
    today = free_launches(place.store.reservations(), now_s=place.now_s())
    found = assessment(record, now, survey=place.survey, free_today=today)
    if found.level is not None or _drift(place, record.plan, record.smoke):
        return None
    cost = _cost_limit(record, now, request_id="")
    run = _prepare(place, record, "full", lease=None, cost=cost)
    try:
        kept = place.store.launch_free(run, assessment=found)
    except ForerunError:
        discard_run(layout_of(run))
        raise
    return _start(place, run, kept)


def _devices_since(place: Workplace, record: PlanRecord, now: Rules, approval: Approval) -> list[str]:
    """Why the devices, as others use them by now, need a higher level than the decision has."""
    if now.mode == "simulated" or record.plan is None:
        return []
    found = assessment(record, now, survey=place.survey)
    if found.level is None or LEVELS.index(found.level) <= LEVELS.index(approval.decision.level):
        return []
    return [f"as the devices are used now it needs {found.level.value}: {found.device_words}"]


def _drift(place: Workplace, plan: TrainingPlan, smoke: SmokeResult | None) -> list[str]:
    """How what would run now differs from the plan and from what its smoke run loaded, each thing by name."""
    return [
        *origin_drift(plan, manifests=place.settings.snapshots_dir / FOLDER),
        *module_drift(smoke.outside_modules or () if smoke else ()),
        *package_drift(plan),
        *secret_drift(plan, current_environment(), place.settings.secret_key),
    ]


def _prepare(
    place: Workplace,
    record: PlanRecord,
    kind: RunKind,
    *,
    lease: Lease | None,
    request_id: str | None = None,
    cost: CostLimit | None = None,
    member: int | None = None,
) -> RunRecord:
    if record.plan is None or record.plan_digest is None:
        raise WrongStep(f"plan {record.plan_id} is not settled", next_step=NEXT_TOOL[record.state])
    run_id = new_id("run")
    directory = place.settings.runs_dir / run_id
    layout = prepare_run(
        record.plan,
        run_id=run_id,
        kind=kind,
        directory=directory,
        snapshots=place.settings.snapshots_dir,
        launcher=place.launchers(record.plan.layout.launcher),
        lease=lease,
        outside_modules=record.smoke.outside_modules if kind == "full" and record.smoke else None,
        secret_key=place.settings.secret_key,
        cost=cost,
        member=member,
    )
    if kind == "full":
        plan = record.plan
        seen = inspect_environment(python=plan.interpreter.executable, paths=[], environment=plan.environment)
        write_environment(layout, seen)
    return RunRecord(
        run_id=run_id,
        plan_id=record.plan_id,
        plan_digest=record.plan_digest,
        kind=kind,
        state=RunState.LAUNCHING,
        run_dir=str(directory),
        created_at_s=place.clock(),
        request_id=request_id,
        member=member,
    )


def _start(place: Workplace, run: RunRecord, kept: RunRecord) -> Started:
    """Submit the run if it is the one that the store kept; else it was prepared in vain."""
    if kept.run_id != run.run_id:
        discard_run(layout_of(run))
        return Started(place.reconciler.reconcile(kept), already=True)
    mark_prepared(layout_of(run).root)
    try:
        place.reconciler.submit(run)
    except (ForerunError, OSError) as error:
        if leave_tombstone(layout_of(run)):
            place.reconciler.reconcile(run)
            raise LaunchError(
                f"run {run.run_id} could not be started: {error}",
                next_step="diagnose_failure, then a new plan with base_plan_id",
            ) from error
    _await_claim(run, place.claim_wait_s)
    return Started(place.reconciler.reconcile(place.store.run(run.run_id)), already=False)


def _await_claim(run: RunRecord, wait_s: float) -> None:
    """A run without a claim after this is not an error: the reconciler asks again, and in the end gives up."""
    layout = layout_of(run)
    deadline = time.monotonic() + wait_s
    while read_claim(layout) is None and time.monotonic() < deadline:
        time.sleep(_CLAIM_POLL_S)


def _own_lease() -> Lease:
    ticks = start_ticks(os.getpid())
    if ticks is None:
        raise LaunchError("this process has no entry in /proc", allowed="Linux with /proc mounted")
    return Lease(pid=os.getpid(), start_ticks=ticks, boot_id=boot_id())
