"""`forerun policy` and `forerun prices` on real pseudo-terminals: nothing counts before a human signed it there."""

import hashlib
import re
import subprocess
import time
from pathlib import Path

import pytest

from agent_server.approvals.policy import SHIPPED
from agent_server.approvals.policy.in_force import policy_in_force, prices_in_force, shipped_text
from tests.agent_server.cli.conftest import PASSPHRASE, Desk, end
from tests.fakes.approvals import estimated_record, run_of
from tests.fakes.policies import PRICES, ask_by_policy, policy_text, write
from tools.domain.approval import AssuranceLevel
from tools.domain.plan_state import PlanState
from tools.shown_plan import short_digest

DIGEST = "Digest of the file, first 8 characters: "
PASS = "Passphrase: "

pytestmark = pytest.mark.multiprocess


@pytest.fixture
def file(desk: Desk) -> Path:
    return write(desk.root / "policy.yaml", policy_text())


def short(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def run(desk: Desk, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*desk.argv, *arguments], env=desk.environment, capture_output=True, text=True, timeout=40, check=False
    )


def apply(desk: Desk, kind: str, path: Path) -> None:
    child = desk.type(kind, "apply", str(path))
    child.expect_exact(DIGEST)
    child.sendline(short(path))
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    child.expect("counts from now on, signed by alice, level A2")
    assert end(child) == 0


def test_the_ceremony_shows_the_whole_file_and_what_changes_and_leaves_a_signed_row(desk: Desk, file: Path) -> None:
    desk.enroll()
    child = desk.type("policy", "apply", str(file))
    child.expect_exact("A2: a terminal and a passphrase on this account; not tamper-proof")
    child.expect_exact("APPLYING POLICY lab-1@")
    child.expect_exact("version: lab-1")
    child.expect_exact("-version: shipped-1")
    child.expect_exact("+version: lab-1")
    child.expect_exact(f"short: {short(file)}")
    child.expect_exact(DIGEST)
    child.sendline(short(file))
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    child.expect("counts from now on")
    assert end(child) == 0
    found = policy_in_force(desk.store)
    assert found.version.startswith("lab-1@")
    shown = [r for r in desk.store.audit_log() if r.event == "shown"]
    document = desk.store.applied("policy").document
    assert document is not None
    assert [r.details["shown_digest"] for r in shown] == [document.statement.shown_digest]
    assert desk.store.problems() == []
    assert run(desk, "audit", "verify").returncode == 0


@pytest.mark.parametrize("answer", ["", "00000000", "yes"])
def test_three_wrong_digests_apply_nothing(desk: Desk, file: Path, answer: str) -> None:
    desk.enroll()
    child = desk.type("policy", "apply", str(file))
    for _ in range(3):
        child.expect_exact(DIGEST)
        child.sendline(answer)
    child.expect_exact("Nothing was decided")
    assert end(child) == 1
    assert desk.store.applied("policy").document is None


def test_a_wrong_passphrase_applies_nothing(desk: Desk, file: Path) -> None:
    desk.enroll()
    child = desk.type("policy", "apply", str(file))
    child.expect_exact(DIGEST)
    child.sendline(short(file))
    for _ in range(3):
        child.expect_exact(PASS)
        child.sendline("wrong horse battery")
    child.expect_exact("Nothing was decided")
    assert end(child) == 1
    assert desk.store.applied("policy").document is None


