"""Reservations and approvals are one transaction, ends and settlements another, whoever races."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agent_server.store.sql import SqlStore
from runtime.config.order import RunResult
from tests.fakes.approvals import Clock, Human, estimated_record, run_of
from tests.fakes.policies import PRICES, apply_file, ask_by_policy, policy_text, write
from tools.domain.approval import ApprovalRequest
from tools.domain.budget import Reservation
from tools.domain.errors import Refused
from tools.domain.plan_state import PlanState
from tools.domain.run_state import RunRecord, RunState

# The plans of these tests may take 600 s on one node at 36 EUR an hour: 6 EUR, and 2 processes: 1/3 device hour.
COST = "6.00"


@pytest.fixture(autouse=True)
def rules(tmp_path: Path, human: Human) -> None:
    apply_file(human, "prices", write(tmp_path / "prices.yaml", PRICES))
    apply_file(human, "policy", write(tmp_path / "policy.yaml", budget("20")))


def budget(limit: str) -> str:
    return policy_text(budgets=f"{{day: {{cost: {limit}}}, project: null, requester: null}}")


def asked(store: SqlStore, clock: Clock) -> ApprovalRequest:
    return ask_by_policy(store, clock, estimated_record(cost=5.0))


def launched(store: SqlStore, clock: Clock, human: Human) -> RunRecord:
    request = asked(store, clock)
    human.decide(request)
    return store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))


def held(store: SqlStore, run: RunRecord) -> Reservation:
    found = store.reservation_of(run.run_id)
    assert found is not None
    return found


def end(store: SqlStore, run: RunRecord, *, elapsed_s: float, state: RunState = RunState.SUCCEEDED) -> RunRecord:
    result = RunResult(
        run_id=run.run_id,
        state=state.value,  # type: ignore[arg-type]  # an end
        reason="",
        exit_code=0,
        started_at_s=1.0,
        ended_at_s=1.0 + elapsed_s,
        elapsed_s=elapsed_s,
        disk_bytes=0,
    )
    ended = run.model_copy(update={"state": state, "result": result})
    store.save_run(ended, expect=store.run(run.run_id).state)
    return ended


def test_an_approval_reserves_the_most_and_the_end_settles_what_was_used(
    store: SqlStore, clock: Clock, human: Human
) -> None:
    request = asked(store, clock)
    assert store.reservations() == []
    human.decide(request)
    (row,) = store.reservations()
    assert (row.cost, row.currency, row.device_hours, row.run_id) == (COST, "EUR", "0.333334", None)
    assert (row.project, row.requester, row.settled) == ("/home/user/project", "agent", False)
    run = store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    assert held(store, run).run_id == run.run_id
    end(store, run, elapsed_s=100.0)
    row = held(store, run)
    assert (row.actual_cost, row.actual_device_hours) == ("1.00", "0.055556")
    assert row.basis == "measured by the supervisor"
    assert store.problems() == []


def test_a_refusal_reserves_nothing(store: SqlStore, clock: Clock, human: Human) -> None:
    human.decide(asked(store, clock), decision="refuse")
    assert store.reservations() == []


def test_a_full_budget_refuses_the_approval_and_nothing_is_decided(store: SqlStore, clock: Clock, human: Human) -> None:
    for _ in range(3):
        human.decide(asked(store, clock))
    request = asked(store, clock)
    with pytest.raises(Refused, match=r"is 20.00 EUR: 18.00 are used or reserved, this launch may cost 6.00"):
        human.decide(request)
    assert store.approval(request.request_id) is None
    assert store.plan(request.plan_id).state is PlanState.REQUESTED
    assert len(store.reservations()) == 3


def test_what_a_run_did_not_use_is_free_again(store: SqlStore, clock: Clock, human: Human) -> None:
    runs = [launched(store, clock, human) for _ in range(3)]
    with pytest.raises(Refused, match="budget"):
        human.decide(asked(store, clock))
    end(store, runs[0], elapsed_s=100.0)
    human.decide(asked(store, clock))


def test_an_approval_that_expired_unused_holds_nothing_and_cannot_launch(
    store: SqlStore, clock: Clock, human: Human
) -> None:
    old = [asked(store, clock) for _ in range(3)]
    for request in old:
        human.decide(request)
    clock.now_s += 3600
    human.decide(asked(store, clock))
    with pytest.raises(Refused, match="expired"):
        store.consume_approval(old[0].request_id, run_of(store.plan(old[0].plan_id)))


def test_tomorrow_has_a_budget_of_its_own(store: SqlStore, clock: Clock, human: Human) -> None:
    for _ in range(3):
        launched(store, clock, human)
    clock.now_s += 86_400
    human.decide(asked(store, clock))


def test_a_cost_that_is_not_known_is_refused_where_a_budget_of_cost_is_set(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human
) -> None:
    (tmp_path / "prices.yaml").write_text("edited")
    with pytest.raises(Refused, match="the cost of this launch is unknown"):
        human.decide(ask_by_policy(store, clock, estimated_record()))
    assert store.reservations() == []


@pytest.mark.parametrize(
    ("state", "elapsed_s", "cost", "words"),
    [
        (RunState.FAILED, 0.0, "0.00", "no process"),
        (RunState.CANCELLED, 0.0, "0.00", "no process"),
        (RunState.LOST, 200.0, "2.00", "no process"),
        (RunState.LOST, None, COST, "counts in full"),
        (RunState.FAILED, None, COST, "counts in full"),
    ],
)
def test_ends_without_a_result(
    store: SqlStore, clock: Clock, human: Human, state: RunState, elapsed_s: float | None, cost: str, words: str
) -> None:
    run = launched(store, clock, human)
    lost = run.model_copy(update={"state": state, "reason": "no process"})
    store.save_run(lost, expect=RunState.LAUNCHING, elapsed_s=elapsed_s)
    row = held(store, run)
    assert row.actual_cost == cost
    assert words in row.basis


def test_a_result_that_turns_up_late_is_better_evidence_and_repeated_saves_change_nothing(
    store: SqlStore, clock: Clock, human: Human
) -> None:
    run = launched(store, clock, human)
    store.save_run(run.model_copy(update={"state": RunState.LOST}), expect=RunState.LAUNCHING)
    assert held(store, run).actual_cost == COST
    ended = end(store, run, elapsed_s=50.0)
    assert held(store, run).actual_cost == "0.50"
    before = len(store.audit_log())
    clock.now_s += 5
    store.save_run(ended.model_copy(update={"reason": "looked at again"}), expect=RunState.SUCCEEDED)
    assert [r.event for r in store.audit_log()[before:]] == ["run_saved"]
    assert held(store, run).actual_cost == "0.50"


def test_a_launch_without_its_reservation_is_refused(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human
) -> None:
    request = asked(store, clock)
    human.decide(request)
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("DELETE FROM reservations")
    with pytest.raises(Refused, match="nothing is reserved"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    with pytest.raises(Refused, match=r"reservation:req-.* is in the audit log and gone"):
        human.decide(asked(store, clock))


def test_an_edited_reservation_is_noticed(tmp_path: Path, store: SqlStore, clock: Clock, human: Human) -> None:
    request = asked(store, clock)
    human.decide(request)
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("UPDATE reservations SET body = replace(body, '6.00', '0.01')")
    with pytest.raises(Refused, match=r"reservation .* was edited"):
        human.decide(asked(store, clock))
    with pytest.raises(Refused, match=r"reservation .* was edited"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))


def test_a_store_of_before_the_budgets_is_brought_up_to_date_and_keeps_its_records(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human
) -> None:
    launched(store, clock, human)
    store.close()
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("DROP TABLE reservations")
        connection.execute("DROP TABLE applied")
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
    url = f"sqlite:///{tmp_path / 'forerun.db'}"
    again = SqlStore(url, clock=clock)
    assert len(again.runs(limit=9)) == 1
    assert again.reservations() == []
    again.close()


_CHILD = """
import sys
from pathlib import Path
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from tests.fakes.approvals import Clock, Human, open_store
from tools.domain.errors import Refused

