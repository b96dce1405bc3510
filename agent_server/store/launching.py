"""Whether a plan may launch, decided inside the transaction that starts the run."""

from sqlalchemy import Connection, func, select

from agent_server.approvals.policy.assess import assess
from agent_server.approvals.policy.budgets import free_launches
from agent_server.approvals.policy.check import Rules, check_request, facts_of, reservation, share_id
from agent_server.approvals.policy.device_use import DeviceUse
from agent_server.approvals.policy.in_force import judge_policy, judge_prices
from tools.domain.approval import Approval, ApprovalRequest, Assessment
from tools.domain.budget import Reservation
from tools.domain.errors import Refused, WrongStep
from tools.domain.plan_state import NEXT_TOOL, PlanRecord, PlanState
from tools.domain.run_state import RunRecord
from tools.request_approval import launch_refusals, member_refusals, store_refusals

from . import integrity, tables
from .applied import applied_state
from .find import find_key, find_plan, store_mode
from .reservations import Memory, find_reservation

_CLOCK_STEP_S = 300.0  # a clock that is set right may go back by so much
_ASK_AGAIN = "request_approval, or a new plan with base_plan_id if something changed"


def current_rules(connection: Connection, *, now_s: float) -> Rules:
    """The policy and prices that count now."""
    policy = judge_policy(applied_state(connection, "policy"))
    prices = judge_prices(applied_state(connection, "prices"), now_s=now_s)
    return Rules(policy, prices, store_mode(connection))


def require_launchable(
    connection: Connection,
    request: ApprovalRequest,
    approval: Approval | None,
    run: RunRecord,
    *,
    now_s: float,
    clock_s: float,
    identity: str,
    memory: Memory,
) -> tuple[PlanRecord, Approval, Reservation]:
    """The plan, its approval and what was reserved for it.

    Args:
        now_s: the later of the clock and the newest time in the audit log.
        clock_s: the clock alone.

    Raises:
        Refused: with every reason why the approval does not cover this run now.
    """
    record = find_plan(connection, request.plan_id)
    key = None if approval is None else find_key(connection, approval.decision.key_id)
    checked = check_request(record, request, current_rules(connection, now_s=now_s))
    reasons = launch_refusals(record, request, approval, key, now_s=now_s, required=checked.required, member=run.member)
    reasons.extend(_clock_refusals(connection, request, approval, now_s=now_s, clock_s=clock_s))
    reasons.extend(member_refusals(request.plan or record.plan, run.member))
    reasons.extend(checked.reasons)
    reasons.extend(store_refusals(request, identity=identity))
    if run.plan_digest != request.plan_digest:
        reasons.append(f"the run is of plan digest {run.plan_digest[:8]}, approved is {request.plan_digest[:8]}")
    reserved = share_id(request.request_id, run.member)
    held = find_reservation(connection, reserved)
    if held is None and approval is not None and approval.decision.decision == "approve":
        reasons.append("nothing is reserved for it in the budgets")
    subjects = {request.request_id, request.plan_id, reserved} | ({key.key_id} if key else set())
    reasons.extend(integrity.problems(connection, only=subjects, verified=memory.log))
    if reasons or approval is None or held is None:
        raise Refused(f"plan {record.plan_id} may not launch: " + "; ".join(reasons), next_step=_ASK_AGAIN)
    return record, approval, held


def _clock_refusals(
    connection: Connection, request: ApprovalRequest, approval: Approval | None, *, now_s: float, clock_s: float
) -> list[str]:
    """A clock that was once far ahead makes the newest time stand still, and nothing would expire any more."""
    links = tables.audit.c
    asked_s = connection.execute(select(func.min(links.time_s)).where(links.subject == request.request_id)).scalar()
    if asked_s is None or clock_s >= now_s:
        return []  # the clock is ahead of all that was written: it has expired by it, or it has not
    if clock_s < asked_s - _CLOCK_STEP_S:
        return [f"the clock is {(asked_s - clock_s) / 60:.0f} min behind the time of the request: set it right"]
    going_on = approval is not None and approval.used_for
    end_s = request.launch_until_s if going_on and request.launch_until_s else request.expires_at_s
    if clock_s - asked_s >= end_s - request.created_at_s:
        return [f"it expired: it was asked for {(clock_s - asked_s) / 60:.0f} min ago by the clock"]
    return []


def require_free(
    connection: Connection, run: RunRecord, *, assessment: Assessment, now_s: float, memory: Memory
) -> tuple[PlanRecord, Reservation, Rules]:
    """The plan and what it will reserve, if the free tier covers it.

    Raises:
        WrongStep: the plan is not estimated, or was asked about.
        Refused: a human must decide.
    """
    record = find_plan(connection, run.plan_id)
    if record.state is not PlanState.ESTIMATED:
        raise WrongStep(f"plan {record.plan_id} is {record.state.value}", next_step=NEXT_TOOL[record.state])
    rules = current_rules(connection, now_s=now_s)
    use = DeviceUse(assessment.device_use, assessment.device_words)
    today = free_launches(memory.reservations.all(connection), now_s=now_s)
    found = assess(rules.policy, facts_of(record, rules.prices, use), free_today=today)
    reasons = [] if found.level is None else list(found.why)
    if record.plan is None or not record.plan.digest == record.plan_digest == run.plan_digest:
        reasons.append("the plan is not the one that was settled: its digest differs")
    elif record.estimate is None or record.estimate.plan_digest != record.plan_digest:
        reasons.append("the estimate is of another plan")
    reasons.extend(integrity.problems(connection, only={record.plan_id}, verified=memory.log))
    if reasons:
        raise Refused(f"plan {record.plan_id} may not launch freely: {'; '.join(reasons)}", next_step=_ASK_AGAIN)
    held = reservation(record, rules, reservation_id=run.run_id, now_s=now_s, expires_at_s=now_s, run_id=run.run_id)
    return record, held, rules
