"""The decision: built, signed and stored here alone. Only human doors (cli, web) import this module."""

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tools.domain.approval import Approval, ApproverKey, Decision
from tools.domain.errors import Refused, WrongStep
from tools.domain.plan_state import PlanState
from tools.domain.ports import Store
from tools.request_approval import DECISION_TYPE, decision_payload, launch_refusals, store_refusals
from tools.signatures import sign

from .policy import require_level_for_mode
from .policy.check import check_request, rules_of


@dataclass(frozen=True)
class Verdict:
    """What a human answered, and what stood before them when they did.

    Attributes:
        shown: the exact text.
        request_digest: of the request that the text is about; another one under the same id is not decided.
        channel: where: `terminal` or `web`.
    """

    decision: Literal["approve", "refuse"]
    shown: str
    channel: str
    request_digest: str
    accepted_not_shown: tuple[str, ...] = ()
    note: str = ""


def record_shown(store: Store, request_id: str, *, approver: str, text: str, channel: str) -> None:
    """Note in the audit log that this text was put before this human, whatever they answer."""
    store.append_audit(
        actor=approver,
        event="shown",
        subject=request_id,
        details={"shown_digest": _digest(text), "text": text, "channel": channel},
    )


def decide(
    store: Store,
    request_id: str,
    verdict: Verdict,
    *,
    key: ApproverKey,
    private_key: Ed25519PrivateKey,
    clock: Callable[[], float],
) -> Approval:
    """Sign the verdict and store it, once per request.

    Raises:
        Refused: expired, changed since the request, a key that does not count here, missing evidence not accepted.
        WrongStep: nothing is open for this plan.
        Conflict: decided already.
    """
    mode = store.mode
    require_level_for_mode(key.level, mode=mode)
    request = store.request(request_id)
    record = store.plan(request.plan_id)
    now_s = max(clock(), store.latest_time_s())
    if request.digest != verdict.request_digest:
        raise Refused(
            f"request {request_id} is another one than the text was about: it was edited while it was being decided",
            next_step="`forerun audit verify`; decide nothing before it is clear who edited the database",
        )
    if record.state is not PlanState.REQUESTED:
        raise WrongStep(
            f"plan {record.plan_id} is {record.state.value}: no decision is open", next_step="ask for a new request"
        )
    decision = Decision(
        request_id=request.request_id,
        request_digest=request.digest,
        plan_digest=request.plan_digest,
        decision=verdict.decision,
        accepted_not_shown=verdict.accepted_not_shown,
        approver=key.approver,
        key_id=key.key_id,
        level=key.level,
        channel=verdict.channel,
        shown_digest=_digest(verdict.shown),
        note=verdict.note,
        decided_at_s=now_s,
        nonce=secrets.token_hex(16),
        audit_head=store.audit_head(),
    )
    approval = Approval(decision=decision, envelope=sign(decision_payload(decision), DECISION_TYPE, private_key))
    keys = store.keys()
    enrolled = next((k for k in keys if k.key_id == key.key_id), None)
    checked = check_request(record, request, rules_of(store, now_s=now_s))
    reasons = launch_refusals(record, request, approval, enrolled, now_s=now_s, required=checked.required)
    reasons += checked.reasons
    reasons += store_refusals(request, identity=store.identity)
    if verdict.decision == "approve" and reasons:
        raise Refused(
            f"request {request_id} cannot be approved: {'; '.join(reasons)}",
            next_step="ask for a new request, or a new plan",
        )
    if enrolled is None or enrolled.removed_at_s is not None:
        raise Refused(f"key {key.key_id[:8]} is not enrolled", next_step="`forerun keys enroll`")
    store.add_decision(approval, plan=record)
    return approval


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
