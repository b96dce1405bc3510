"""What the procedure needs from the world outside; agent_server provides it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from .applied import AppliedDocument, AppliedState, DocumentKind
from .approval import Approval, ApprovalRequest, ApproverKey, Assessment, AuditRecord
from .budget import Reservation
from .plan_state import PlanRecord, PlanState
from .reports import CostEstimate
from .run_state import RunRecord, RunState

# Written once when a store is created: a simulated one takes simulated decisions alone, a normal one never.
StoreMode = Literal["normal", "simulated"]


WorkKind = Literal["plans", "requests", "runs"]


@dataclass(frozen=True)
class WorkLine:
    """One plan, request or run, as a line of a list."""

    id: str
    kind: WorkKind
    state: str
    created_at_s: float
    plan_id: str
    plan_digest: str
    detail: str


@dataclass(frozen=True)
class PastEstimate:
    """An estimate and what was then measured, for calibration. Seconds and bytes."""

    estimate: CostEstimate
    actual_wall_time_s: float
    actual_memory_bytes: int | None


class Store(Protocol):
    """Plans, requests, approvals, runs and the audit log. Every change and its audit row are one transaction.

    Changes take the expected state and raise Conflict when the row has moved on; getters raise NotFound.
    """

    @property
    def mode(self) -> StoreMode: ...

    @property
    def identity(self) -> str:
        """Which database this is; a copy of it is another one."""
        ...

    def add_plan(self, record: PlanRecord) -> None: ...
    def plan(self, plan_id: str) -> PlanRecord: ...
    def save_plan(self, record: PlanRecord, *, expect: PlanState) -> None: ...
    def plans(self, *, limit: int, before: str | None = None) -> Sequence[PlanRecord]: ...

    def open_plans(self) -> Sequence[PlanRecord]:
        """Plans whose request is open, or approved and not used."""
        ...

    def work(self, kind: WorkKind, *, limit: int) -> Sequence[WorkLine]:
        """The newest lines of this kind, newest first, without reading whole records."""
        ...

    def add_request(self, request: ApprovalRequest, *, plan: PlanRecord) -> None:
        """Insert the request and save the plan as `requested`, in one transaction."""
        ...

    def request(self, request_id: str) -> ApprovalRequest: ...
    def request_for_plan(self, plan_id: str) -> ApprovalRequest | None:
        """The newest request of this plan."""
        ...

    def requests(self, *, limit: int) -> Sequence[ApprovalRequest]: ...
    def approval(self, request_id: str) -> Approval | None: ...
    def add_decision(self, approval: Approval, *, plan: PlanRecord) -> None:
        """Insert a decision once per request and save the plan as approved or refused.

        An approval reserves in the budgets what the run may use at most, in the same transaction; Refused if a budget
        does not hold it.
        """
        ...

    def consume_approval(self, request_id: str, run: RunRecord) -> RunRecord:
        """Mark the approval used by `run`, insert the run as `launching`, save the plan as launched, atomically.

        Returns the inserted run, or the run that had used this approval before.
        """
        ...

    def launch_free(self, run: RunRecord, *, assessment: Assessment) -> RunRecord:
        """Without an approval, if the applied policy's free tier covers the plan: reserve, insert the run, atomically.

        Returns the inserted run, or the full run that this plan had before.
        """
        ...

    def add_run(self, run: RunRecord) -> RunRecord:
        """Insert a smoke run; the run that is already launching or running for this plan and kind wins."""
        ...

    def run(self, run_id: str) -> RunRecord: ...
    def save_run(self, run: RunRecord, *, expect: RunState, elapsed_s: float | None = None) -> None:
        """The end of a run settles what was reserved for it, in the same transaction.

        Args:
            elapsed_s: how long the job ran, where there is no result that says so; None: nobody knows.
        """
        ...

    def runs(self, *, limit: int, before: str | None = None, plan_id: str | None = None) -> Sequence[RunRecord]: ...
    def open_runs(self) -> Sequence[RunRecord]:
        """Runs that are launching, running, or lost without a result."""
        ...

    def past_estimates(self, *, limit: int = 200) -> Sequence[PastEstimate]: ...
    def add_actual(self, past: PastEstimate, *, run_id: str) -> None: ...

    def reservations(self) -> Sequence[Reservation]: ...
    def reservation_of(self, run_id: str) -> Reservation | None: ...

    def applied(self, kind: DocumentKind) -> AppliedState:
        """What an approver applied last, and whether its row is in order."""
        ...

    def apply_document(self, document: AppliedDocument) -> None:
        """Replace what was applied before; the signature must be a known key's."""
        ...

    def keys(self) -> Sequence[ApproverKey]: ...
    def add_key(self, key: ApproverKey) -> None: ...
    def remove_key(self, key_id: str, *, actor: str) -> ApproverKey:
        """Mark the key as removed: no launch counts a decision by it any more."""
        ...

    def audit_log(self) -> Sequence[AuditRecord]: ...
    def audit_head(self) -> str:
        """Hash of the newest link."""
        ...

    def audit_of(self, subject: str) -> Sequence[AuditRecord]:
        """The links on one subject, oldest first."""
        ...

    def append_audit(self, *, actor: str, event: str, subject: str, details: dict[str, object]) -> AuditRecord: ...
    def latest_time_s(self) -> float:
        """The latest time in the audit log: a clock set back does not revive an expired approval."""
        ...

    def problems(self) -> Sequence[str]:
        """Where the records contradict the audit log, in words; empty if nowhere."""
        ...
