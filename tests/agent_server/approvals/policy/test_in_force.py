"""What counts: the signed text, unless file, row, key or signature say otherwise; then the default, and it is said."""

import hashlib
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from agent_server.approvals.apply import apply
from agent_server.approvals.policy import SHIPPED
from agent_server.approvals.policy.documents import read_document
from agent_server.approvals.policy.in_force import policy_in_force, prices_in_force
from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Clock, Human, approved, ask, estimated_record, open_store, run_of
from tests.fakes.policies import PRICES, apply_file, ask_by_policy, policy_text, write
from tools.domain.approval import Assessment, AssuranceLevel
from tools.domain.errors import InvalidInput, Refused
from tools.request_approval import build_request


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "policy.yaml", policy_text(launches_cost="[{needs: A3}]"))


@pytest.fixture
def price_file(tmp_path: Path) -> Path:
    return write(tmp_path / "prices.yaml", PRICES)


def edit_row(directory: Path, kind: str, old: str, new: str) -> None:
    with closing(sqlite3.connect(directory / "forerun.db")) as connection, connection:
        (body,) = connection.execute("SELECT body FROM applied WHERE kind = ?", (kind,)).fetchone()
        assert old in body
        connection.execute("UPDATE applied SET body = ? WHERE kind = ?", (body.replace(old, new), kind))


def test_nothing_applied_is_the_shipped_policy_and_no_prices(store: SqlStore, clock: Clock) -> None:
    policy, prices = policy_in_force(store), prices_in_force(store, now_s=clock())
    assert (policy.version, policy.notes, policy.floor) == (SHIPPED, (), None)
    assert (prices.prices, prices.version, prices.notes) == (None, "", ())


def test_a_file_that_nobody_applied_does_not_count(tmp_path: Path, store: SqlStore, clock: Clock, file: Path) -> None:
    read_document("policy", file, now_s=clock())
    assert policy_in_force(store).version == SHIPPED


def test_what_was_signed_counts_and_stands_in_the_audit_log(
    store: SqlStore, human: Human, file: Path, price_file: Path
) -> None:
    applied = apply_file(human, "policy", file)
    apply_file(human, "prices", price_file)
    policy, prices = policy_in_force(store), prices_in_force(store, now_s=human.clock())
    assert policy.version == applied.statement.version
    assert policy.version.startswith("lab-1@")
    assert policy.policy.strictest is AssuranceLevel.A3
    assert policy.notes == prices.notes == ()
    assert "signed by alice" in policy.source
    assert prices.prices is not None
    assert str(prices.prices.prices[0].amount) == "2.50"
    events = {r.event: r for r in store.audit_log()}
    assert events["policy_applied"].details["text"] == file.read_text()
    assert events["policy_applied"].actor == "alice"
    assert events["prices_applied"].details["sha256"] == hashlib.sha256(PRICES.encode()).hexdigest()
    assert store.problems() == []


def test_an_edited_policy_file_is_the_default_and_loosens_nothing(store: SqlStore, human: Human, file: Path) -> None:
    applied = apply_file(human, "policy", file)
    file.write_text(file.read_text().replace("A3", "A2"))
    found = policy_in_force(store)
    assert found.version == SHIPPED
    assert found.policy.strictest is AssuranceLevel.A2
    (note,) = found.notes
    assert applied.statement.version in note
    assert "was edited since" in note
    assert "the shipped default does" in note
    assert found.floor is not None
    assert found.floor.strictest is AssuranceLevel.A3
    apply_file(human, "policy", file)
    assert (policy_in_force(store).notes, policy_in_force(store).policy.strictest) == ((), AssuranceLevel.A2)


def test_a_file_that_is_put_back_counts_again(store: SqlStore, human: Human, file: Path) -> None:
    applied = apply_file(human, "policy", file)
    text = file.read_text()
    file.write_text(text + "# and more\n")
    assert policy_in_force(store).version == SHIPPED
    file.write_text(text)
    assert policy_in_force(store).version == applied.statement.version


def test_a_file_that_is_gone_leaves_what_was_signed_and_one_that_cannot_be_read_does_not(
    store: SqlStore, human: Human, file: Path
) -> None:
    applied = apply_file(human, "policy", file)
    file.unlink()
    found = policy_in_force(store)
    assert found.version == applied.statement.version
    assert "is gone" in found.notes[0]
    file.mkdir()
    assert policy_in_force(store).version == SHIPPED
    file.rmdir()
    file.symlink_to("x" * 300)  # no file can have this name, so nothing can be said of it
    found = policy_in_force(store)
    assert found.version == SHIPPED
    assert "cannot be looked at: File name too long" in found.notes[0]


