"""answer_questions: the user's words, or an assumption, for what a drafted plan left open; then everything again."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from runtime.config.plan import TrainingPlan

from .domain.errors import InvalidInput, WrongStep
from .domain.findings import Answer
from .domain.paths import AllowedRoots
from .domain.plan_state import NEXT_TOOL, PlanRecord, PlanState
from .domain.reports import InputReport
from .inputs.notes import nearest
from .validate_inputs import InputRequest, validate_inputs

_MAX_CHARACTERS = 20_000


def answer_questions(
    record: PlanRecord,
    answers: Sequence[Answer] | Mapping[str, str],
    *,
    source: Literal["user", "assumption"],
    roots: AllowedRoots,
    snapshot_store: Path,
    base: TrainingPlan | None = None,
    **machine: Any,
) -> InputReport:
    """Validate the record's inputs again with these answers beside those it has.

    Args:
        answers: question id -> value, all said by `source`; or Answers, each with its own source.
        machine: passed on to validate_inputs (base_environment, open_driver, limits).

    Raises:
        WrongStep: the plan has no open questions.
        InvalidInput: an answer to a question that is not open, is empty, or is not among those allowed.
    """
    if record.state is not PlanState.DRAFTED:
        raise WrongStep(
            f"plan {record.plan_id} is {record.state.value} and has no open questions",
            next_step=NEXT_TOOL[record.state],
        )
    return validate_inputs(
        InputRequest.model_validate(record.inputs),
        roots=roots,
        snapshot_store=snapshot_store,
        base=base,
        answers=merged_answers(record, answers, source=source),
        **machine,
    )


def merged_answers(
    record: PlanRecord, answers: Sequence[Answer] | Mapping[str, str], *, source: Literal["user", "assumption"]
) -> tuple[Answer, ...]:
    """The record's answers and the new ones, checked; the newest to a question counts.

    Raises:
        InvalidInput: see answer_questions.
    """
    if isinstance(answers, Mapping):
        answers = [Answer(question_id=name, value=value, source=source) for name, value in answers.items()]
    questions = {question.id: question for question in record.questions}
    problems, hints = [], []
    for answer in answers:
        question = questions.get(answer.question_id)
        if question is None:
            problems.append(f"{answer.question_id!r} is no open question")
            hints.append(nearest(answer.question_id, questions) or "no question is open")
        elif not answer.value.strip() and answer.question_id != "smoke_args":
            problems.append(f"the answer to {answer.question_id} is empty")
            hints.append(f"say a value, such as {question.proposal}" if question.proposal else "say a value")
        elif len(answer.value) > _MAX_CHARACTERS:
            problems.append(f"the answer to {answer.question_id} has {len(answer.value)} characters")
            hints.append(f"up to {_MAX_CHARACTERS} characters")
        elif question.allowed and answer.value not in question.allowed:
            problems.append(f"{answer.question_id}={answer.value!r}")
            hints.append(f"{answer.question_id}: {', '.join(question.allowed)}")
    if problems:
        raise InvalidInput("; ".join(problems), allowed="; ".join(hints), next_step="answer_questions again")
    return tuple({answer.question_id: answer for answer in (*record.answers, *answers)}.values())
