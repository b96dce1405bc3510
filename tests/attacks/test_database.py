"""Whoever writes to the database past the server: each field of each table, and a chain that was forged throughout."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_server.store.chain import GENESIS, seal
from agent_server.store.sql import SqlStore
from runtime.errors import ForerunError
from tests.fakes.approvals import Clock, Human, cost_estimate, run_of, training_plan
from tests.fakes.policies import apply_file, ask_by_policy, policy_text, write
from tools.domain.approval import ApprovalRequest, AuditRecord
from tools.domain.errors import Refused
from tools.domain.ports import PastEstimate

KEYS = {
    "plans": "plan_id",
    "requests": "request_id",
    "approvals": "request_id",
    "keys": "key_id",
    "reservations": "reservation_id",
    "audit": "sequence",
    "runs": "run_id",
    "actuals": "run_id",
    "applied": "kind",
}
GATES = ("plans", "requests", "approvals", "keys", "reservations", "audit")  # what a launch looks at


@contextmanager
def editing(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        yield connection


def launch(store: SqlStore, request: ApprovalRequest) -> str:
    return store.consume_approval(request.request_id, run_of(store.plan(request.plan_id))).run_id


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of everything in a JSON value that holds no more."""
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path


def changed(value: Any, path: tuple[str | int, ...]) -> Any:
    """A copy with another value of the same kind at the path."""
    copy = json.loads(json.dumps(value))
    place = copy
    for step in path[:-1]:
        place = place[step]
    old = place[path[-1]]
    if isinstance(old, bool):
        place[path[-1]] = not old
    elif isinstance(old, int | float):
        place[path[-1]] = old + 1
    elif isinstance(old, str):
        place[path[-1]] = old[:-1] + ("0" if old[-1] != "0" else "1") if old else "x"
    else:
        place[path[-1]] = "x" if old is None else ["x"]
    return copy


def put(tmp_path: Path, table: str, key: object, body: str) -> None:
    with editing(tmp_path) as connection:
        connection.execute(f"UPDATE {table} SET body = ? WHERE {KEYS[table]} = ?", (body, key))


def refusal(act: Callable[[], object]) -> str:
    """What it was refused with; empty if it was not."""
    try:
        act()
    except ForerunError as error:
        return error.what
    return ""


@pytest.fixture
def request_(store: SqlStore, clock: Clock, human: Human, tmp_path: Path) -> ApprovalRequest:
    """An approved request in a store that has something in every table."""
    apply_file(human, "policy", write(tmp_path / "policy.yaml", policy_text()))
    launch(store, decided(store, clock, human))
    past = PastEstimate(cost_estimate(training_plan()), 80.0, 10**9)
    store.add_actual(past, run_id=store.runs(limit=1)[0].run_id)
    return decided(store, clock, human)


def decided(store: SqlStore, clock: Clock, human: Human) -> ApprovalRequest:
    request = ask_by_policy(store, clock)
    human.decide(request)
    return request


@pytest.mark.parametrize("table", sorted(KEYS))
def test_every_field_of_every_record_is_covered(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest, table: str
) -> None:
    assert store.problems() == []
    enrolled = store.keys()
    own = {request_.request_id, request_.plan_id, enrolled[0].key_id}
    with editing(tmp_path) as connection:
        rows = connection.execute(f"SELECT {KEYS[table]}, body FROM {table}").fetchall()
    assert rows
    num_fields = 0
    for key, body in rows:
        for path in leaves(json.loads(body)):
            put(tmp_path, table, key, json.dumps(changed(json.loads(body), path)))
            where = f"{table}.{'.'.join(map(str, path))}"
            if table != "audit":  # there a launch reads the whole chain, as problems does
                assert refusal(store.problems) or store.problems(), where
            if table in GATES and (table == "audit" or key in own):
                assert len(refusal(lambda: launch(store, request_))) > 15, where
            put(tmp_path, table, key, body)
            num_fields += 1
    assert num_fields >= 3
    assert store.problems() == []
    assert launch(store, request_)  # put back, nothing was lost


def rewrite(tmp_path: Path, edit: Callable[[list[AuditRecord]], list[AuditRecord]]) -> None:
    """An edited log whose numbers, hashes and recorded end all fit again: what somebody can do who knows the format."""
    with editing(tmp_path) as connection:
        bodies = connection.execute("SELECT body FROM audit ORDER BY sequence").fetchall()
        previous, sealed = GENESIS, []
        for number, record in enumerate(edit([AuditRecord.model_validate_json(b) for (b,) in bodies]), 1):
            record = record.model_copy(update={"sequence": number, "previous": previous, "hash": ""})
            record = record.model_copy(update={"hash": seal(record)})
            previous = record.hash
            sealed.append(record)
        connection.execute("DELETE FROM audit")
        for record in sealed:
            row = (record.sequence, record.time_s, record.subject, record.model_dump_json())
            connection.execute("INSERT INTO audit (sequence, time_s, subject, body) VALUES (?, ?, ?, ?)", row)
        end = f"{sealed[-1].sequence}:{sealed[-1].hash}"
        connection.execute("UPDATE meta SET value = ? WHERE name = 'audit_head'", (end,))


def decided_at(store: SqlStore, request: ApprovalRequest) -> int:
    return next(r.sequence for r in store.audit_log() if r.subject == f"decision:{request.request_id}")


def test_any_row_before_the_last_signature_removed_is_noticed_even_in_a_forged_chain(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest
) -> None:
    whole = store.audit_log()
    for removed in range(1, decided_at(store, request_)):
        rewrite(tmp_path, lambda log, gone=removed: [r for r in log if r.sequence != gone])  # type: ignore[misc]  # bound now
        with pytest.raises(Refused) as caught:
            launch(store, request_)
        assert "signed the decision" in caught.value.what, removed
        assert "rows were removed or rewritten" in caught.value.what
        rewrite(tmp_path, lambda _: list(whole))
    assert store.problems() == []
    assert launch(store, request_)


def test_a_row_before_the_last_signature_rewritten_is_noticed_even_in_a_forged_chain(
    store: SqlStore, tmp_path: Path, request_: ApprovalRequest
) -> None:
    def blame_another(log: list[AuditRecord]) -> list[AuditRecord]:
        return [r.model_copy(update={"actor": "nobody"}) if r.event == "key_enrolled" else r for r in log]

    rewrite(tmp_path, blame_another)
    with pytest.raises(Refused, match="rows were removed or rewritten"):
        launch(store, request_)