def test_an_edited_price_file_makes_every_cost_unknown(store: SqlStore, human: Human, price_file: Path) -> None:
    apply_file(human, "prices", price_file)
    price_file.write_text(PRICES.replace("2.50", "0.01"))
    found = prices_in_force(store, now_s=human.clock())
    assert (found.prices, found.version) == (None, "")
    assert "was edited since" in found.notes[0]
    assert "every cost is unknown" in found.notes[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("needs: A3", "needs: A2"),
        ('"approver":"alice"', '"approver":"mallory"'),
        ('"level":"A2"', '"level":"A4"'),
        ('{"envelope"', '{"envelop3"'),
    ],
    ids=["text", "approver", "level", "damaged"],
)
def test_an_edited_row_is_the_default_and_is_named(
    tmp_path: Path, store: SqlStore, human: Human, file: Path, old: str, new: str
) -> None:
    apply_file(human, "policy", file)
    edit_row(tmp_path, "policy", old, new)
    found = policy_in_force(store)
    assert (found.version, found.floor) == (SHIPPED, None)
    assert "row was edited" in found.notes[0] or "row is damaged" in " ".join(found.notes)
    assert any("applied policy" in problem for problem in store.problems())


def test_a_row_and_audit_row_edited_together_still_lack_the_signature(
    tmp_path: Path, store: SqlStore, human: Human, file: Path
) -> None:
    applied = apply_file(human, "policy", file)
    forged_text = applied.text.replace("A3", "A2")
    forged = applied.model_copy(
        update={
            "text": forged_text,
            "statement": applied.statement.model_copy(
                update={"sha256": hashlib.sha256(forged_text.encode()).hexdigest()}
            ),
        }
    )
    with pytest.raises(Refused, match="signature is of another statement"):
        store.apply_document(forged)
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("UPDATE applied SET body = ?", (json.dumps(forged.model_dump(mode="json")),))
    assert policy_in_force(store).version == SHIPPED


def test_a_deleted_row_is_no_way_back_to_no_policy_unseen(
    tmp_path: Path, store: SqlStore, human: Human, file: Path
) -> None:
    apply_file(human, "policy", file)
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("DELETE FROM applied")
    found = policy_in_force(store)
    assert found.version == SHIPPED
    assert "gone from the database" in found.notes[0]


def test_an_older_signed_document_is_not_put_back(tmp_path: Path, store: SqlStore, human: Human, file: Path) -> None:
    apply_file(human, "policy", write(file, policy_text(version="old")))
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection:
        (old,) = connection.execute("SELECT body FROM applied").fetchone()
    apply_file(human, "policy", write(file, policy_text(version="new", launches_cost="[{needs: A4}]")))
    with closing(sqlite3.connect(tmp_path / "forerun.db")) as connection, connection:
        connection.execute("UPDATE applied SET body = ?", (old,))
    assert policy_in_force(store).version == SHIPPED


def test_a_removed_key_takes_its_policy_with_it(store: SqlStore, human: Human, file: Path) -> None:
    apply_file(human, "policy", file)
    store.remove_key(human.key.key_id, actor="alice")
    found = policy_in_force(store)
    assert found.version == SHIPPED
    assert "was removed: apply it again" in found.notes[0]
    with pytest.raises(Refused, match="was removed"):
        apply_file(human, "policy", file)


def test_nobody_without_an_enrolled_key_applies_anything(store: SqlStore, clock: Clock, file: Path) -> None:
    stranger = Human(store, clock, name="mallory")
    with pytest.raises(Refused, match="not enrolled"):
        apply_file(stranger, "policy", file)
    demo = Human(store, clock, name="demo", level=AssuranceLevel.SIMULATED)
    with pytest.raises(Refused, match="level simulated in a normal"):
        apply_file(demo, "policy", file)
    assert policy_in_force(store).version == SHIPPED


def test_a_simulated_store_keeps_its_own_policy(tmp_path: Path, clock: Clock, file: Path) -> None:
    store = open_store(tmp_path / "demo", clock, mode="simulated")
    human = Human(store, clock, level=AssuranceLevel.SIMULATED).enroll()
    applied = apply_file(human, "policy", file)
    assert policy_in_force(store).version == applied.statement.version
    store.close()


