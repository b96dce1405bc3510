"""Asking a human: the request, the text that is shown, and every reason why a plan may not launch."""

import secrets
from collections.abc import Iterator, Sequence

import rfc8785

from runtime.config.order import LaunchSpec
from runtime.config.plan import TrainingPlan

from .domain.approval import Approval, ApprovalRequest, ApproverKey, Assessment, AssuranceLevel, Decision
from .domain.errors import InvalidInput, Refused, WrongStep
from .domain.ids import new_id
from .domain.plan_state import NEXT_TOOL, PlanRecord, PlanState, require_transition
from .domain.reports import SmokeResult
from .plan_difference import differences as plan_differences
from .shown_plan import shown_lines
from .signatures import key_id, verify
from .text import mixed_words, redact

DECISION_TYPE = "application/vnd.forerun.decision+json"
MAX_REASON_CHARACTERS = 2000

_RANK = (AssuranceLevel.A2, AssuranceLevel.A3, AssuranceLevel.A4)


def build_request(
    record: PlanRecord,
    *,
    reason: str,
    policy_version: str,
    now_s: float,
    ttl_s: float = 3600,
    assessment: Assessment | None = None,
    store: str = "",
) -> ApprovalRequest:
    """What a human is asked about this plan; it expires `ttl_s` seconds from now.

    Args:
        assessment: what the policy made of the plan.
        store: the identity of the database in which the request will lie.

    Raises:
        WrongStep: the plan has no smoke run that ended well enough, no estimate, or an open request.
        InvalidInput: the reason is too long.
    """
    require_transition(record, PlanState.REQUESTED)
    plan, smoke, estimate = record.plan, record.smoke, record.estimate
    if plan is None or smoke is None or estimate is None or smoke.verdict == "failed":
        raise WrongStep(
            f"plan {record.plan_id} cannot be put before a human without a smoke run and an estimate",
            next_step=NEXT_TOOL[PlanState.VALID if smoke is None else PlanState.SMOKED],
        )
    if len(reason) > MAX_REASON_CHARACTERS:
        raise InvalidInput(f"a reason of {len(reason)} characters", allowed=f"up to {MAX_REASON_CHARACTERS}")
    return ApprovalRequest(
        request_id=new_id("req"),
        plan_id=record.plan_id,
        plan_digest=plan.digest,
        smoke_digest=smoke.digest,
        smoke_verdict=smoke.verdict,
        estimate=estimate,
        policy_version=policy_version,
        requester=record.requester,
        reason=redact(reason),  # it is kept, shown and reported: a token that slipped in stops here
        nonce=secrets.token_hex(16),
        created_at_s=now_s,
        expires_at_s=now_s + ttl_s,
        plan=plan,
        assessment=assessment,
        launch_until_s=now_s + ttl_s + plan.num_runs * plan.ceilings.wall_time_s if plan.sweep else None,
        store=store,
    )


def shown_text(
    record: PlanRecord,
    request: ApprovalRequest,
    *,
    spec: LaunchSpec | None,
    differences: Sequence[str],
    since_approved: tuple[str, Sequence[str]] | None = None,
) -> str:
    """The text that is put before the human, every outside character made visible.

    Args:
        spec: the rendered command; None if it could not be rendered, which is said.
        differences: against the plan that this one was made from.
        since_approved: the last plan of this script that was approved, and the differences; None: there was none.
    """
    lines = list(shown_lines(record, request, spec=spec, differences=differences, since_approved=since_approved))
    mixed = mixed_words("\n".join(lines))
    words = f"WARNING: {', '.join(mixed)} may be read as something else" if mixed else "none"
    lines.insert(-2, f"Words with letters of several alphabets: {words}")  # near the digests, where nobody looks past
    return "\n".join(lines) + "\n"


def missing_evidence(smoke: SmokeResult | None) -> tuple[str, ...]:
    """The names of what the smoke run did not show; a human must accept each by name."""
    return () if smoke is None else tuple(check.name for check in smoke.checks if check.outcome == "not_shown")


def decision_payload(decision: Decision) -> bytes:
    """The bytes that are signed."""
    later = None if decision.audit_head else {"audit_head"}  # decisions of before it existed keep their signature
    return rfc8785.dumps(decision.model_dump(mode="json", exclude=later))


def store_refusals(request: ApprovalRequest, *, identity: str) -> list[str]:
    """Why a request cannot be decided or used in this database: it was made in another one."""
    if request.store in ("", identity):
        return []
    return [f"it was asked for in the database {request.store}, and this is {identity}: copies approve nothing"]


def launch_refusals(
    record: PlanRecord,
    request: ApprovalRequest | None,
    approval: Approval | None,
    key: ApproverKey | None,
    *,
    now_s: float,
    required: AssuranceLevel = AssuranceLevel.A2,
    member: int | None = None,
) -> list[str]:
    """Every reason why this plan may not launch, in words; empty means that it may.

    Args:
        key: the enrolled key that the decision names, None if there is none by that id.
        now_s: the later of the clock and the newest time in the audit log.
        required: the least level; `simulated` asks for exactly that one.
        member: which run of a sweep; None: the plan's only one, or none in particular.
    """
    if request is None:
        return ["nobody was asked: no approval was requested for this plan"]
    going_on = approval is not None and approval.used_for
    until_s = request.launch_until_s if going_on else None
    reasons = request_refusals(record, request, now_s=now_s, until_s=until_s)
    if approval is None:
        return [*reasons, f"no human has decided on {request.request_id} yet"]
    decision = approval.decision
    reasons += _decision_problems(request, approval, member)
    reasons += _signature_problems(approval, key)
    reasons += _level_problems(decision, required)
    unaccepted = [name for name in missing_evidence(record.smoke) if name not in decision.accepted_not_shown]
    if unaccepted:
        reasons.append(f"the smoke run did not show {', '.join(unaccepted)}, and no human accepted that by name")
    return reasons


