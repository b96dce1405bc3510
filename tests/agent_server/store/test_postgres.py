"""The store on a real PostgreSQL: two servers racing for one approval, and a database that cannot be used."""

import subprocess
import sys
import threading
from collections.abc import Iterator

import psycopg
import pytest

from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, Human, approved, ask, estimated_record, run_of
from tests.fakes.postgres import Postgres
from tools.domain.errors import Refused, StoreUnavailable
from tools.domain.ports import WorkKind
from tools.domain.run_state import RunState

RACES, THREADS = 10, 4

_RACER = """
import sys, threading
from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, run_of

store = SqlStore(sys.argv[1], clock=Clock())
threads_at_once = int(sys.argv[2])
store.mode
print("ready", flush=True)
for line in sys.stdin:
    plan_id, request_id = line.split()
    record = store.plan(plan_id)
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(store.consume_approval(request_id, run_of(record)).run_id))
        for _ in range(threads_at_once)
    ]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(*answers, flush=True)
store.close()
"""


@pytest.fixture
def store(postgres: Postgres, clock: Clock) -> Iterator[SqlStore]:
    made = postgres.store(clock, busy_timeout_s=10.0)
    yield made
    made.close()


@pytest.fixture
def human(store: SqlStore, clock: Clock) -> Human:
    return Human(store, clock).enroll()


def url_of(store: SqlStore) -> str:
    return store._database._url.set(drivername="postgresql").render_as_string(hide_password=False)


def edit(store: SqlStore, statement: str) -> int:
    with psycopg.connect(url_of(store)) as connection:
        return connection.execute(statement).rowcount


@pytest.mark.multiprocess
def test_two_servers_racing_for_one_approval_make_one_run(store: SqlStore, clock: Clock, human: Human) -> None:
    argv = [sys.executable, "-c", _RACER, url_of(store), str(THREADS)]
    pipe = subprocess.PIPE
    racers = [subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, bufsize=1) for _ in range(2)]
    try:
        assert [racer.stdout.readline().strip() for racer in racers if racer.stdout] == ["ready"] * 2
        for _ in range(RACES):
            record = estimated_record()
            request = approved(store, clock, human, record)
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write(f"{record.plan_id} {request.request_id}\n")
                racer.stdin.flush()
            answers = [word for racer in racers if racer.stdout for word in racer.stdout.readline().split()]
            assert len(answers) == 2 * THREADS
            assert len(set(answers)) == 1
            assert [run.run_id for run in store.runs(limit=9, plan_id=record.plan_id)] == answers[:1]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert store.problems() == []


def test_a_decision_is_made_once_however_many_decide(store: SqlStore, clock: Clock, human: Human) -> None:
    request = ask(store, clock)
    outcomes: list[str] = []

    def decide() -> None:
        try:
            human.decide(request)
            outcomes.append("decided")
        except Exception as error:
            outcomes.append(type(error).__name__)

    threads = [threading.Thread(target=decide) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("decided") == 1, outcomes
    assert store.problems() == []


def test_a_database_locked_by_somebody_is_named_and_serves_afterwards(postgres: Postgres, clock: Clock) -> None:
    store = postgres.store(clock, busy_timeout_s=0.3)
    human = Human(store, clock).enroll()
    request = approved(store, clock, human)
    record = store.plan(request.plan_id)
    with psycopg.connect(url_of(store)) as other:
        other.execute("LOCK TABLE meta, approvals IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match=r"another process holds its lock.*approvals stay closed"):
            store.consume_approval(request.request_id, run_of(record))
        other.rollback()
    kept = store.consume_approval(request.request_id, run_of(record))
    assert [run.run_id for run in store.runs(limit=9)] == [kept.run_id]
    assert store.problems() == []
    store.close()


def test_a_server_that_went_away_is_named_and_the_approval_is_good_when_it_is_back(
    postgres: Postgres, store: SqlStore, clock: Clock, human: Human
) -> None:
    request = approved(store, clock, human)
    record = store.plan(request.plan_id)
    postgres.stop()
    try:
        for act in (
            lambda: store.consume_approval(request.request_id, run_of(record)),
            lambda: SqlStore(url_of(store), clock=clock),
            lambda: human.decide(request),
        ):
            with pytest.raises(StoreUnavailable, match=r"it cannot be reached.*approvals stay closed"):
                act()
    finally:
        postgres.start()
    kept = store.consume_approval(request.request_id, run_of(record))
    assert store.run(kept.run_id) == kept
    assert store.problems() == []


def test_a_password_stands_in_no_message(clock: Clock) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        SqlStore("postgresql://app:SECRET-pw@127.0.0.1:1/forerun", clock=clock, busy_timeout_s=1.0)
    assert "SECRET" not in str(caught.value)
    assert "it cannot be reached" in str(caught.value)


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE plans SET body = replace(body, '0.01', '0.1')", "0.1"),
        ("UPDATE approvals SET body = replace(body, 'terminal', 'web')", "the decision was edited"),
        ("DELETE FROM audit WHERE sequence = 2", "link 2 is missing"),
        ("UPDATE audit SET body = replace(body, '\"alice\"', '\"mallory\"') WHERE sequence = 2", "was edited"),
        ("DELETE FROM reservations", "nothing is reserved"),
    ],
)
def test_edited_rows_launch_nothing(store: SqlStore, clock: Clock, human: Human, statement: str, named: str) -> None:
    request = approved(store, clock, human)
    record = store.plan(request.plan_id)
    assert edit(store, statement) >= 1
    with pytest.raises(Refused, match=named):
        store.consume_approval(request.request_id, run_of(record))
    assert store.runs(limit=9) == []
    assert store.problems()


def test_lists_hold_what_is_there_even_with_a_nul(store: SqlStore, clock: Clock, human: Human) -> None:
    request = approved(store, clock, human)
    run = store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    store.save_run(run.model_copy(update={"state": RunState.FAILED, "reason": "a\0b"}), expect=run.state)
    kinds: tuple[WorkKind, ...] = ("plans", "requests", "runs")
    lines = {kind: store.work(kind, limit=9) for kind in kinds}
    assert [(line.id, line.state) for line in lines["plans"]] == [(request.plan_id, "launched")]
    assert [(line.id, line.detail) for line in lines["requests"]] == [(request.request_id, request.reason)]
    assert [(line.id, line.detail) for line in lines["runs"]] == [(run.run_id, "full a\ufffdb")]
