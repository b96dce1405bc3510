"""Whoever edits the database by hand is found out, by name, and nothing launches on it."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agent_server.store.chain import first_break
from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, Human, approved, run_of
from tools.domain.approval import ApprovalRequest
from tools.domain.errors import Refused, StoreUnavailable


@pytest.fixture
def request_(store: SqlStore, clock: Clock, human: Human) -> ApprovalRequest:
    return approved(store, clock, human)


@contextmanager
def editing(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        yield connection


def edit_body(tmp_path: Path, table: str, old: str, new: str) -> None:
    with editing(tmp_path) as connection:
        changed = connection.execute(
            f"UPDATE {table} SET body = replace(body, ?, ?) WHERE instr(body, ?)", (old, new, old)
        )
        assert changed.rowcount


def launch(store: SqlStore, request: ApprovalRequest) -> None:
    store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))


@pytest.mark.parametrize(
    ("table", "old", "new", "named"),
    [
        ("plans", '"0.01"', '"0.1"', "0.1"),
        ("plans", '"wall_time_s":600', '"wall_time_s":6000', "ceilings"),
        ("plans", '"value":90', '"value":9', "wall_time_s changed"),
        ("plans", '"losses":[2.3,1.1]', '"losses":[2.3,0.1]', "smoke result is not the one"),
        ("plans", '"requester":"agent"', '"requester":"alice"', "plan plan-[a-z0-9]+ was edited"),
        ("requests", '"0.01"', '"0.1"', "edited since"),
        ("requests", '"reason":"the smoke', '"reason":"The smoke', "edited since"),
        ("approvals", '"channel":"terminal"', '"channel":"web"', "the decision was edited"),
        ("approvals", '"decision":"approve"', '"decision":"refuse"', "refused it"),
        ("keys", '"approver":"alice"', '"approver":"mallory"', "belongs to another approver"),
        ("audit", '"event":"approved"', '"event":"Approved"', "was edited: its hash does not fit"),
    ],
)
def test_an_edited_row_is_named_and_launches_nothing(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest, table: str, old: str, new: str, named: str
) -> None:
    edit_body(tmp_path, table, old, new)
    with pytest.raises(Refused, match=named):
        launch(store, request_)
    assert store.runs(limit=9) == []
    assert store.problems()


def test_an_expiry_moved_by_hand_does_not_revive_the_approval(
    store: SqlStore, clock: Clock, tmp_path: Path, request_: ApprovalRequest
) -> None:
    old = json.dumps(int(request_.expires_at_s))
    edit_body(tmp_path, "requests", f'"expires_at_s":{old}', f'"expires_at_s":{int(old) + 90_000}')
    clock.now_s = request_.expires_at_s + 10
    with pytest.raises(Refused, match="edited since"):
        launch(store, request_)


def test_a_used_approval_reset_by_hand_is_not_used_again(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest
) -> None:
    launch(store, request_)
    with editing(tmp_path) as connection:
        connection.execute("UPDATE approvals SET used_by = NULL, body = json_remove(body, '$.used_by')")
        connection.execute("UPDATE plans SET state='approved', body = json_set(body, '$.state', 'approved')")
    with pytest.raises(Refused, match=r"decision req-[a-z0-9]+ was edited"):
        launch(store, request_)
    assert len(store.runs(limit=9)) == 1


@pytest.mark.parametrize("event", ["key_enrolled", "approved"])
def test_a_removed_audit_row_is_named_and_launches_nothing(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest, event: str
) -> None:
    with editing(tmp_path) as connection:
        assert connection.execute("DELETE FROM audit WHERE instr(body, ?)", (f'"event":"{event}"',)).rowcount == 1
    with pytest.raises(Refused, match=r"link [0-9]+ is missing"):
        launch(store, request_)
    assert any("is missing" in problem for problem in store.problems())


def test_a_cut_off_end_of_the_log_stops_every_change(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest
) -> None:
    with editing(tmp_path) as connection:
        connection.execute("DELETE FROM audit WHERE sequence = (SELECT max(sequence) FROM audit)")
    assert any("its recorded end is link" in problem for problem in store.problems())
    with pytest.raises(Refused, match="recorded end"):
        launch(store, request_)
    with pytest.raises(StoreUnavailable, match="removed or edited"):
        store.append_audit(actor="a", event="e", subject="s", details={})


def test_a_row_that_no_audit_row_speaks_of_is_named(store: SqlStore, tmp_path: Path, human: Human) -> None:
    with editing(tmp_path) as connection:
        connection.execute("INSERT INTO keys (key_id, body) SELECT 'z' || substr(key_id, 2), body FROM keys")
    assert any("has no audit row" in problem for problem in store.problems())


def test_a_record_that_vanished_is_named(store: SqlStore, tmp_path: Path, request_: ApprovalRequest) -> None:
    with editing(tmp_path) as connection:
        connection.execute("DELETE FROM approvals")
    assert any("gone from the database" in problem for problem in store.problems())


def test_a_store_relabelled_as_simulated_is_named(store: SqlStore, tmp_path: Path) -> None:
    with editing(tmp_path) as connection:
        connection.execute("UPDATE meta SET value = 'simulated' WHERE name = 'mode'")
    assert any("created normal and now says simulated" in problem for problem in store.problems())


def test_a_row_that_is_no_record_is_damage_not_a_crash(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest
) -> None:
    with editing(tmp_path) as connection:
        connection.execute("UPDATE plans SET body = '{}'")
    with pytest.raises(StoreUnavailable, match="damaged"):
        store.plan(request_.plan_id)


def test_links_in_another_order_break_the_chain(store: SqlStore, request_: ApprovalRequest) -> None:
    log = list(store.audit_log())
    assert first_break(log) is None
    log[2], log[3] = log[3], log[2]
    assert "is missing" in str(first_break(log))
    forged = log[0].model_copy(update={"details": {"mode": "simulated"}})
    assert "was edited" in str(first_break([forged]))