def member_refusals(plan: TrainingPlan | None, member: int | None) -> list[str]:
    """Why this is no run that the plan lists."""
    num_members = len(plan.sweep) if plan else 0
    if member is None:
        return [f"the plan is a sweep of {num_members} runs, and the launch names none of them"] if num_members else []
    if num_members == 0:
        return [f"the plan is no sweep: it has no member {member}"]
    return [] if 1 <= member <= num_members else [f"the plan lists the runs 1 to {num_members}, not {member}"]


def request_refusals(
    record: PlanRecord, request: ApprovalRequest, *, now_s: float, until_s: float | None = None
) -> list[str]:
    """Every reason why this request can be decided or used no longer: it expired, or the plan is another by now.

    Args:
        until_s: when it ends, where that is not when it expires.
    """
    reasons = [*_plan_changes(record, request), *_evidence_changes(record, request)]
    end_s = request.expires_at_s if until_s is None else until_s
    if now_s >= end_s:
        minutes = (now_s - end_s) / 60
        reasons.append(f"the approval request expired {minutes:.0f} min ago")
    return reasons


def signature_problems(approval: Approval, key: ApproverKey | None) -> list[str]:
    """Why this decision is not one that the key's owner signed; removal of the key is no such reason."""
    decision = approval.decision
    if key is None or key.key_id != decision.key_id:
        return [f"the decision's key {decision.key_id[:8]} is not enrolled"]
    problems = []
    if key.approver != decision.approver or key.level is not decision.level:
        problems.append(f"key {key.key_id[:8]} belongs to another approver or level than the decision says")
    try:
        if key_id(key.public_pem) != key.key_id:
            problems.append(f"the public key of {key.approver} was exchanged: it does not fit its id")
        elif verify(approval.envelope, DECISION_TYPE, key.public_pem) != decision_payload(decision):
            problems.append("the signature is of another decision: the decision was edited")
    except (Refused, ValueError) as error:
        problems.append(f"the signature is not valid: {error}")
    return problems


def _signature_problems(approval: Approval, key: ApproverKey | None) -> Iterator[str]:
    if key is not None and key.removed_at_s is not None:
        yield f"the key of {key.approver} ({key.key_id[:8]}) was removed"
    yield from signature_problems(approval, key)


def _plan_changes(record: PlanRecord, request: ApprovalRequest) -> Iterator[str]:
    if record.plan is None:
        yield "the plan is not valid: errors or questions are open"
        return
    if request.plan_id != record.plan_id:
        yield f"request {request.request_id} is for plan {request.plan_id}"
    digest = record.plan.digest
    if digest != request.plan_digest:
        named = () if request.plan is None else plan_differences(request.plan, record.plan)
        yield f"the plan is not the one that was asked about: {'; '.join(named) or 'its digest differs'}"
    if record.plan_digest != digest:
        yield "the plan's record was edited: its digest does not fit its content"
    if request.plan is not None and request.plan.digest != request.plan_digest:
        yield "the request was edited: its copy of the plan does not fit its digest"


def _evidence_changes(record: PlanRecord, request: ApprovalRequest) -> Iterator[str]:
    smoke = record.smoke
    if smoke is None:
        yield "there is no smoke run for this plan"
        return
    if smoke.verdict == "failed":
        yield "the smoke run failed"
    if smoke.plan_digest != request.plan_digest:
        yield "the smoke run is of another plan"
    if smoke.digest != request.smoke_digest or smoke.verdict != request.smoke_verdict:
        yield f"the smoke result is not the one that was asked about (now {smoke.verdict} by {smoke.run_id})"
    if record.estimate != request.estimate:
        old = request.estimate.model_dump()
        new = {} if record.estimate is None else record.estimate.model_dump()
        names = sorted(name for name in old if old[name] != new.get(name))
        yield f"the estimate is not the one that was asked about: {', '.join(names)} changed"


def _decision_problems(request: ApprovalRequest, approval: Approval, member: int | None) -> Iterator[str]:
    decision = approval.decision
    if decision.decision != "approve":
        yield f"{decision.approver} refused it" + (f": {decision.note}" if decision.note else "")
    if decision.request_id != request.request_id:
        yield f"the decision is on request {decision.request_id}, not on {request.request_id}"
    if decision.request_digest != request.digest or decision.plan_digest != request.plan_digest:
        yield "the request is not the one that was decided: it was edited since"
    if not request.created_at_s <= decision.decided_at_s < request.expires_at_s:
        yield "the decision was made outside the time of the request"
    if used_by := approval.run_for(member):
        yield f"the approval was used by {used_by}: it is good for one run" + (" of each member" if member else "")


def _level_problems(decision: Decision, required: AssuranceLevel) -> Iterator[str]:
    level = decision.level
    if AssuranceLevel.SIMULATED in (level, required):
        enough = level is required
    else:
        enough = _RANK.index(level) >= _RANK.index(required)
    if not enough:
        yield f"the decision has level {level.value}, needed is {required.value}"
