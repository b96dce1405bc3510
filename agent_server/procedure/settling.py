"""Inputs become a plan: validate_inputs and answer_questions over the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtime.config.plan import MOST_SWEEP_RUNS
from tools.answer_questions import answer_questions, merged_answers
from tools.domain.errors import InvalidInput, WrongStep
from tools.domain.findings import Answer, Finding
from tools.domain.ids import new_id, require_id
from tools.domain.plan_state import NEXT_TOOL, PlanRecord, PlanState
from tools.domain.reports import InputReport
from tools.inputs.request import merged_request
from tools.validate_inputs import InputRequest, validate_inputs

from .workplace import Workplace

_SEARCHED_PLANS = 50


@dataclass(frozen=True)
class Settled:
    """A plan as it now is, and how it differs from the one it was made from."""

    record: PlanRecord
    differences: tuple[str, ...] = ()
    repeated: bool = False


def validate(
    place: Workplace, request: InputRequest, *, base_plan_id: str, requester: str, plan_id: str = ""
) -> Settled:
    """Check the inputs and keep the plan; identical inputs with identical findings give the same plan again.

    Raises:
        InvalidInput: findings of level error; nothing was kept.
    """
    base = place.store.plan(require_id(base_plan_id, "plan")) if base_plan_id else None
    inputs = merged_inputs(request, base)
    earlier = _same_inputs(place, inputs, base_plan_id or None)
    answers = earlier.answers if earlier else base.answers if base else ()
    report = validate_inputs(
        request,
        roots=place.roots,
        snapshot_store=place.settings.snapshots_dir,
        secret_key=place.settings.secret_key,
        base=base.plan if base else None,
        base_inputs=base.inputs if base else None,
        answers=answers,
    )
    require_no_errors(report, "validate_inputs")
    digest = report.plan.digest if report.plan else None
    if earlier and earlier.plan_digest == digest and earlier.questions == report.questions:
        return Settled(earlier, report.differences, repeated=True)
    record = PlanRecord(
        plan_id=plan_id or new_id("plan"),
        state=PlanState.VALID if report.plan else PlanState.DRAFTED,
        requester=requester,
        created_at_s=place.clock(),
        base_plan_id=base_plan_id or None,
        inputs=inputs,
        findings=report.findings,
        questions=report.questions,
        answers=answers,
        plan=report.plan,
        plan_digest=digest,
    )
    place.store.add_plan(record)
    return Settled(record, report.differences)


def answer(place: Workplace, plan_id: str, answers: Sequence[Answer]) -> Settled:
    """Take answers to a drafted plan's questions; it becomes valid when none is left.

    Raises:
        InvalidInput: an unknown question, a value that is not allowed, or errors that the answers lead to.
        WrongStep: the plan has no open questions.
    """
    record = place.plan(plan_id)
    if not answers:
        raise InvalidInput(
            "no answers were given",
            allowed="'question_id=value' for " + ", ".join(q.id for q in record.questions),
            next_step="answer_questions with at least one answer",
        )
    if record.state is not PlanState.DRAFTED:
        if set(answers) <= set(record.answers):
            return Settled(record, repeated=True)
        raise WrongStep(
            f"plan {plan_id} is {record.state.value} and has no open questions",
            next_step=f"{NEXT_TOOL[record.state]}; to change a value, validate_inputs with base_plan_id={plan_id}",
        )
    base = place.store.plan(record.base_plan_id) if record.base_plan_id else None
    report = answer_questions(
        record,
        answers,
        source=answers[0].source,
        roots=place.roots,
        snapshot_store=place.settings.snapshots_dir,
        secret_key=place.settings.secret_key,
        base=base.plan if base else None,
    )
    require_no_errors(report, "answer_questions")
    settled = record.model_copy(
        update={
            "state": PlanState.VALID if report.plan else PlanState.DRAFTED,
            "findings": report.findings,
            "questions": report.questions,
            "answers": merged_answers(record, answers, source=answers[0].source),
            "plan": report.plan,
            "plan_digest": report.plan.digest if report.plan else None,
        }
    )
    place.store.save_plan(settled, expect=PlanState.DRAFTED)
    return Settled(settled, report.differences)


def merged_inputs(request: InputRequest, base: PlanRecord | None) -> dict[str, Any]:
    """The arguments as given, empty ones taken from the base plan."""
    return merged_request(request, base.inputs if base else None).model_dump(mode="json")


def require_no_errors(report: InputReport, step: str) -> None:
    """Raise InvalidInput with every error finding at once."""
    errors = [finding for finding in report.findings if finding.level == "error"]
    if errors:
        raise InvalidInput(
            "; ".join(f"[{finding.code}] {finding.message.rstrip('.')}" for finding in errors),
            allowed="; ".join(_hints(errors)),
            next_step=f"mend {'it' if len(errors) == 1 else 'all of these'}, then {step} again (nothing was kept)",
        )


def _hints(errors: Sequence[Finding]) -> list[str]:
    return list(dict.fromkeys(finding.hint.rstrip(".") for finding in errors if finding.hint))


def _same_inputs(place: Workplace, inputs: dict[str, Any], base_plan_id: str | None) -> PlanRecord | None:
    """The newest plan made from exactly these inputs, unless its run is over: then a new one is wanted."""
    for record in place.store.plans(limit=_SEARCHED_PLANS):
        if record.inputs == inputs and record.base_plan_id == base_plan_id:
            return None if _is_over(place, record) else place.reconciler.expire(record)
    return None


def _is_over(place: Workplace, record: PlanRecord) -> bool:
    """Whether every run of the plan has ended."""
    if record.state is not PlanState.LAUNCHED or record.plan is None:
        return False
    runs = [run for run in place.store.runs(limit=MOST_SWEEP_RUNS + 50, plan_id=record.plan_id) if run.kind == "full"]
    return len(runs) >= record.plan.num_runs and all(run.ended for run in runs)