def test_policy_and_prices_of_two_currencies_are_refused_either_way(
    tmp_path: Path, store: SqlStore, human: Human, file: Path, price_file: Path
) -> None:
    apply_file(human, "prices", price_file)
    with pytest.raises(InvalidInput, match="the policy counts in USD, the applied prices are in EUR"):
        apply_file(human, "policy", write(file, policy_text(currency="USD")))
    apply_file(human, "policy", write(file, policy_text()))
    with pytest.raises(InvalidInput, match="the prices are in USD, the applied policy counts in EUR"):
        apply_file(human, "prices", write(tmp_path / "dollars.yaml", PRICES.replace("EUR", "USD")))
    assert policy_in_force(store).policy.currency == "EUR"
    # The way out: a policy without amounts of money, then the prices, then the policy.
    apply_file(human, "policy", write(file, policy_text(currency="null")))
    apply_file(human, "prices", tmp_path / "dollars.yaml")
    apply_file(human, "policy", write(file, policy_text(currency="USD")))
    assert policy_in_force(store).policy.currency == "USD"


def test_a_request_under_another_policy_is_refused_by_name(
    store: SqlStore, clock: Clock, human: Human, file: Path
) -> None:
    request = approved(store, clock, human)
    applied = apply_file(human, "policy", write(file, policy_text()))
    words = f"the request was made under policy {SHIPPED}, in force is {applied.statement.version}"
    with pytest.raises(Refused, match=words):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    other = ask(store, clock)
    with pytest.raises(Refused, match=words):
        human.decide(other)
    assert store.approval(other.request_id) is None


def test_an_approval_under_the_applied_policy_does_not_outlive_an_edit_of_its_file(
    store: SqlStore, clock: Clock, human: Human, file: Path
) -> None:
    version = apply_file(human, "policy", write(file, policy_text())).statement.version
    request = ask_by_policy(store, clock)
    human.decide(request)
    file.write_text(policy_text() + "\n")
    with pytest.raises(Refused, match=f"made under policy {version}, in force is {SHIPPED}.*was edited since"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    file.write_text(policy_text())
    assert store.consume_approval(request.request_id, run_of(store.plan(request.plan_id))).plan_id == request.plan_id


def test_a_level_that_the_policy_asks_for_and_no_key_has_is_refused(
    store: SqlStore, clock: Clock, human: Human, file: Path
) -> None:
    apply_file(human, "policy", file)
    request = ask_by_policy(store, clock)
    with pytest.raises(Refused, match="level A2, needed is A3"):
        human.decide(request)


def test_the_signed_digest_is_that_of_the_text_that_was_shown(store: SqlStore, human: Human, file: Path) -> None:
    document = read_document("policy", file, now_s=human.clock())
    found = apply(
        store,
        document,
        shown="all of it",
        channel="terminal",
        key=human.key,
        private_key=human.private,
        clock=human.clock,
    )
    assert found.statement.shown_digest == hashlib.sha256(b"all of it").hexdigest()


@pytest.mark.parametrize("field", ["level", "most_cost", "device_use", "why", "prices_version"])
def test_a_request_whose_assessment_says_otherwise_than_the_policy_is_refused(
    store: SqlStore, clock: Clock, human: Human, file: Path, field: str
) -> None:
    apply_file(human, "policy", write(file, policy_text(launches_devices="{free: A2, in_use: A3}")))
    wrong = {
        "level": "A4",
        "most_cost": "0.01",
        "device_use": "free",
        "why": ("A2: trust me",),
        "prices_version": "p@1",
    }
    record = estimated_record()
    honest = ask_by_policy(store, clock, record)
    assert honest.assessment is not None
    edited = Assessment.model_validate({**honest.assessment.model_dump(), field: wrong[field]})
    other = estimated_record()
    store.add_plan(other)
    request = build_request(other, reason="", policy_version=honest.policy_version, now_s=clock(), assessment=edited)
    store.add_request(request, plan=other)
    words = "in force are none" if field == "prices_version" else "one of them was edited|needed is A3"
    if field == "device_use":
        words = "one of them was edited"
    with pytest.raises(Refused, match=words):
        human.decide(request)


def test_prices_that_change_after_the_request_void_it(
    tmp_path: Path, store: SqlStore, clock: Clock, human: Human, price_file: Path
) -> None:
    apply_file(human, "prices", price_file)
    request = ask_by_policy(store, clock, estimated_record(cost=1.0))
    human.decide(request)
    now = apply_file(human, "prices", write(price_file, PRICES.replace("36.00", "3.00"))).statement.version
    with pytest.raises(Refused, match=f"made under prices .*, in force are {now}"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
    write(price_file, PRICES)
    with pytest.raises(Refused, match=r"in force are none.*was edited since"):
        store.consume_approval(request.request_id, run_of(store.plan(request.plan_id)))
