"""Whoever sets the clock: back, or far ahead and then right again. An approval lasts no longer for it."""

import pytest

from agent_server.store.sql import SqlStore
from tests.fakes.approvals import START_S, Clock, Human, approved, run_of
from tools.domain.approval import ApprovalRequest
from tools.domain.errors import Refused

YEARS_S = 3e9


def launch(store: SqlStore, request: ApprovalRequest) -> str:
    return store.consume_approval(request.request_id, run_of(store.plan(request.plan_id))).run_id


def once_ahead(store: SqlStore, clock: Clock) -> None:
    """Something was written while the clock was wrong; then it was set right."""
    clock.now_s = START_S + YEARS_S
    store.append_audit(actor="server", event="note", subject="x", details={})
    clock.now_s = START_S


def test_after_a_clock_far_ahead_approvals_still_expire(store: SqlStore, clock: Clock, human: Human) -> None:
    once_ahead(store, clock)
    late, early = (approved(store, lambda: max(clock(), store.latest_time_s()), human) for _ in range(2))  # type: ignore[arg-type]  # called alone
    clock.now_s += 3599
    assert launch(store, early)
    clock.now_s += 2
    with pytest.raises(Refused, match="it expired: it was asked for 60 min ago by the clock"):
        launch(store, late)


def test_an_approval_asked_for_while_the_clock_was_far_ahead_is_refused(
    store: SqlStore, clock: Clock, human: Human
) -> None:
    clock.now_s = START_S + YEARS_S
    request = approved(store, clock, human)
    clock.now_s = START_S
    with pytest.raises(Refused, match="min behind the time of the request: set it right"):
        launch(store, request)
    clock.now_s = START_S + YEARS_S
    assert launch(store, request)


def test_a_clock_set_back_a_little_changes_nothing(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    clock.now_s -= 200
    assert launch(store, request)
