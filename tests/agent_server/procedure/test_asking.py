"""Estimate and request: in their order, once, and frozen once a human was asked."""

import pytest

from agent_server.procedure.asking import estimate, request_approval
from agent_server.procedure.starting import smoke_test
from runtime.layout import RunLayout
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tools.domain.errors import InvalidInput, WrongStep
from tools.domain.plan_state import PlanState


def test_no_estimate_and_no_request_before_a_smoke_run(bench: Bench) -> None:
    record = bench.record()
    for step in (
        lambda: estimate(bench.place, record.plan_id),
        lambda: request_approval(bench.place, record.plan_id, ""),
    ):
        with pytest.raises(WrongStep) as caught:
            step()
        assert caught.value.next_step == f"smoke_test(plan_id={record.plan_id})"


def test_an_open_smoke_run_is_to_be_waited_for_and_a_cancelled_one_to_be_repeated(bench: Bench) -> None:
    record = bench.record()
    run = smoke_test(bench.place, record.plan_id).run
    with pytest.raises(WrongStep) as caught:
        estimate(bench.place, record.plan_id)
    assert f"monitor_run(id={run.run_id}" in caught.value.next_step
    end_run(RunLayout(bench.place.settings.runs_dir / run.run_id), "cancelled")
    with pytest.raises(WrongStep, match="cancelled") as caught:
        estimate(bench.place, record.plan_id)
    assert "smoke_test" in caught.value.next_step


def test_a_failed_smoke_run_lets_nobody_on(bench: Bench) -> None:
    record = bench.record()
    run = smoke_test(bench.place, record.plan_id).run
    end_run(RunLayout(bench.place.settings.runs_dir / run.run_id), "failed", reason="rank 0 exited with 1")
    for step in (
        lambda: estimate(bench.place, record.plan_id),
        lambda: request_approval(bench.place, record.plan_id, ""),
    ):
        with pytest.raises(WrongStep, match="did not pass") as caught:
            step()
        assert f"diagnose_failure(run_id={run.run_id})" in caught.value.next_step
    assert bench.store.request_for_plan(record.plan_id) is None


def test_a_request_names_the_command_and_comes_back_while_it_is_open(bench: Bench) -> None:
    record = bench.record(PlanState.ESTIMATED)
    asked = request_approval(bench.place, record.plan_id, "it is time")
    assert asked.command.split()[-2:] == ["approve", asked.request.request_id]
    assert str(bench.place.settings.state_dir) in asked.command
    assert asked.wait_command.split()[-2:] == ["wait", asked.request.request_id]
    again = request_approval(bench.place, record.plan_id, "again")
    assert (again.request, again.repeated) == (asked.request, True)
    assert len(bench.store.requests(limit=10)) == 1


def test_what_a_human_was_shown_is_not_estimated_anew(bench: Bench) -> None:
    record = bench.record(PlanState.ESTIMATED)
    request_approval(bench.place, record.plan_id, "it is time")
    assert estimate(bench.place, record.plan_id) == record.estimate
    assert bench.store.plan(record.plan_id).state is PlanState.REQUESTED


def test_after_expiry_or_refusal_one_may_ask_again(bench: Bench) -> None:
    first = bench.requested()
    bench.clock.now_s += 3601
    second = request_approval(bench.place, first.plan_id, "again").request
    assert second.request_id != first.request_id
    bench.human.decide(second, decision="refuse")
    third = request_approval(bench.place, first.plan_id, "please").request
    assert third.request_id not in (first.request_id, second.request_id)


def test_an_endless_reason_is_refused(bench: Bench) -> None:
    record = bench.record(PlanState.ESTIMATED)
    with pytest.raises(InvalidInput):
        request_approval(bench.place, record.plan_id, "x" * 100_000)
    assert bench.store.plan(record.plan_id).state is PlanState.ESTIMATED