@pytest.mark.parametrize("kind", ["policy", "prices"])
def test_a_pipe_an_agents_shell_and_no_key_apply_nothing(desk: Desk, file: Path, kind: str) -> None:
    path = file if kind == "policy" else write(desk.root / "prices.yaml", PRICES)
    child = desk.type(kind, "apply", str(path))
    child.expect_exact("no enrolled key lies in")
    assert end(child) == 1
    desk.enroll()
    done = subprocess.run(
        [*desk.argv, kind, "apply", str(path)],
        input=f"{short(path)}\n{PASSPHRASE}\n",
        env=desk.environment,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "stdin or stdout is a pipe" in done.stderr
    child = desk.type(kind, "apply", str(path), CLAUDECODE="1")
    child.expect_exact("this looks like an agent's shell")
    assert end(child) == 1
    assert desk.store.applied(kind).document is None  # type: ignore[arg-type]  # one of the two words


def test_a_malformed_file_is_exit_code_2_on_check_and_apply_and_changes_nothing(desk: Desk, file: Path) -> None:
    desk.enroll()
    apply(desk, "policy", file)
    version = policy_in_force(desk.store).version
    bad = write(desk.root / "bad.yaml", policy_text(currency="EURO", launches_cost="[{up_too: 3, needs: A9}]"))
    before = len(desk.store.audit_log())
    for verb in ("check", "apply"):
        done = run(desk, "policy", verb, str(bad))
        assert done.returncode == 2
        assert done.stdout == ""
        for words in (
            "line 3: currency: 'EURO'",
            "did you mean EUR",
            "there is no such key; did you mean up_to?",
            "allowed: A2, A3 or A4",
        ):
            assert words in done.stderr
        assert "Traceback" not in done.stderr
    prices = write(desk.root / "prices.yaml", PRICES.replace("2.50", "-1").replace("36.00", ".nan"))
    for verb in ("check", "apply", "show"):
        done = run(desk, "prices", verb, str(prices))
        assert done.returncode == 2
        assert "line 5: prices[1].amount" in done.stderr
        assert "line 6: prices[2].amount" in done.stderr
    assert run(desk, "policy", "check", str(desk.root / "none.yaml")).returncode == 2
    assert policy_in_force(desk.store).version == version
    assert len(desk.store.audit_log()) == before


def test_another_currency_is_exit_code_2(desk: Desk, file: Path) -> None:
    desk.enroll()
    apply(desk, "policy", file)
    prices = write(desk.root / "prices.yaml", PRICES.replace("EUR", "USD"))
    for verb in ("check", "apply"):
        done = run(desk, "prices", verb, str(prices))
        assert done.returncode == 2
        assert "the prices are in USD, the applied policy counts in EUR" in done.stderr
    assert desk.store.applied("prices").document is None


def test_check_says_what_would_change_and_applies_nothing(desk: Desk, file: Path) -> None:
    done = run(desk, "policy", "check", str(file))
    assert done.returncode == 0
    assert "nothing wrong found" in done.stdout
    assert "+version: lab-1" in done.stdout
    assert "does not count before" in done.stdout
    assert policy_in_force(desk.store).version == SHIPPED


def test_explain_shows_the_shipped_file_and_warns_of_an_edited_one(desk: Desk, file: Path) -> None:
    done = run(desk, "policy", "explain")
    assert done.returncode == 0
    assert f"Policy {SHIPPED}: shipped with forerun" in done.stdout
    assert all(line in done.stdout for line in shipped_text().splitlines())
    desk.enroll()
    apply(desk, "policy", file)
    assert "Policy lab-1@" in run(desk, "policy", "explain").stdout
    file.write_text(file.read_text() + "# more\n")
    done = run(desk, "policy", "explain")
    assert "WARNING: the applied policy lab-1@" in done.stdout
    assert "was edited since" in done.stdout
    assert f"Policy {SHIPPED}" in done.stdout


def test_explain_says_why_a_plan_needs_its_level_and_how_full_the_budgets_are(desk: Desk, file: Path) -> None:
    desk.enroll()
    write(
        file,
        policy_text(
            launches_cost="[{up_to: 5, needs: A2}, {needs: A3}]",
            budgets="{day: {cost: 100}, project: null, requester: null}",
        ),
    )
    apply(desk, "policy", file)
    record = estimated_record(cost=1.0)
    desk.store.add_plan(record)
    done = run(desk, "policy", "explain", record.plan_id)
    assert done.returncode == 0
    assert f"Plan {record.plan_id} (estimated) needs A3, because" in done.stdout
    assert "A3: cost unknown (no price list counts), so the strictest row counts" in done.stdout
    apply(desk, "prices", write(desk.root / "prices.yaml", PRICES))
    done = run(desk, "policy", "explain", record.plan_id)
    assert "A3: cost at most 6.00 EUR (more than all bounds)" in done.stdout
    assert "The estimate was made under other prices" in done.stdout
    assert re.search(r"Budget of the day .*: 0.00 of 100.00 EUR used, this adds 6.00", done.stdout)
    for wrong, code in (("plan-nonsense", 2), ("plan-0000000000", 2)):
        assert run(desk, "policy", "explain", wrong).returncode == code


def test_prices_show_what_counts_with_unit_source_and_age(desk: Desk) -> None:
    assert "no price list was applied; costs are unknown" in run(desk, "prices", "show").stdout
    desk.enroll()
    path = write(desk.root / "prices.yaml", PRICES)
    shown = run(desk, "prices", "show", str(path)).stdout
    assert "not applied by this command" in shown
    assert prices_in_force(desk.store, now_s=time.time()).prices is None
    apply(desk, "prices", path)
    shown = run(desk, "prices", "show").stdout
    assert re.search(r"device cuda: 2.50 EUR per device hour, contract 17 \(as of 2026-01-01, \d+ days old\)", shown)
    assert "signed by alice" in shown
    path.write_text(PRICES.replace("2.50", "0.01"))
    shown = run(desk, "prices", "show").stdout
    assert "every cost is unknown" in shown
    assert "was edited since" in shown


def test_hostile_text_in_a_file_is_shown_as_escapes(desk: Desk) -> None:
    desk.enroll()
    path = write(desk.root / "prices.yaml", PRICES.replace("contract 17", '"c\\e[2J\u202e17"') + "# \u202egnp\n")
    child = desk.type("prices", "apply", str(path))
    child.expect_exact("\\u202egnp")
    child.expect_exact(DIGEST)
    assert "\u202e" not in child.before
    child.send("\x03")
    assert end(child) == 1


def test_an_approver_sees_policy_level_reasons_and_budgets_and_approves_under_them(desk: Desk, file: Path) -> None:
    desk.enroll()
    apply(desk, "prices", write(desk.root / "prices.yaml", PRICES))
    apply(desk, "policy", write(file, policy_text(budgets="{day: {cost: 10}, project: null, requester: null}")))
    requests = [ask_by_policy(desk.store, time.time, estimated_record(cost=1.0)) for _ in range(2)]
    outcomes = []
    for request in requests:
        child = desk.type("approve", request.request_id)
        child.expect_exact("Policy: lab-1@")
        child.expect_exact("At most: 6.00 EUR, 0.333334 device hours")
        child.expect_exact("Level needed: A2, because")
        child.expect_exact("A2: cost at most 6.00 EUR (any amount)")
        child.expect("Budget of the day .*: (0|6).00 of 10.00 EUR used, this adds 6.00")
        child.expect_exact("Cost, as shown")
        child.sendline("1.00")
        child.expect_exact("Request digest, first 8 characters: ")
        child.sendline(short_digest(request))
        child.expect_exact(PASS)
        child.sendline(PASSPHRASE)
        outcomes.append(child.expect(["is approved by alice", "is 10.00 EUR: 6.00 are used or reserved"]))
        assert end(child) == outcomes[-1]
    assert outcomes == [0, 1]
    assert desk.store.plan(requests[1].plan_id).state is PlanState.REQUESTED
    kept = desk.store.consume_approval(requests[0].request_id, run_of(desk.store.plan(requests[0].plan_id)))
    done = run(desk, "runs")
    assert kept.run_id in done.stdout
    assert "1 runs" in done.stdout


def test_a_request_of_another_policy_is_refused_before_anything_is_typed(desk: Desk, file: Path) -> None:
    desk.enroll()
    request = desk.ask()
    apply(desk, "policy", file)
    child = desk.type("approve", request.request_id)
    child.expect_exact(f"the request was made under policy {SHIPPED}, in force is lab-1@")
    assert end(child) == 1
    assert desk.store.approval(request.request_id) is None


def test_a_demo_keeps_its_own_signed_policy(demo_desk: Desk) -> None:
    demo_desk.enroll()
    path = write(demo_desk.root / "policy.yaml", policy_text())
    child = demo_desk.type("policy", "apply", str(path), CLAUDECODE="1")
    child.expect_exact("SIMULATED")
    child.expect_exact(DIGEST)
    child.sendline(short(path))
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    child.expect("level simulated")
    assert end(child) == 0
    document = demo_desk.store.applied("policy").document
    assert document is not None
    assert document.statement.level is AssuranceLevel.SIMULATED
