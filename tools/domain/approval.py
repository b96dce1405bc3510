"""ApprovalRequest and Approval: what a human is asked, and the signed answer. `request_digest` binds the two."""

from enum import StrEnum
from typing import Any, Literal

from pydantic import Field

from runtime.config.digest import digest_json
from runtime.config.plan import Frozen, TrainingPlan

from .reports import CostEstimate


class AssuranceLevel(StrEnum):
    """How sure we are that a human decided (docs/security.md). A0 and A1 never count as approval."""

    SIMULATED = "simulated"
    A2 = "A2"
    A3 = "A3"
    A4 = "A4"


class Assessment(Frozen):
    """What the policy made of a plan when the human was asked; made again at approval and at launch.

    Attributes:
        level: the least that is needed; None: the free tier covers it.
        why: each rule that fits, in words.
        most_cost: what the run may cost at most, a decimal text; None is unknown.
        most_device_hours: the approved wall time on all devices, a decimal text.
        prices_version: of the price list that counted; empty if none did.
        notes: what does not count although it was applied.
    """

    level: AssuranceLevel | None
    why: tuple[str, ...]
    most_cost: str | None
    currency: str = ""
    most_device_hours: str
    prices_version: str = ""
    device_use: Literal["none_needed", "free", "in_use", "unknown"] = "unknown"
    device_words: str = ""
    notes: tuple[str, ...] = ()


class ApprovalRequest(Frozen):
    """Everything that an approval covers. `plan` is a copy, so that a later change of the plan can be named."""

    request_id: str
    plan_id: str
    plan_digest: str
    smoke_digest: str
    smoke_verdict: Literal["passed", "not_shown"]
    estimate: CostEstimate
    policy_version: str
    requester: str
    reason: str
    nonce: str
    created_at_s: float
    expires_at_s: float
    plan: TrainingPlan | None = None
    assessment: Assessment | None = None
    launch_until_s: float | None = Field(
        default=None,
        description="of a sweep: its further runs may start until then, once the first has started in time",
    )
    store: str = Field(default="", description="the database that it was made in: an approval does not go with a copy")

    @property
    def digest(self) -> str:
        """request_digest: what the approver signs over."""
        later = {
            name for name in ("assessment", "launch_until_s", "store") if not getattr(self, name)
        }  # older requests keep their digest
        return digest_json(self.model_dump(mode="json", exclude=later or None))


class Decision(Frozen):
    """The statement that is signed; it names the request by digest, so it fits no other."""

    request_id: str
    request_digest: str
    plan_digest: str
    decision: Literal["approve", "refuse"]
    accepted_not_shown: tuple[str, ...] = Field(
        default=(), description="evidence that the human accepts as missing, by name"
    )
    approver: str
    key_id: str
    level: AssuranceLevel
    channel: str
    shown_digest: str = Field(description="SHA-256 of the text that was shown")
    note: str = ""
    decided_at_s: float
    nonce: str
    audit_head: str = Field(
        default="", description="hash of the newest audit record then: the signature holds all rows up to it"
    )


class Approval(Frozen):
    """A decision in its DSSE envelope, as the store keeps it.

    `used_by` is the run that consumed it; of a sweep, `used_for` holds the run of each member that has started.
    """

    decision: Decision
    envelope: dict[str, Any]
    used_by: str | None = None
    used_for: dict[str, str] = Field(default_factory=dict)

    def run_for(self, member: int | None) -> str | None:
        """The run that used it, for this member of a sweep."""
        return self.used_by if member is None else self.used_for.get(str(member))


class ApproverKey(Frozen):
    """An enrolled public key (Ed25519, SubjectPublicKeyInfo PEM)."""

    key_id: str
    approver: str
    public_pem: str
    level: AssuranceLevel
    enrolled_at_s: float
    removed_at_s: float | None = None


class AuditRecord(Frozen):
    """One link of the chain: `hash` covers all other fields, `previous` included."""

    sequence: int
    time_s: float
    actor: str
    event: str
    subject: str
    details: dict[str, Any]
    previous: str
    hash: str
