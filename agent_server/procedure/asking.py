"""Before anything costs: the estimate, and the request that a human decides."""

from dataclasses import dataclass

from agent_server.approvals.policy.in_force import PricesInForce, prices_in_force
from agent_server.approvals.request import approve_command
from tools.domain.approval import ApprovalRequest
from tools.domain.errors import Conflict, WrongStep
from tools.domain.plan_state import PlanRecord, PlanState, require_transition
from tools.domain.reports import CostEstimate
from tools.domain.run_state import RunRecord
from tools.estimate_cost import estimate_cost
from tools.request_approval import build_request

from .comparing import against_base
from .ruling import assessment, estimate_is_current, require_enforceable_cost, rules
from .workplace import Workplace, layout_of, require_plan


@dataclass(frozen=True)
class Asked:
    """An open request, and what the human types; `repeated` if an earlier call had made it.

    `changes`: against the plan that it was made from; None if there is none.
    """

    request: ApprovalRequest
    repeated: bool
    command: str
    wait_command: str
    changes: tuple[str, ...] | None = None


def estimate(place: Workplace, plan_id: str) -> CostEstimate:
    """Time, memory and cost of the full run, from the smoke run; kept with the plan.

    Raises:
        WrongStep: no smoke run has shown anything yet.
    """
    record = place.plan(plan_id)
    require_plan(record, "the estimate")
    prices = prices_in_force(place.store, now_s=place.now_s())
    if record.state in _AFTER_ESTIMATE and record.estimate is not None and not _to_be_renewed(record, prices):
        return record.estimate  # what was shown to a human stays what it was
    if record.plan is None or record.plan_digest is None or record.smoke is None or record.state is PlanState.VALID:
        raise _smoke_first(place, record)
    renewed = record.state in _CLOSED
    if not renewed:
        require_transition(record, PlanState.ESTIMATED)
    found = estimate_cost(
        record.plan,
        plan_digest=record.plan_digest,
        smoke=record.smoke,
        layout=layout_of(place.store.run(record.smoke.run_id)),
        past=place.store.past_estimates(),
        prices=prices.prices,
    )
    found = found.model_copy(update={"unknowns": (*found.unknowns, *(f"cost: {note}" for note in prices.notes))})
    state = record.state if renewed else PlanState.ESTIMATED
    estimated = record.model_copy(update={"state": state, "estimate": found})
    place.store.save_plan(estimated, expect=record.state)
    return found


def request_approval(place: Workplace, plan_id: str, reason: str) -> Asked:
    """Ask for a human's approval; while a request is open the same one comes back.

    Raises:
        WrongStep: no estimate yet, or the plan is decided.
    """
    record = place.plan(plan_id)
    require_plan(record, "the request")
    open_request = _open_request(place, record)
    if open_request is not None:
        return _asked(place, open_request, repeated=True)
    if record.state is PlanState.VALID:
        raise _smoke_first(place, record)
    require_transition(record, PlanState.REQUESTED)
    now = rules(place)
    _require_current_estimate(record, now.prices)
    require_enforceable_cost(record, now)
    request = build_request(
        record,
        store=place.store.identity,
        reason=reason,
        policy_version=now.policy.version,
        now_s=place.now_s(),
        ttl_s=min(policy.requests.expire_after_s for policy in (now.policy.policy, now.policy.floor) if policy),
        assessment=assessment(record, now, survey=place.survey),
    )
    try:
        place.store.add_request(request, plan=record.model_copy(update={"state": PlanState.REQUESTED}))
    except Conflict:
        open_request = _open_request(place, place.plan(plan_id))
        if open_request is None:
            raise
        return _asked(place, open_request, repeated=True)
    return _asked(place, request, repeated=False)


_AFTER_ESTIMATE = frozenset(
    {PlanState.REQUESTED, PlanState.APPROVED, PlanState.REFUSED, PlanState.EXPIRED, PlanState.LAUNCHED}
)


_CLOSED = frozenset({PlanState.REFUSED, PlanState.EXPIRED})


def _to_be_renewed(record: PlanRecord, prices: PricesInForce) -> bool:
    """No request is open, and the prices are others than those of the estimate."""
    if record.state not in _CLOSED or record.plan is None or record.estimate is None:
        return False
    return not estimate_is_current(record.estimate, record.plan.layout, prices.prices)


def _require_current_estimate(record: PlanRecord, prices: PricesInForce) -> None:
    if record.plan is None or record.estimate is None:
        return
    if not estimate_is_current(record.estimate, record.plan.layout, prices.prices):
        raise WrongStep(
            f"the estimate of plan {record.plan_id} was made under other prices than those that count now "
            f"({prices.version or 'none'})",
            next_step=f"estimate_cost(plan_id={record.plan_id}), then request_approval",
        )


def _asked(place: Workplace, request: ApprovalRequest, *, repeated: bool) -> Asked:
    command = approve_command(place.settings, request.request_id)
    wait_command = approve_command(place.settings, request.request_id, verb="wait")
    changes = against_base(place.store, place.store.plan(request.plan_id))
    return Asked(request, repeated, command, wait_command, changes)


def _open_request(place: Workplace, record: PlanRecord) -> ApprovalRequest | None:
    if record.state not in (PlanState.REQUESTED, PlanState.APPROVED):
        return None
    return place.store.request_for_plan(record.plan_id)


def _smoke_first(place: Workplace, record: PlanRecord) -> WrongStep:
    run: RunRecord | None = place.run_of(record.plan_id, "smoke")
    if run is None:
        return WrongStep(
            f"plan {record.plan_id} has had no smoke run", next_step=f"smoke_test(plan_id={record.plan_id})"
        )
    if not run.ended:
        return WrongStep(
            f"the smoke run {run.run_id} of plan {record.plan_id} is {run.state.value}",
            next_step=f"monitor_run(id={run.run_id}, wait_s=25)",
        )
    if record.smoke is None or record.smoke.run_id != run.run_id:
        return WrongStep(
            f"the smoke run {run.run_id} of plan {record.plan_id} is {run.state.value} and shows nothing: {run.reason}",
            next_step=f"smoke_test(plan_id={record.plan_id})",
        )
    why = "; ".join(c.detail for c in record.smoke.checks if c.outcome == "failed")
    return WrongStep(
        f"the smoke run {run.run_id} of plan {record.plan_id} did not pass: {why or run.state.value}",
        next_step=f"diagnose_failure(run_id={run.run_id}), then validate_inputs with base_plan_id={record.plan_id}",
    )
