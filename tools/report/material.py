"""ReportMaterial: everything that a report is made from, collected by the caller."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from runtime.config.order import RunKind
from runtime.layout import RunLayout

from ..domain.approval import Approval, ApprovalRequest, ApproverKey
from ..domain.plan_state import PlanRecord
from ..domain.reports import Diagnosis, EnvironmentReport, Verification
from ..domain.run_state import RunRecord

FULL_KINDS: tuple[RunKind, ...] = ("full", "rerun")


@dataclass(frozen=True)
class FreeLaunch:
    """A launch that no human approved, because the policy's free tier covered it."""

    policy_version: str
    time_s: float


@dataclass(frozen=True)
class ReportMaterial:
    """None and empty mean that a step was skipped or a thing is not known; the report then says so.

    Attributes:
        smoke_run: the run that the plan's smoke result speaks of.
        approver_key: the enrolled key that the decision names.
        free_launch: the launch without an approval, as the audit log has it; None: there was none.
        enrolled_keys: every key that the store knows, the first one enrolled first.
        audit_head: hash of the newest audit record; empty if there is none.
        past_runs: earlier attempts at this plan and the plans it was made from.
        prices_per_hour: run id -> price of the whole job, of those of other plans, in the estimate's currency; a run
            that is not there has no known price.
        differences: of the plan against its base plan, in words; None if nobody compared.
        created_at_s: time of the report, seconds since the epoch.
    """

    plan_record: PlanRecord
    run: RunRecord
    layout: RunLayout
    smoke_run: RunRecord | None = None
    smoke_layout: RunLayout | None = None
    request: ApprovalRequest | None = None
    approval: Approval | None = None
    approver_key: ApproverKey | None = None
    enrolled_keys: Sequence[ApproverKey] = ()
    free_launch: FreeLaunch | None = None
    audit_head: str = ""
    environment: EnvironmentReport | None = None
    past_runs: Sequence[RunRecord] = ()
    prices_per_hour: Mapping[str, float] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    differences: Sequence[str] | None = None
    created_at_s: float = field(default_factory=time.time)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the script got: of a sweep, the arguments of this run."""
        plan, member = self.plan_record.plan, self.run.member
        if plan is None:
            return ()
        return plan.of_member(member if member is not None and member <= len(plan.sweep) else None).argv

    @property
    def verification(self) -> Verification | None:
        return self.run.verification
