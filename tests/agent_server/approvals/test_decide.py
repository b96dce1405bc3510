"""Decisions as the store keeps them: once, in time, by a key that counts here."""

from pathlib import Path

import pytest

from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, Human, approved, ask, estimated_record, open_store, run_of
from tools.domain.approval import AssuranceLevel
from tools.domain.errors import Refused, WrongStep
from tools.domain.plan_state import PlanState
from tools.request_approval import build_request


def test_an_expired_request_is_not_approved_and_stays_open_to_refusal(
    store: SqlStore, clock: Clock, human: Human
) -> None:
    request = ask(store, clock, ttl_s=60)
    clock.now_s += 61
    with pytest.raises(Refused, match="expired"):
        human.decide(request)
    assert store.approval(request.request_id) is None
    human.decide(request, decision="refuse")
    assert store.plan(request.plan_id).state is PlanState.REFUSED


def test_an_approval_expires_before_the_launch(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    clock.now_s = request.expires_at_s
    with pytest.raises(Refused, match="expired"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))


def test_a_clock_set_back_revives_nothing(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    open_request = ask(store, clock, estimated_record(), ttl_s=3600)
    clock.now_s = request.expires_at_s + 1
    store.append_audit(actor="server", event="seen", subject="clock", details={})
    clock.now_s = request.created_at_s + 1
    with pytest.raises(Refused, match="expired"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    with pytest.raises(Refused, match="expired"):
        human.decide(open_request)


def test_a_removed_key_decides_nothing_and_what_it_approved_launches_no_more(
    store: SqlStore, clock: Clock, human: Human
) -> None:
    request = approved(store, clock, human)
    other = ask(store, clock, estimated_record())
    store.remove_key(human.key.key_id, actor="alice")
    with pytest.raises(Refused, match="was removed"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    for decision in ("approve", "refuse"):
        with pytest.raises(Refused, match=r"removed|not enrolled"):
            human.decide(other, decision=decision)
    assert store.approval(other.request_id) is None


def test_a_key_that_nobody_enrolled_decides_nothing(store: SqlStore, clock: Clock) -> None:
    request = ask(store, clock)
    stranger = Human(store, clock, name="mallory")
    for decision in ("approve", "refuse"):
        with pytest.raises(Refused, match="not enrolled"):
            stranger.decide(request, decision=decision)
    assert store.approval(request.request_id) is None


def test_a_decided_request_is_not_decided_again(store: SqlStore, clock: Clock, human: Human) -> None:
    request = ask(store, clock)
    human.decide(request, decision="refuse")
    with pytest.raises(WrongStep, match="refused: no decision is open"):
        human.decide(request)


def test_missing_evidence_must_be_accepted_to_approve(store: SqlStore, clock: Clock, human: Human) -> None:
    request = ask(store, clock, estimated_record(not_shown=("loss_fell",)))
    with pytest.raises(Refused, match="loss_fell"):
        human.decide(request)
    human.decide(request, accept=("loss_fell",))
    store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))


def test_a_normal_store_takes_no_simulated_key_or_decision(store: SqlStore, clock: Clock, human: Human) -> None:
    request = ask(store, clock)
    actor = Human(store, clock, name="demo", level=AssuranceLevel.SIMULATED)
    with pytest.raises(Refused, match="level simulated in a normal state directory"):
        actor.enroll()
    with pytest.raises(Refused, match="level simulated in a normal state directory"):
        actor.decide(request)
    approval = human.decide(request)
    changed = approval.decision.model_copy(update={"level": AssuranceLevel.SIMULATED})
    with pytest.raises(Refused, match="level simulated"):
        store.add_decision(approval.model_copy(update={"decision": changed}), plan=store.plan(request.plan_id))
    assert store.keys() == [human.key]


def test_a_simulated_store_takes_simulated_ones_alone(tmp_path: Path, clock: Clock) -> None:
    store = open_store(tmp_path / "demo", clock, mode="simulated")
    with pytest.raises(Refused, match="level A2 in a simulated state directory"):
        Human(store, clock).enroll()
    actor = Human(store, clock, name="demo", level=AssuranceLevel.SIMULATED).enroll()
    request = approved(store, clock, actor)
    store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    store.close()


def test_an_unknown_policy_asks_for_the_strictest_level(store: SqlStore, clock: Clock, human: Human) -> None:
    record = estimated_record()
    store.add_plan(record)
    request = build_request(record, reason="", policy_version="free-for-all", now_s=clock())
    store.add_request(request, plan=record)
    with pytest.raises(Refused, match="level A2, needed is A4"):
        human.decide(request)
