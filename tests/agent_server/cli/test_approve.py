"""`forerun approve` and `refuse` on real pseudo-terminals: what a human must type, and what decides nothing."""

import subprocess
import time

import pexpect
import pytest

from tests.agent_server.cli.conftest import PASSPHRASE, Desk, end
from tests.fakes.approvals import estimated_record, run_of, training_plan
from tools.domain.approval import AssuranceLevel
from tools.domain.plan_state import PlanState
from tools.request_approval import launch_refusals
from tools.shown_plan import short_digest

COST = "Cost, as shown"
DIGEST = "Request digest, first 8 characters: "
PASS = "Passphrase: "

pytestmark = pytest.mark.multiprocess


def assert_undecided(desk: Desk, request_id: str) -> None:
    assert desk.store.approval(request_id) is None
    assert desk.store.plan(desk.store.request(request_id).plan_id).state is PlanState.REQUESTED


def test_the_whole_way_gives_an_approval_that_launches_once(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask(estimated_record(cost=12.5))
    child = desk.type("approve", request.request_id)
    child.expect_exact("A2: a terminal and a passphrase on this account; not tamper-proof")
    child.expect_exact("train.py of /home/user/project")
    child.expect_exact("12.50")
    child.expect_exact(f"short: {short_digest(request)}")
    child.expect_exact(COST)
    child.sendline("12.50")
    child.expect_exact(DIGEST)
    child.sendline(short_digest(request))
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    child.expect("is approved by alice, level A2")
    assert end(child) == 0
    approval = desk.store.approval(request.request_id)
    assert approval is not None
    assert (approval.decision.decision, approval.decision.level) == ("approve", AssuranceLevel.A2)
    record = desk.store.plan(request.plan_id)
    key = desk.store.keys()[0]
    assert launch_refusals(record, request, approval, key, now_s=time.time()) == []
    run = desk.store.consume_approval(request.request_id, run_of(record))
    assert desk.store.consume_approval(request.request_id, run_of(record)).run_id == run.run_id
    shown = [r for r in desk.store.audit_log() if r.event == "shown"]
    assert [r.details["shown_digest"] for r in shown] == [approval.decision.shown_digest]
    assert desk.store.problems() == []


def test_an_unknown_cost_is_typed_as_the_word(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.expect_exact(COST)
    child.sendline("0")
    child.expect_exact("that is not what is shown above. 2 left")
    child.expect_exact(COST)
    child.sendline("unknown")
    child.expect_exact(DIGEST)
    child.sendline(short_digest(request))
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    child.expect("is approved")
    assert end(child) == 0


def test_missing_evidence_is_accepted_by_name_alone(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask(estimated_record(not_shown=("loss_fell", "checkpoint_loads")))
    child = desk.type("approve", request.request_id)
    child.expect_exact("NOT_SHOWN")
    child.expect_exact(COST)
    child.sendline("unknown")
    child.expect_exact(DIGEST)
    child.sendline(short_digest(request))
    child.expect_exact("(loss_fell): ")
    child.sendline("yes")
    child.expect_exact("(loss_fell): ")
    child.sendline("loss_fell")
    child.expect_exact("(checkpoint_loads): ")
    child.sendline("checkpoint_loads")
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    assert end(child) == 0
    approval = desk.store.approval(request.request_id)
    assert approval is not None
    assert approval.decision.accepted_not_shown == ("loss_fell", "checkpoint_loads")


@pytest.mark.parametrize("answer", ["", "00000000"])
def test_three_wrong_digests_decide_nothing(desk: Desk, answer: str) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.expect_exact(COST)
    child.sendline("unknown")
    for _ in range(3):
        child.expect_exact(DIGEST)
        child.sendline(answer)
    child.expect_exact("Nothing was decided")
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


def test_three_wrong_passphrases_decide_nothing(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.expect_exact(COST)
    child.sendline("unknown")
    child.expect_exact(DIGEST)
    child.sendline(short_digest(request))
    for _ in range(3):
        child.expect_exact(PASS)
        child.sendline("wrong horse battery")
    child.expect_exact("Nothing was decided")
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


@pytest.mark.parametrize(
    ("prompt", "key"), [(COST, "\x04"), (COST, "\x03"), (PASS, "\x04")], ids=["at once", "Ctrl-C", "at the passphrase"]
)
def test_leaving_decides_nothing(desk: Desk, prompt: str, key: str) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.expect_exact(COST)
    if prompt == PASS:
        child.sendline("unknown")
        child.expect_exact(DIGEST)
        child.sendline(short_digest(request))
        child.expect_exact(PASS)
    child.send(key)
    child.expect_exact("Nothing was decided")
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


def test_a_closed_terminal_decides_nothing(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.expect_exact(COST)
    child.close()
    assert_undecided(desk, request.request_id)


def test_answers_typed_ahead_do_not_count(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.send(f"unknown\n{short_digest(request)}\n{PASSPHRASE}\n")
    child.expect_exact(COST)
    child.send("\x04")
    child.expect_exact("Nothing was decided")
    assert DIGEST not in child.before, "an early answer was taken for the first question"
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


@pytest.mark.parametrize("verb", ["approve", "refuse"])
def test_a_pipe_is_no_terminal(desk: Desk, verb: str) -> None:
    desk.enroll()
    request = desk.ask()
    answers = f"unknown\n{short_digest(request)}\n{PASSPHRASE}\n"
    done = subprocess.run(
        [*desk.argv, verb, request.request_id],
        input=answers,
        env=desk.environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "stdin or stdout is a pipe" in done.stderr
    assert "Traceback" not in done.stderr
    assert_undecided(desk, request.request_id)


def test_a_redirected_output_on_a_terminal_is_refused(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask()
    command = f"{' '.join(desk.argv)} approve {request.request_id} > {desk.root}/out"
    child = pexpect.spawn("/bin/sh", ["-c", command], env=desk.environment, timeout=30, encoding="utf-8")  # type: ignore[arg-type]  # the stub wants os._Environ
    child.expect_exact("stdin or stdout is a pipe")
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


@pytest.mark.parametrize("variable", ["CLAUDECODE", "FORERUN_RUN"])
def test_an_agents_environment_is_refused(desk: Desk, variable: str) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("approve", request.request_id, **{variable: "1"})
    child.expect_exact(f"this looks like an agent's shell ({variable} in the environment)")
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


def test_no_key_means_no_approval(desk: Desk) -> None:
    request = desk.ask()
    child = desk.type("approve", request.request_id)
    child.expect_exact("no enrolled key lies in")
    child.expect_exact("forerun keys enroll")
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


def test_an_expired_request_cannot_be_approved(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask(ttl_s=0)
    child = desk.type("approve", request.request_id)
    child.expect_exact("the approval request expired")
    assert end(child) == 1
    assert_undecided(desk, request.request_id)


def test_a_refusal_is_signed_and_launches_nothing(desk: Desk) -> None:
    desk.enroll()
    request = desk.ask()
    child = desk.type("refuse", request.request_id)
    child.expect_exact("Reason for refusing: ")
    child.sendline("too dear")
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    child.expect("is refused by alice")
    assert end(child) == 0
    record = desk.store.plan(request.plan_id)
    assert record.state is PlanState.REFUSED
    approval = desk.store.approval(request.request_id)
    key = desk.store.keys()[0]
    assert "alice refused it: too dear" in launch_refusals(record, request, approval, key, now_s=time.time())
    again = desk.type("approve", request.request_id)
    again.expect_exact("is not open")
    assert end(again) == 1


@pytest.mark.parametrize(("text", "said"), [("req-nonsense", "is not a req id"), ("req-0000000000", "there is no")])
def test_a_wrong_id_is_bad_input(desk: Desk, text: str, said: str) -> None:
    desk.enroll()
    child = desk.type("approve", text)
    child.expect_exact(said)
    assert end(child) == 2


def test_hostile_text_in_a_request_is_shown_as_escapes(desk: Desk) -> None:
    desk.enroll()
    record = estimated_record().model_copy(update={"requester": "agent\x1b[2J\x1b[1;1H\u202eevil"})
    request = desk.ask(record)
    child = desk.type("approve", request.request_id)
    child.expect_exact("Asked by: agent\\x1b[2J\\x1b[1;1H\\u202eevil")
    child.expect_exact(COST)
    child.send("\x03")
    assert end(child) == 1


def test_a_simulated_approval_says_so_even_in_an_agents_shell(demo_desk: Desk) -> None:
    demo_desk.enroll()
    request = demo_desk.ask()
    child = demo_desk.type("approve", request.request_id, CLAUDECODE="1")
    child.expect_exact("SIMULATED")
    child.expect_exact(COST)
    child.sendline("unknown")
    child.expect_exact(DIGEST)
    child.sendline(short_digest(request))
    child.expect_exact(PASS)
    child.sendline(PASSPHRASE)
    child.expect("level simulated")
    assert end(child) == 0
    record = demo_desk.store.plan(request.plan_id)
    approval = demo_desk.store.approval(request.request_id)
    key = demo_desk.store.keys()[0]
    refusals = launch_refusals(record, request, approval, key, now_s=time.time())
    assert refusals == ["the decision has level simulated, needed is A2"]
    assert demo_desk.store.consume_approval(request.request_id, run_of(record)).kind == "full"


def test_a_key_that_somebody_else_enrolled_is_seen_before_anything_is_approved(desk: Desk) -> None:
    desk.enroll()
    desk.enroll("mallory")
    own, other = desk.store.keys()
    request = desk.ask()
    child = desk.type("approve", request.request_id, "--key", own.key_id[:8])
    child.expect_exact(f"*** NEW KEY *** can approve here: mallory ({other.key_id[:8]}), enrolled")
    child.expect_exact("If nobody of yours enrolled it, approve nothing")
    child.expect_exact(COST)
    child.sendcontrol("d")
    assert end(child) == 1
    (shown,) = [r.details["text"] for r in desk.store.audit_log() if r.event == "shown"]
    assert "mallory" in shown
    assert_undecided(desk, request.request_id)
    child = desk.type("keys", "enroll", "--name", "eve")
    child.expect_exact("*** ANOTHER KEY *** This store knows already: alice")
    child.sendcontrol("c")
    assert end(child) != 0


def test_what_changed_since_the_last_approved_plan_is_shown_first(desk: Desk) -> None:
    desk.enroll()
    first = desk.ask(estimated_record(cost=12.5))
    child = desk.type("approve", first.request_id)
    for prompt, answer in ((COST, "12.50"), (DIGEST, short_digest(first)), (PASS, PASSPHRASE)):
        child.expect_exact(prompt)
        child.sendline(answer)
    assert end(child) == 0
    other = estimated_record(training_plan(argv=("--lr", "0.5")))
    second = desk.ask(other.model_copy(update={"base_plan_id": None}))
    child = desk.type("approve", second.request_id)
    child.expect_exact(f"Changed against plan {first.plan_id}, the last that was approved")
    child.expect_exact("argument 2: '0.01' -> '0.5'")
    child.expect_exact("Script:")
