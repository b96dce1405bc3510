"""A launch reads what is new in the audit log; what was verified before is believed from memory, never from edits."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, event

from agent_server.store import integrity
from agent_server.store.ledger import Entry
from agent_server.store.sql import SqlStore
from agent_server.store.verified import VerifiedLog
from tests.fakes.approvals import Clock, Human, approved, run_of
from tools.domain.approval import ApprovalRequest
from tools.domain.errors import Refused


@contextmanager
def editing(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        yield connection


def launch(store: SqlStore, request: ApprovalRequest) -> str:
    return store.consume_approval(request.request_id, run_of(store.plan(request.plan_id))).run_id


@pytest.fixture
def long(store: SqlStore) -> SqlStore:
    """The store, whose log counts as long from the start."""
    store._memory = type(store._memory)(VerifiedLog(always_whole=0), store._memory.reservations)
    return store


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many links each look at the log has read."""
    found: list[int] = []
    take = VerifiedLog._take

    def counting(self: VerifiedLog, rows: Any) -> list[str]:
        every = list(rows)
        found.append(len(every))
        return take(self, every)

    monkeypatch.setattr(VerifiedLog, "_take", counting)
    return found


def test_many_launches_read_each_link_about_twice(
    long: SqlStore, clock: Clock, human: Human, rows_read: list[int]
) -> None:
    for _ in range(40):
        launch(long, approved(long, clock, human))
    links = len(long.audit_log())
    assert links > 300
    assert sum(rows_read) < 4 * links, "not quadratic: whole again only when it has doubled"
    assert max(rows_read[-5:]) < 30


def test_no_statement_of_a_launch_reads_a_whole_table(long: SqlStore, clock: Clock, human: Human) -> None:
    for _ in range(3):
        launch(long, approved(long, clock, human))
    request = approved(long, clock, human)
    with long._database.read() as connection:
        assert long._memory.log.catch_up(connection, whole=True) == []
    plans: list[str] = []

    def explain(connection: Any, _cursor: Any, text: str, parameters: Any, *_: Any) -> None:
        if text.startswith("SELECT"):
            raw = connection.connection.driver_connection
            rows = raw.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall()
            plans.extend(f"{row[-1]} <- {text[:90]}" for row in rows)

    event.listen(Engine, "before_cursor_execute", explain)
    try:
        launch(long, request)
        long.latest_time_s()
    finally:
        event.remove(Engine, "before_cursor_execute", explain)
    scans = [line for line in plans if line.startswith("SCAN") and "count(" not in line and "keys" not in line]
    assert plans
    assert scans == []


def test_new_links_are_verified_in_a_long_log(long: SqlStore, tmp_path: Path, clock: Clock, human: Human) -> None:
    for _ in range(3):
        launch(long, approved(long, clock, human))
    request = approved(long, clock, human)
    with editing(tmp_path) as connection:
        last = '(SELECT max(sequence) FROM audit WHERE instr(body, \'"event":"approved"\'))'
        connection.execute(f"UPDATE audit SET body = replace(body, 'A2', 'A4') WHERE sequence = {last}")
    with pytest.raises(Refused, match="was edited"):
        launch(long, request)


@pytest.mark.parametrize("table", ["plans", "requests", "approvals", "keys"])
def test_a_record_edited_together_with_its_old_link_launches_nothing_in_a_long_log(
    long: SqlStore, tmp_path: Path, clock: Clock, human: Human, table: str
) -> None:
    """The links of before are not read again: what they say by now does not matter."""
    launch(long, approved(long, clock, human))
    request = approved(long, clock, human)
    with long._database.read() as connection:
        assert integrity.problems(connection, only=(), verified=long._memory.log) == []
    edited = {"plans": "requester", "requests": "reason", "approvals": "envelope", "keys": "approver"}[table]
    with editing(tmp_path) as connection:
        for key, body in connection.execute(f"SELECT rowid, body FROM {table}").fetchall():
            changed = body.replace(f'"{edited}":', f'"{edited}": ', 1)
            old, new = integrity.body_digest(body), integrity.body_digest(changed)
            assert old != new
            connection.execute(f"UPDATE {table} SET body = ? WHERE rowid = ?", (changed, key))
            connection.execute("UPDATE audit SET body = replace(body, ?, ?)", (old, new))
    with pytest.raises(Refused, match=r"was edited after its last audit row|was edited: its hash does not fit"):
        launch(long, request)
    assert long.problems()


def test_a_row_taken_out_of_a_long_log_is_noticed(long: SqlStore, tmp_path: Path, clock: Clock, human: Human) -> None:
    launch(long, approved(long, clock, human))
    request = approved(long, clock, human)
    with editing(tmp_path) as connection:
        connection.execute("DELETE FROM audit WHERE sequence = 3")
    with pytest.raises(Refused, match="link 3 is missing"):
        launch(long, request)


def test_a_change_that_was_rolled_back_is_forgotten(long: SqlStore, clock: Clock, human: Human) -> None:
    launch(long, approved(long, clock, human))

    def broken_off() -> None:
        with long._database.write() as connection:
            long._ledger.append(connection, Entry("test", "never_committed"), subject="never")
            assert integrity.problems(connection, only=(), verified=long._memory.log) == []
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken_off()
    assert "never" in long._memory.log.first
    launch(long, approved(long, clock, human))
    assert "never" not in long._memory.log.first
    assert long.problems() == []
