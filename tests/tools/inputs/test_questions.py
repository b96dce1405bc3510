"""What nobody said is asked, never guessed; an assumption stays marked as one."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.inputs.conftest import Project, codes, errors, found
from tools.answer_questions import answer_questions
from tools.domain.errors import InvalidInput, WrongStep
from tools.domain.findings import Answer
from tools.domain.paths import AllowedRoots
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.reports import InputReport

ALL = ["seed", "num_processes", "wall_time_s", "smoke_args", "evaluation"]
BARE: dict[str, Any] = {"settings": {}, "smoke_args": [], "evaluation": None}


def ids(report: InputReport) -> list[str]:
    return [question.id for question in report.questions]


def answer(question: str, value: str, source: Any = "user") -> Answer:
    return Answer(question_id=question, value=value, source=source)


def drafted(project: Project, report: InputReport, **changes: Any) -> PlanRecord:
    return PlanRecord(
        plan_id="plan-0000000000",
        state=PlanState.DRAFTED,
        requester="test",
        created_at_s=0.0,
        inputs={**project.request, **changes},
        questions=report.questions,
    )


def test_everything_that_matters_and_is_not_given_is_asked_with_a_proposal(project: Project) -> None:
    report = project.validate(**BARE)
    assert report.plan is None
    assert ids(report) == ALL
    assert all(question.proposal for question in report.questions)
    proposals = {q.id: q.proposal for q in report.questions}
    train = project.root / "data/train.csv"
    assert proposals["smoke_args"] == f"--train {train} --lr 0.1 --output '{{run_dir}}/out' --max_steps 12"
    evaluation = json.loads(proposals["evaluation"])
    assert (evaluation["id"], evaluation["label"]) == ("id", "label")
    assert not project.store.exists()


@pytest.mark.parametrize("name", ["seed", "num_processes", "wall_time_s"])
def test_each_missing_setting_is_one_question(project: Project, name: str) -> None:
    assert ids(project.validate(settings=project.without(name))) == [name]


def test_proposals_answer_their_own_questions(project: Project) -> None:
    report = project.validate(**BARE)
    answers = [answer(q.id, q.proposal) for q in report.questions]
    settled = project.validate(**BARE, answers=answers)
    assert settled.plan is not None, settled
    assert settled.plan.smoke.args[-4:] == ("--max_steps", "12", "--seed", "0")
    origins = {s.name: s.origin for s in settled.plan.settings}
    assert {origins[name] for name in ("seed", "num_processes", "wall_time_s", "smoke_args")} == {"user"}


def test_an_assumption_is_recorded_as_one(project: Project) -> None:
    answers = [answer("seed", "5", "assumption")]
    plan = project.validate(settings=project.without("seed"), answers=answers).plan
    assert plan is not None
    assert plan.seed == 5
    assert [(s.value, s.origin) for s in plan.settings if s.name == "seed"] == [("5", "assumption")]


def test_a_seed_among_the_arguments_is_the_seed(project: Project) -> None:
    args = [*project.request["args"], "--seed", "11"]
    plan = project.validate(args=args, settings=project.without("seed")).plan
    assert plan is not None
    assert plan.seed == 11
    assert plan.argv.count("--seed") == 1
    assert plan.smoke.args[-2:] == ("--seed", "11")
    assert "args say seed 11" in errors(project.validate(args=args))["seed_twice"].message


def test_no_seed_is_an_answer_of_its_own(project: Project) -> None:
    plan = project.validate(settings=project.settings(seed="none")).plan
    assert plan is not None
    assert plan.seed is None
    assert "--seed" not in plan.argv


def test_a_script_without_a_seed_flag_is_asked_too(project: Project) -> None:
    (project.root / "train.py").write_text("print('x')\n")
    settings = project.without("seed")
    report = project.validate(args=[], smoke_args=[], settings=settings)
    assert ids(report) == ["seed", "smoke_args"]
    answers = [answer("seed", "1"), answer("smoke_args", "same")]
    plan = project.validate(args=[], smoke_args=[], settings=settings, answers=answers).plan
    assert plan is not None
    assert (plan.argv, plan.smoke.args, plan.seed) == ((), (), 1)
    report = project.validate(args=[], smoke_args=[], settings=settings, answers=answers)
    assert "it is not passed on" in found(report, "seed_not_passed").message


def test_no_evaluation_is_an_answer_that_is_recorded(project: Project) -> None:
    plan = project.validate(evaluation=None, answers=[answer("evaluation", "none", "assumption")]).plan
    assert plan is not None
    assert plan.evaluation is None
    assert [(s.value, s.origin) for s in plan.settings if s.name == "evaluation"] == [("none", "assumption")]
    assert "evaluation" not in ids(project.validate(evaluation=None, data=["train=data/train.csv"]))


def test_an_evaluation_in_words_is_not_guessed_at(project: Project) -> None:
    report = project.validate(evaluation=None, answers=[answer("evaluation", "accuracy please")])
    assert "JSON object" in errors(report)["bad_answer"].message


@pytest.mark.parametrize(
    ("question", "value", "code"),
    [("seed", "many", "bad_setting"), ("num_processes", "0", "zero_processes"), ("smoke_args", "'open", "bad_answer")],
)
def test_a_bad_answer_is_an_error(project: Project, question: str, value: str, code: str) -> None:
    changes = {"smoke_args": []} if question == "smoke_args" else {"settings": project.without(question)}
    report = project.validate(**changes, answers=[answer(question, value)])
    assert code in errors(report)
    assert report.plan is None


def test_a_setting_outweighs_an_inherited_answer(project: Project) -> None:
    plan = project.validate(answers=[answer("num_processes", "1")]).plan
    assert plan is not None
    assert plan.layout.num_processes == 2


def test_answering_completes_a_drafted_plan(project: Project) -> None:
    first = project.validate(**BARE)
    record = drafted(project, first, **BARE)
    options: dict[str, Any] = {"roots": AllowedRoots.of([project.root]), "snapshot_store": project.store}
    half = answer_questions(record, {"seed": "1", "num_processes": "2"}, source="user", **options)
    assert ids(half) == ["wall_time_s", "smoke_args", "evaluation"]
    record = record.model_copy(
        update={"questions": half.questions, "answers": (answer("seed", "1"), answer("num_processes", "2"))}
    )
    rest = [answer(q.id, q.proposal, "assumption") for q in half.questions]
    whole = answer_questions(record, rest, source="assumption", **options)
    assert whole.plan is not None
    assert {s.name: s.origin for s in whole.plan.settings}["wall_time_s"] == "assumption"
    assert {s.name: s.origin for s in whole.plan.settings}["seed"] == "user"


def test_answers_to_other_questions_are_refused_with_the_open_ones(project: Project) -> None:
    record = drafted(project, project.validate(settings=project.without("seed")))
    options: dict[str, Any] = {"roots": AllowedRoots.of([project.root]), "snapshot_store": project.store}
    with pytest.raises(InvalidInput) as caught:
        answer_questions(record, {"sead": "1", "wall_time_s": "5", "seed": " "}, source="user", **options)
    assert "'sead' is no open question" in caught.value.what
    assert "'wall_time_s'" in caught.value.what
    assert "the answer to seed is empty" in caught.value.what
    assert "seed" in caught.value.allowed
    valid = record.model_copy(update={"state": PlanState.VALID})
    with pytest.raises(WrongStep, match="no open questions"):
        answer_questions(valid, {"seed": "1"}, source="user", **options)


def test_an_unknown_question_in_inherited_answers_is_told(project: Project) -> None:
    assert "unknown_question" in errors(project.validate(answers=[answer("colour", "red")]))


def test_missing_hold_out_data_is_said(project: Project) -> None:
    report = project.validate(data=["train=data/train.csv"], evaluation=None)
    assert report.plan is not None
    assert "no metric can be verified" in found(report, "no_holdout").message
    assert "no_data" in codes(project.validate(data=[], args=[], smoke_args=["--max_steps", "9"], evaluation=None))


def test_the_servers_start_stays_light() -> None:
    program = "import sys, tools.validate_inputs; print([m for m in ('torch', 'scipy', 'sklearn') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        cwd=Path(__file__).parent,
    )
    assert done.stdout.strip() == "[]"


def test_with_devices_the_kind_is_asked_and_one_process_a_device_proposed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tools.inputs import program

    facts = vars(program.probe_interpreter(sys.executable))
    seen = type(program.probe_interpreter(sys.executable))(**{**facts, "cuda_devices": 4, "cuda_version": "12.8"})
    monkeypatch.setattr(program, "probe_interpreter", lambda *_, **__: seen)
    report = project.validate(settings={"seed": 1, "wall_time_s": 60})
    assert {q.id: q.proposal for q in report.questions} == {"device": "cuda", "num_processes": "4"}
    assert report.questions[0].allowed == ("cpu", "cuda")
    plan = project.validate(settings=project.settings(device="cpu")).plan
    assert plan is not None
    assert plan.layout.device == "cpu"


def test_a_trainer_script_gets_a_proposal_in_its_own_flags(project: Project) -> None:
    (project.root / "train.py").write_text("from transformers import HfArgumentParser, TrainingArguments\n")
    args = ["--output_dir", "{run_dir}/out", "--max_steps=5000"]
    (question,) = project.validate(args=args, smoke_args=[]).questions
    assert question.id == "smoke_args"
    assert question.proposal.endswith("--max_steps=12 --logging_steps 1 --save_steps 12")


@pytest.mark.parametrize("seed", ["9007199254740992", "-9223372036854775808", "1" * 5000])
def test_a_seed_that_no_plan_holds_exactly_is_refused(project: Project, seed: str) -> None:
    report = project.validate(args=[*project.request["args"], "--seed", seed])
    assert "up to 9007199254740991" in errors(report)["bad_setting"].hint
    assert report.plan is None


def test_a_seed_of_other_digits_is_no_seed(project: Project) -> None:
    report = project.validate(args=[*project.request["args"], "--seed", "\u00b2"])
    assert "seed_twice" not in errors(report)