directory = Path(sys.argv[1])
clock = Clock()
store = open_store(directory, clock, busy_timeout_s=40.0)
human = Human(store, clock, private=load_pem_private_key((directory / "key.pem").read_bytes(), None))
requests = [store.request(name) for name in sys.argv[2:]]
print("ready", flush=True)
sys.stdin.readline()
for request in requests:
    try:
        human.decide(request)
        print("approved", flush=True)
    except Refused as error:
        print("budget" if "budget of the day" in str(error) else f"other:{error}".replace(" ", "_"), flush=True)
store.close()
"""


@pytest.mark.multiprocess
def test_two_processes_approving_at_once_never_exceed_the_budget(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human
) -> None:
    pem = human.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    requests = [asked(store, clock).request_id for _ in range(8)]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(tmp_path), *requests[part::2]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for part in (0, 1)
    ]
    try:
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()
        words = [word for child in children for word in child.communicate(timeout=55)[0].split()]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert sorted(words) == ["approved"] * 3 + ["budget"] * 5
    reserved = [Decimal(row.cost or "nan") for row in store.reservations()]
    assert sum(reserved) == 18 <= 20
    assert store.problems() == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from agent_server.store.ledger import Ledger
from tests.agent_server.store.test_budgets import end
from tests.fakes.approvals import Clock, Human, open_store

append = Ledger.append
def dying(self, connection, entry, *, subject):
    record = append(self, connection, entry, subject=subject)
    if entry.event == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return record
Ledger.append = dying
directory, clock = Path(sys.argv[1]), Clock()
store = open_store(directory, clock)
if sys.argv[2] == "settled":
    end(store, store.run(sys.argv[3]), elapsed_s=100.0)
else:
    human = Human(store, clock, private=load_pem_private_key((directory / "key.pem").read_bytes(), None))
    human.decide(store.request(sys.argv[3]))
"""


def killed(tmp_path: Path, event: str, subject: str) -> int:
    argv = [sys.executable, "-c", _KILLED, str(tmp_path), event, subject]
    return subprocess.run(argv, timeout=50, check=False).returncode


@pytest.mark.multiprocess
@pytest.mark.parametrize("event", ["approved", "reserved"])
def test_killed_in_mid_approval_leaves_neither_approval_nor_reservation(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human, event: str
) -> None:
    pem = human.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "key.pem").write_bytes(pem)
    request = asked(store, clock)
    assert killed(tmp_path, event, request.request_id) == -9
    assert store.approval(request.request_id) is None
    assert store.reservations() == []
    assert store.problems() == []
    human.decide(request)
    assert len(store.reservations()) == 1


@pytest.mark.multiprocess
def test_killed_in_mid_settlement_leaves_the_run_open_and_the_next_pass_settles(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human
) -> None:
    run = launched(store, clock, human)
    assert killed(tmp_path, "settled", run.run_id) == -9
    assert store.run(run.run_id).state is RunState.LAUNCHING
    assert not held(store, run).settled
    end(store, run, elapsed_s=100.0)
    assert held(store, run).actual_cost == "1.00"
    assert store.problems() == []
