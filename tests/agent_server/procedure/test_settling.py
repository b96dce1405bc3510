"""Inputs become plans: the same inputs the same plan, errors nothing at all, answers what was asked."""

import sys
from typing import Any

import pytest

from agent_server.procedure.settling import answer, validate
from agent_server.procedure.starting import Started, launch_training
from runtime.layout import RunLayout
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tools.domain.errors import InvalidInput, NotFound, WrongStep
from tools.domain.findings import Answer
from tools.domain.plan_state import PlanState
from tools.inputs.request import InputRequest

SCRIPT = """
import argparse
import model
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.1)
print(parser.parse_args().lr)
"""


def request(**changes: Any) -> InputRequest:
    settings = {"num_processes": "1", "device": "cpu", "seed": "none"}  # the time limit is left open
    given = {"script": "train.py", "args": ("--lr", "0.01"), "smoke_args": ("--lr", "0.02"), "python": sys.executable}
    return InputRequest.model_validate(given | {"settings": settings, "data": ("train=data/train.csv",)} | changes)


@pytest.fixture(autouse=True)
def script(bench: Bench) -> None:
    (bench.project / "train.py").write_text(SCRIPT)


def settled(bench: Bench, **changes: Any) -> str:
    """A valid plan's id."""
    base = changes.pop("base_plan_id", "")
    given = InputRequest(**changes) if base else request(**changes)
    found = validate(bench.place, given, base_plan_id=base, requester="agent")
    if found.record.questions:
        answers = [Answer(question_id=q.id, value=q.proposal or "none", source="user") for q in found.record.questions]
        found = answer(bench.place, found.record.plan_id, answers)
    assert found.record.state is PlanState.VALID
    return found.record.plan_id


def test_the_same_inputs_are_the_same_plan_also_after_its_questions_were_answered(bench: Bench) -> None:
    first = validate(bench.place, request(), base_plan_id="", requester="agent")
    again = validate(bench.place, request(), base_plan_id="", requester="agent")
    assert (again.record, again.repeated) == (first.record, True)
    plan_id = settled(bench)
    assert plan_id == first.record.plan_id
    after = validate(bench.place, request(), base_plan_id="", requester="agent")
    assert (after.record.plan_id, after.record.state, after.repeated) == (plan_id, PlanState.VALID, True)
    assert len(bench.store.plans(limit=10)) == 1


def test_changed_content_under_the_same_arguments_is_another_plan(bench: Bench) -> None:
    first = settled(bench)
    (bench.project / "model.py").write_text("LAYERS = 3\n")
    assert settled(bench) != first


def test_errors_are_all_told_and_nothing_is_kept(bench: Bench) -> None:
    wrong = request(args=("--rate", "1"), settings={"num_processes": "0"}, data=("train=data/missing.csv",))
    with pytest.raises(InvalidInput) as caught:
        validate(bench.place, wrong, base_plan_id="", requester="agent")
    for word in ("--rate", "num_processes", "missing.csv"):
        assert word in caught.value.what
    assert caught.value.allowed
    assert "nothing was kept" in caught.value.next_step
    assert list(bench.store.plans(limit=10)) == []


def test_a_new_plan_inherits_what_is_not_named_and_tells_the_difference(bench: Bench) -> None:
    base = settled(bench)
    found = validate(bench.place, InputRequest(args=("--lr", "0.5")), base_plan_id=base, requester="agent")
    assert found.record.plan_id != base
    assert found.record.state is PlanState.VALID, found.record.questions  # the answers are inherited too
    assert found.record.plan is not None
    assert found.record.plan.argv == ("--lr", "0.5")
    assert found.record.plan.smoke.args == ("--lr", "0.02")
    assert any("0.01" in line and "0.5" in line for line in found.differences)
    third = validate(bench.place, InputRequest(), base_plan_id=found.record.plan_id, requester="agent")
    assert third.record.plan is not None
    assert third.record.plan.argv == ("--lr", "0.5")


def test_an_unknown_base_plan_is_refused(bench: Bench) -> None:
    with pytest.raises(NotFound):
        validate(bench.place, request(), base_plan_id="plan-0000000000", requester="agent")


def test_assumptions_are_kept_as_such(bench: Bench) -> None:
    found = validate(bench.place, request(), base_plan_id="", requester="agent")
    assert [q.id for q in found.record.questions] == ["wall_time_s"]
    answers = [Answer(question_id="wall_time_s", value="60", source="assumption")]
    kept = answer(bench.place, found.record.plan_id, answers).record
    assert {a.source for a in kept.answers} == {"assumption"}
    repeated = answer(bench.place, kept.plan_id, answers)  # a lost answer: the same call again
    assert (repeated.record, repeated.repeated) == (kept, True)


def test_a_settled_plan_takes_no_other_answer(bench: Bench) -> None:
    plan_id = settled(bench)
    with pytest.raises(WrongStep) as caught:
        answer(bench.place, plan_id, [Answer(question_id="seed", value="7", source="user")])
    assert f"base_plan_id={plan_id}" in caught.value.next_step


def test_an_answer_to_no_question_changes_nothing(bench: Bench) -> None:
    found = validate(bench.place, request(), base_plan_id="", requester="agent")
    with pytest.raises(InvalidInput):
        answer(bench.place, found.record.plan_id, [Answer(question_id="colour", value="red", source="user")])
    assert bench.store.plan(found.record.plan_id) == found.record


def test_once_its_run_is_over_the_same_inputs_make_a_new_plan(bench: Bench) -> None:
    record = bench.approved()
    inputs = request()
    kept = record.model_copy(update={"inputs": inputs.model_dump(mode="json")})
    bench.store.save_plan(kept, expect=PlanState.APPROVED)
    found = launch_training(bench.place, record.plan_id)
    assert isinstance(found, Started)
    end_run(RunLayout(bench.place.settings.runs_dir / found.run.run_id))
    bench.place.reconciler.reconcile_all()
    assert validate(bench.place, inputs, base_plan_id="", requester="agent").record.plan_id != record.plan_id
