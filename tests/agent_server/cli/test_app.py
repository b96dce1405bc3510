"""The command line as a whole: light to start, clear about what goes wrong, with exit codes that mean something."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.agent_server.cli.conftest import PASSPHRASE, Desk, end
from tests.fakes.approvals import Human, estimated_record, run_of
from tools.domain.approval import AssuranceLevel
from tools.domain.run_state import RunState

pytestmark = pytest.mark.multiprocess


def forerun(desk: Desk, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*desk.argv, *arguments], env=desk.environment, capture_output=True, text=True, timeout=40, check=False
    )


def test_the_help_loads_nothing_heavy(desk: Desk) -> None:
    code = """
import sys
sys.argv = ["forerun", "--help"]
from agent_server.cli.app import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = {"torch", "sqlalchemy", "alembic", "mcp", "cryptography", "scipy", "pyarrow"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
    for command in ("serve", "launch", "approve", "refuse", "approvals", "keys", "runs", "logs", "cancel", "wait"):
        assert command in done.stdout


def test_only_the_human_doors_know_how_to_decide() -> None:
    code = """
import sys
import agent_server.container, agent_server.mcp_api.server, agent_server.store.sql
assert "torch" not in sys.modules
assert "agent_server.approvals.decide" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=40)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("logs", "nonsense"), "is not a run id"),
        (("cancel", "run-0000000000"), "there is no run"),
        (("wait", "nonsense"), "is no id"),
        (("report", "run-0000000000"), "there is no run"),
        (("runs", "--limit", "0"), "--limit"),
        (("logs", "run-0000000000", "--stream", "x"), "'engine'"),
        (("frobnicate",), "No such command"),
    ],
)
def test_bad_input_is_one_paragraph_and_exit_code_2(desk: Desk, arguments: tuple[str, ...], said: str) -> None:
    done = forerun(desk, *arguments)
    assert done.returncode == 2, done.stderr
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_an_unusable_database_is_said_and_exit_code_1(desk: Desk) -> None:
    desk.store.close()
    (desk.root / "state" / "forerun.db").write_bytes(b"no database" * 1000)
    for suffix in ("-wal", "-shm"):
        (desk.root / "state" / f"forerun.db{suffix}").unlink(missing_ok=True)
    done = forerun(desk, "approvals")
    assert done.returncode == 1
    assert "approvals stay closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_foreign_database_url_is_bad_input(desk: Desk) -> None:
    done = subprocess.run(
        [*desk.argv, "approvals"],
        env=desk.environment | {"FORERUN_DATABASE_URL": "mysql-ish://nowhere"},
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 2
    assert "no database that forerun can use" in done.stderr


def test_requests_are_listed_with_what_became_of_them(desk: Desk) -> None:
    human = Human(desk.store, time.time).enroll()
    desk.ask(ttl_s=0)
    desk.ask(estimated_record(cost=3.5))
    human.decide(desk.ask(), decision="refuse")
    used = desk.ask()
    human.decide(used)
    run = desk.store.consume_approval(used.request_id, run_of(desk.store.plan(used.plan_id)))
    done = forerun(desk, "approvals")
    assert done.returncode == 0
    for part in ("expired", "open, expires in", "3.50 EUR", "unknown", "refused by alice (A2)", run.run_id):
        assert part in done.stdout, done.stdout


def test_runs_are_listed(desk: Desk) -> None:
    assert "no runs yet" in forerun(desk, "runs").stdout
    record = estimated_record()
    desk.store.add_plan(record)
    run = desk.store.add_run(run_of(record, kind="smoke"))
    ended = run.model_copy(update={"state": RunState.FAILED, "reason": "exit code 3\x1b[2J"})
    desk.store.save_run(ended, expect=RunState.LAUNCHING)
    done = forerun(desk, "runs")
    assert done.returncode == 0, done.stderr
    assert run.run_id in done.stdout
    assert "exit code 3\\x1b[2J" in "".join(done.stdout.split("\n"))


def test_waiting_ends_with_the_decision(desk: Desk) -> None:
    human = Human(desk.store, time.time).enroll()
    request = desk.ask()
    done = forerun(desk, "wait", request.request_id, "--timeout", "0")
    assert (done.returncode, done.stdout) == (1, f"{request.request_id} is requested\n")
    child = subprocess.Popen(
        [*desk.argv, "wait", request.request_id], env=desk.environment, stdout=subprocess.PIPE, text=True
    )
    try:
        human.decide(request)
        assert child.communicate(timeout=40)[0] == f"{request.request_id} is approved\n"
        assert child.returncode == 0
    finally:
        child.kill()
        child.wait()


def test_a_first_key_is_announced_loudly_and_can_be_removed(desk: Desk) -> None:
    child = desk.type("keys", "enroll", "--name", "alice")
    child.expect_exact("THE FIRST KEY of")
    child.expect_exact("Passphrase: ")
    child.sendline(PASSPHRASE)
    child.expect_exact("Passphrase again: ")
    child.sendline("something else")
    child.expect_exact("the two differ. 2 left")
    for prompt in ("Passphrase: ", "Passphrase again: "):
        child.expect_exact(prompt)
        child.sendline(PASSPHRASE)
    child.expect("Enrolled alice, level A2")
    assert end(child) == 0
    (key,) = desk.store.keys()
    assert key.key_id[:8] in forerun(desk, "keys", "list").stdout
    child = desk.type("keys", "remove", key.key_id[:6])
    child.expect_exact("Type the key's 8 characters")
    child.sendline(key.key_id[:8])
    child.expect_exact("Removed.")
    assert end(child) == 0
    assert "removed" in forerun(desk, "keys", "list").stdout
    assert [r.event for r in desk.store.audit_log()] == ["store_created", "key_enrolled", "key_removed"]


@pytest.mark.parametrize("arguments", [("enroll", "--name", "mallory"), ("remove", "ab")])
def test_keys_change_on_a_terminal_alone(desk: Desk, arguments: tuple[str, ...]) -> None:
    done = forerun(desk, "keys", *arguments)
    assert done.returncode == 1
    assert "a human must do this in a terminal" in done.stderr
    assert desk.store.keys() == []


def test_a_sound_audit_log_verifies_and_an_edited_one_is_named(desk: Desk) -> None:
    human = Human(desk.store, time.time).enroll()
    request = desk.ask()
    human.decide(request)
    done = forerun(desk, "audit", "verify")
    assert (done.returncode, done.stderr) == (0, "")
    assert desk.store.audit_log()[-1].hash in done.stdout
    assert f"key_enrolled {human.key.key_id[:8]} by alice" in done.stdout  # who could approve is never out of sight
    with closing(sqlite3.connect(desk.root / "state" / "forerun.db")) as connection, connection:
        connection.execute('UPDATE audit SET body = replace(body, \'"actor":"alice"\', \'"actor":"carol"\')')
        connection.execute('UPDATE approvals SET body = replace(body, \'"note":""\', \'"note":"x"\')')
    done = forerun(desk, "audit", "verify")
    assert done.returncode == 1
    assert done.stderr.startswith("link 2 (key_enrolled of"), done.stderr
    assert f"decision on {request.request_id}: the signature is of another decision" in done.stderr


def test_a_demo_directory_is_simulated_and_a_normal_one_stays_normal(desk: Desk, tmp_path: Path) -> None:
    done = forerun(desk, "init-demo", str(tmp_path / "demo"))
    assert done.returncode == 0
    assert "SIMULATED" in done.stdout
    assert f"FORERUN_STATE_DIR={tmp_path}/demo" in done.stdout
    done = forerun(desk, "init-demo", str(desk.root / "state"))
    assert done.returncode == 1
    assert "is a normal state directory" in done.stderr
    assert desk.store.mode == "normal"


def test_a_demo_key_approves_nothing_in_a_normal_directory(demo_desk: Desk, tmp_path: Path) -> None:
    demo_desk.enroll()
    assert demo_desk.store.keys()[0].level is AssuranceLevel.SIMULATED
    normal = Desk(tmp_path / "normal")
    request = normal.ask()
    child = normal.type("approve", request.request_id, FORERUN_KEYS_DIR=str(demo_desk.root / "keys"))
    child.expect_exact("no enrolled key lies in")
    assert end(child) == 1
    assert normal.store.approval(request.request_id) is None
    normal.store.close()


def test_launch_passes_everything_after_the_script_on(desk: Desk, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    done = forerun(desk, "launch", "--cpu", "--dry-run", str(script), "--help", "--", "-m", "x")
    assert done.returncode == 0, done.stderr
    assert f"{script} --help -- -m x" in done.stdout
