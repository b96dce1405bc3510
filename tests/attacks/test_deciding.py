"""Whoever works on what the human sees: it is about what is signed, whole, and compared with what was approved."""

import sqlite3
from contextlib import closing

import pexpect
import pytest

from agent_server.procedure.asking import request_approval
from agent_server.procedure.comparing import since_approved
from agent_server.procedure.starting import Started, launch_training
from runtime.config.plan import Ceilings
from tests.agent_server.cli.conftest import PASSPHRASE, Desk, desk, end
from tests.fakes.approvals import START_S, estimated_record, training_plan
from tests.fakes.bench import Bench
from tests.fakes.policies import apply_file, policy_text, write
from tools.domain.approval import ApprovalRequest
from tools.domain.plan_state import PlanState
from tools.request_approval import build_request, shown_text
from tools.shown_plan import short_digest

__all__ = ["desk"]

COLUMNS = 60
PRICES = "{currency: EUR, source: contract 17, as_of: 2026-01-01, prices: [{amount: 0.10, per: node_hour}]}\n"
FREE = "{max_cost: 1.00, max_device_hours: 5, max_per_day: 5}"


def exchange(desk: Desk, request: ApprovalRequest) -> None:
    """Put another request under the same id, and the plan with it, as code on the account can."""
    plan = training_plan(argv=("--lr", "0.9", "--evil"))
    forged = request.model_copy(update={"plan": plan, "plan_digest": plan.digest})
    record = desk.store.plan(request.plan_id)
    assert record.smoke is not None
    assert record.estimate is not None
    smoke = record.smoke.model_copy(update={"plan_digest": plan.digest})
    estimate = record.estimate.model_copy(update={"plan_digest": plan.digest})
    forged = forged.model_copy(update={"smoke_digest": smoke.digest, "estimate": estimate})
    changes = {"plan": plan, "plan_digest": plan.digest, "smoke": smoke, "estimate": estimate}
    rows = {
        "requests": forged.model_dump_json(),
        "plans": record.model_copy(update=changes).model_dump_json(),
    }
    with closing(sqlite3.connect(desk.root / "state" / "forerun.db")) as connection, connection:
        for table, body in rows.items():
            connection.execute(f"UPDATE {table} SET body = ? WHERE plan_id = ?", (body, request.plan_id))


@pytest.mark.multiprocess
def test_a_request_exchanged_while_the_human_types_is_not_signed(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.expect_exact("--lr 0.01")
    child.expect_exact("Cost, as shown")
    child.sendline("unknown")
    child.expect_exact("Request digest, first")
    child.sendline(short_digest(request))
    child.expect_exact("Passphrase: ")
    exchange(desk, request)
    child.sendline(PASSPHRASE)
    child.expect_exact("another one than the text was about")
    assert end(child) == 1
    assert desk.store.approval(request.request_id) is None
    assert desk.store.plan(request.plan_id).state is PlanState.REQUESTED


@pytest.mark.multiprocess
def test_a_long_line_begins_no_line_of_its_own_on_the_terminal(desk: Desk) -> None:
    """Words that are padded to the width of the terminal would look like a line of ours."""
    desk.enroll()
    forged = "Cost:   0.00 EUR"
    record = estimated_record(training_plan(argv=(" " * 3 * COLUMNS + forged, "x" * 5 * COLUMNS)))
    padded = "harmless".ljust(COLUMNS - len("Asked by: ")) + forged.ljust(COLUMNS) * 2
    request = desk.ask(record.model_copy(update={"requester": padded}))
    child = pexpect.spawn(
        desk.argv[0],
        [*desk.argv[1:], "approve", request.request_id],
        env=desk.environment,  # type: ignore[arg-type]  # the stub wants os._Environ
        timeout=30,
        encoding="utf-8",
        dimensions=(20, COLUMNS),
    )
    desk.children.append(child)
    child.expect_exact("Cost, as shown")
    rows = str(child.before).split("\r\n")
    child.sendcontrol("d")
    assert end(child) == 1
    text = rows[:-1]
    assert max(map(len, text)) <= COLUMNS  # the terminal wraps nothing by itself
    assert [row for row in text if row.startswith("Cost:")] == ["Cost:   unknown"]
    assert sum(row.startswith("  ...> ") and forged in row for row in text) >= 3
    assert any("lines, 20 are in sight: scroll up" in row for row in " ".join(text).split("The text above")[-1:])


def test_a_launch_that_nobody_approved_is_not_shown_as_the_last_approved_plan(bench: Bench) -> None:
    """Else a change is smuggled past the human: launch it small and free, then ask for the same, only longer."""
    honest = bench.approved()
    assert isinstance(launch_training(bench.place, honest.plan_id), Started)
    absent = f"{{absent: A2, present: A2, paths_without: [{bench.project / 'data'}]}}"
    policy = policy_text(free_tier=FREE, launches_personal_data=absent)
    apply_file(bench.human, "prices", write(bench.project.parent / "prices.yaml", PRICES))
    apply_file(bench.human, "policy", write(bench.project.parent / "policy.yaml", policy))
    evil = ("--lr", "0.01", "--evil")
    free = bench.record(PlanState.ESTIMATED, argv=evil, cost=0.01)
    assert isinstance(launch_training(bench.place, free.plan_id), Started)
    longer = bench.plan(argv=evil).model_copy(update={"ceilings": Ceilings(wall_time_s=60_000)})
    found = since_approved(bench.store, bench.put(longer))
    assert found is not None
    assert found[0] == honest.plan_id
    assert any("--evil" in line for line in found[1])


def test_many_plans_made_since_do_not_hide_the_last_approved_one(bench: Bench) -> None:
    honest = bench.approved()
    plan = bench.plan()
    for seed in range(120):
        bench.put(plan.model_copy(update={"seed": seed + 2}))
    record = bench.record(PlanState.ESTIMATED, argv=("--lr", "0.5"))
    assert since_approved(bench.store, record) == (honest.plan_id, ("argument 2: '0.01' -> '0.5'",))
    request = request_approval(bench.place, record.plan_id, "").request
    assert "Approved before: no plan of this script" in shown_text(record, request, spec=None, differences=())


@pytest.mark.parametrize(
    ("word", "spelt"),
    [
        ("tr\u0430in", "tr\\u0430in"),
        ("admin\u03bf", "admin\\u03bf"),
        ("\uff41dmin", "\\uff41dmin"),
        ("\u00dcbung", None),
        ("\u0442\u0440\u0430", None),
    ],
)
def test_letters_that_look_like_others_are_named_before_the_digests(word: str, spelt: str | None) -> None:
    record = estimated_record(training_plan(argv=("--config", f"/data/{word}.yaml")))
    request = build_request(record, reason="", policy_version="p", now_s=START_S)
    lines = shown_text(record, request, spec=None, differences=()).splitlines()
    (line,) = [line for line in lines if line.startswith("Words with letters of several alphabets: ")]
    assert lines.index(line) == len(lines) - 3
    assert line.endswith(": none") if spelt is None else f"WARNING: {spelt} may be read" in line
