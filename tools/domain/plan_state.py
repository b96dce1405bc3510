"""PlanRecord and its state machine: the order of the procedure, in one table."""

from enum import StrEnum
from typing import Any

from pydantic import Field

from runtime.config.plan import Frozen, TrainingPlan

from .errors import WrongStep
from .findings import Answer, Finding, Question
from .reports import CostEstimate, SmokeResult


class PlanState(StrEnum):
    DRAFTED = "drafted"
    VALID = "valid"
    SMOKED = "smoked"
    NOT_SHOWN = "not_shown"
    ESTIMATED = "estimated"
    REQUESTED = "requested"
    APPROVED = "approved"
    REFUSED = "refused"
    EXPIRED = "expired"
    LAUNCHED = "launched"


_S = PlanState
_AFTER: dict[PlanState, frozenset[PlanState]] = {
    _S.DRAFTED: frozenset({_S.VALID}),
    _S.VALID: frozenset({_S.SMOKED, _S.NOT_SHOWN}),
    _S.SMOKED: frozenset({_S.ESTIMATED, _S.SMOKED, _S.NOT_SHOWN}),
    _S.NOT_SHOWN: frozenset({_S.ESTIMATED, _S.SMOKED, _S.NOT_SHOWN}),
    _S.ESTIMATED: frozenset({_S.ESTIMATED, _S.REQUESTED, _S.SMOKED, _S.NOT_SHOWN}),
    _S.REQUESTED: frozenset({_S.APPROVED, _S.REFUSED, _S.EXPIRED}),
    _S.APPROVED: frozenset({_S.LAUNCHED, _S.EXPIRED}),
    _S.REFUSED: frozenset({_S.REQUESTED}),
    _S.EXPIRED: frozenset({_S.REQUESTED}),
    _S.LAUNCHED: frozenset(),
}

NEXT_TOOL: dict[PlanState, str] = {
    _S.DRAFTED: "answer_questions, or validate_inputs with base_plan_id and the findings mended",
    _S.VALID: "smoke_test",
    _S.SMOKED: "estimate_cost",
    _S.NOT_SHOWN: "estimate_cost (a human must accept the missing evidence by name), or a new plan that shows it",
    _S.ESTIMATED: "request_approval",
    _S.REQUESTED: "show the human the approval command and end the turn; then launch_training",
    _S.APPROVED: "launch_training",
    _S.REFUSED: "ask the human why; a new plan with base_plan_id, or request_approval again",
    _S.EXPIRED: "request_approval",
    _S.LAUNCHED: "monitor_run",
}


class PlanRecord(Frozen):
    """A plan as the store keeps it: what was asked, what was found, and how far it came.

    Attributes:
        inputs: the arguments of validate_inputs as given, so that a later plan can start from them.
        plan: None while findings of level error or open questions remain.
    """

    plan_id: str
    state: PlanState
    requester: str
    created_at_s: float
    base_plan_id: str | None = None
    inputs: dict[str, Any] = Field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    questions: tuple[Question, ...] = ()
    answers: tuple[Answer, ...] = ()
    plan: TrainingPlan | None = None
    plan_digest: str | None = None
    smoke: SmokeResult | None = None
    estimate: CostEstimate | None = None


def require_transition(record: PlanRecord, target: PlanState) -> None:
    """Raise WrongStep unless `record` may go to `target`."""
    if target in _AFTER[record.state]:
        return
    raise WrongStep(
        f"plan {record.plan_id} is {record.state.value} and cannot become {target.value}",
        allowed=", ".join(sorted(s.value for s in _AFTER[record.state])) or "nothing: make a new plan from it",
        next_step=NEXT_TOOL[record.state],
    )
