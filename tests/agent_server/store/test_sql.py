"""SqlStore: records come back as they were, changes are compare-and-set, an approval is good for one run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_server.store.sql import SqlStore
from tests.fakes.approvals import (
    Clock,
    Human,
    approved,
    ask,
    cost_estimate,
    estimated_record,
    open_store,
    run_of,
    training_plan,
)
from tests.fakes.postgres import Postgres
from tools.domain.errors import Conflict, NotFound, Refused, WrongStep
from tools.domain.plan_state import PlanState
from tools.domain.ports import PastEstimate
from tools.domain.run_state import RunState


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[SqlStore]:
    """The contract holds on both."""
    if request.param == "sqlite":
        made = open_store(tmp_path, clock)
    else:
        server: Postgres = request.getfixturevalue("postgres")
        made = server.store(clock)
    yield made
    made.close()


def test_a_plan_comes_back_as_it_was(store: SqlStore) -> None:
    record = estimated_record(cost=3.25)
    store.add_plan(record)
    assert store.plan(record.plan_id) == record
    assert store.plan(record.plan_id).plan.digest == record.plan_digest  # type: ignore[union-attr]  # it has a plan


def test_what_is_not_there_is_named(store: SqlStore) -> None:
    for get in (store.plan, store.request, store.run):
        with pytest.raises(NotFound, match="nothing-here"):
            get("nothing-here")
    assert store.approval("nothing-here") is None
    assert store.request_for_plan("nothing-here") is None
    with pytest.raises(NotFound):
        store.plans(limit=5, before="nothing-here")


def test_a_plan_that_moved_on_is_not_overwritten(store: SqlStore) -> None:
    record = estimated_record().model_copy(update={"state": PlanState.SMOKED})
    store.add_plan(record)
    first = record.model_copy(update={"state": PlanState.ESTIMATED})
    store.save_plan(first, expect=PlanState.SMOKED)
    second = first.model_copy(update={"requester": "someone else"})
    with pytest.raises(Conflict, match="estimated by now, not smoked"):
        store.save_plan(second, expect=PlanState.SMOKED)
    assert store.plan(record.plan_id) == first


def test_saving_the_same_again_changes_nothing(store: SqlStore) -> None:
    record = estimated_record()
    store.add_plan(record)
    before = len(store.audit_log())
    store.save_plan(record, expect=PlanState.SMOKED)
    assert len(store.audit_log()) == before


def test_the_order_of_the_procedure_holds_in_the_store_too(store: SqlStore) -> None:
    record = estimated_record()
    store.add_plan(record)
    with pytest.raises(WrongStep):
        store.save_plan(record.model_copy(update={"state": PlanState.LAUNCHED}), expect=PlanState.ESTIMATED)


def test_lists_are_newest_first_and_continue_after_a_cursor(store: SqlStore) -> None:
    records = [estimated_record() for _ in range(5)]
    for record in records:
        store.add_plan(record)
    newest = [r.plan_id for r in reversed(records)]
    first = store.plans(limit=2)
    rest = store.plans(limit=9, before=first[-1].plan_id)
    assert [r.plan_id for r in [*first, *rest]] == newest


def test_one_open_request_a_plan(store: SqlStore, clock: Clock) -> None:
    request = ask(store, clock)
    with pytest.raises(Conflict, match="open request"):
        store.add_request(request.model_copy(update={"request_id": "req-0000000000"}), plan=store.plan(request.plan_id))
    assert store.requests(limit=9) == [request]
    assert store.request_for_plan(request.plan_id) == request
    assert store.plan(request.plan_id).state is PlanState.REQUESTED


def test_one_decision_a_request(store: SqlStore, clock: Clock, human: Human) -> None:
    request = ask(store, clock)
    approval = human.decide(request)
    with pytest.raises(Conflict, match="approve by alice"):
        store.add_decision(approval, plan=store.plan(request.plan_id))
    assert store.plan(request.plan_id).state is PlanState.APPROVED
    assert store.approval(request.request_id) == approval


def test_an_approval_is_good_for_one_run_and_repeats_return_it(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    record = store.plan(request.plan_id)
    first = store.consume_approval(request.request_id, run_of(record))
    again = store.consume_approval(request.request_id, run_of(record))
    assert first == again
    assert first.request_id == request.request_id
    assert store.plan(request.plan_id).state is PlanState.LAUNCHED
    assert [r.run_id for r in store.runs(limit=9)] == [first.run_id]


def test_a_failed_run_does_not_give_the_approval_back(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    run = store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    store.save_run(run.model_copy(update={"state": RunState.FAILED}), expect=RunState.LAUNCHING)
    again = store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    assert (again.run_id, again.state) == (run.run_id, RunState.FAILED)


def test_a_launch_that_fails_half_way_leaves_the_approval_unused(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    record = store.plan(request.plan_id)
    taken = store.add_run(run_of(record, kind="smoke"))
    links = len(store.audit_log())
    with pytest.raises(Conflict):
        store.consume_approval(request.request_id, run_of(record, run_id=taken.run_id))
    approval = store.approval(request.request_id)
    assert approval is not None
    assert approval.used_by is None
    assert len(store.audit_log()) == links
    assert store.plan(record.plan_id).state is PlanState.APPROVED
    assert store.problems() == []


def test_a_run_of_another_plan_cannot_use_the_approval(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    other = estimated_record(training_plan(argv=("--lr", "0.1")))
    with pytest.raises(Refused, match="approved is"):
        store.consume_approval(request.request_id, run_of(other))


def test_an_undecided_request_launches_nothing(store: SqlStore, clock: Clock) -> None:
    request = ask(store, clock)
    with pytest.raises(Refused, match="no human has decided"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    assert store.runs(limit=9) == []


def test_a_second_smoke_run_joins_the_open_one(store: SqlStore) -> None:
    record = estimated_record()
    store.add_plan(record)
    first = store.add_run(run_of(record, kind="smoke"))
    assert store.add_run(run_of(record, kind="smoke")) == first
    store.save_run(first.model_copy(update={"state": RunState.SUCCEEDED}), expect=RunState.LAUNCHING)
    assert store.add_run(run_of(record, kind="smoke")).run_id != first.run_id


@pytest.mark.parametrize("kind", ["full", "rerun"])
def test_only_smoke_runs_start_without_an_approval(store: SqlStore, kind: str) -> None:
    record = estimated_record()
    store.add_plan(record)
    with pytest.raises(Refused, match="without an approval"):
        store.add_run(run_of(record, kind=kind))


def test_open_runs_include_lost_ones_without_a_result(store: SqlStore) -> None:
    records = [estimated_record() for _ in range(3)]
    for record in records:
        store.add_plan(record)
    launching, lost, ended = (store.add_run(run_of(r, kind="smoke")) for r in records)
    store.save_run(lost.model_copy(update={"state": RunState.LOST}), expect=RunState.LAUNCHING)
    store.save_run(ended.model_copy(update={"state": RunState.FAILED}), expect=RunState.LAUNCHING)
    assert [r.run_id for r in store.open_runs()] == [launching.run_id, lost.run_id]


def test_a_run_does_not_come_back_to_life(store: SqlStore) -> None:
    record = estimated_record()
    store.add_plan(record)
    run = store.add_run(run_of(record, kind="smoke"))
    failed = run.model_copy(update={"state": RunState.FAILED})
    store.save_run(failed, expect=RunState.LAUNCHING)
    with pytest.raises(WrongStep):
        store.save_run(run.model_copy(update={"state": RunState.RUNNING}), expect=RunState.FAILED)
    with pytest.raises(Conflict):
        store.save_run(run.model_copy(update={"state": RunState.RUNNING}), expect=RunState.LAUNCHING)


def test_actual_costs_are_kept_once_a_run(store: SqlStore) -> None:
    record = estimated_record()
    store.add_plan(record)
    run = store.add_run(run_of(record, kind="smoke"))
    past = PastEstimate(cost_estimate(training_plan()), 88.5, None)
    store.add_actual(past, run_id=run.run_id)
    store.add_actual(PastEstimate(past.estimate, 1.0, 2), run_id=run.run_id)
    assert store.past_estimates() == [past]


def test_a_removed_key_stays_visible(store: SqlStore, clock: Clock, human: Human) -> None:
    clock.now_s += 5
    removed = store.remove_key(human.key.key_id, actor="alice")
    assert removed.removed_at_s == clock.now_s
    assert store.keys() == [removed]
    assert store.remove_key(human.key.key_id, actor="alice") == removed
    with pytest.raises(Conflict, match="known already"):
        store.add_key(human.key)


def test_every_change_leaves_a_link_in_the_audit_log(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    events = [r.event for r in store.audit_log()]
    assert events == [
        "store_created",
        "key_enrolled",
        "plan_added",
        "requested",
        "plan_saved",
        "approved",
        "reserved",
        "plan_saved",
        "approval_used",
        "reservation_taken",
        "run_added",
        "plan_saved",
    ]
    assert store.problems() == []


def test_the_latest_time_survives_a_clock_set_back(store: SqlStore, clock: Clock) -> None:
    clock.now_s += 100
    store.append_audit(actor="a", event="e", subject="s", details={})
    latest = clock.now_s
    clock.now_s -= 5000
    store.append_audit(actor="a", event="e", subject="s", details={})
    assert store.latest_time_s() == latest


def test_not_a_number_is_no_record(store: SqlStore) -> None:
    record = estimated_record(cost=float("nan"))
    with pytest.raises(Exception, match="cannot be kept as JSON"):
        store.add_plan(record)
    assert store.plans(limit=9) == []
