"""The whole procedure through the SDK's client over stdio: our runtime's script, and one that knows nothing of it."""

import csv
import hashlib
import json
import math
import re
from pathlib import Path

import anyio
import pytest
from mcp import Client

from agent_server.settings import load_settings
from agent_server.store.sql import SqlStore
from examples.demo_agent import Agent
from examples.demo_tasks import diabetes_project, digits_project
from tools.domain.plan_state import PlanState
from tools.domain.run_state import RunState

MOST_CALLS = 15
MOST_TOKENS = 15_000
STEPS = [
    "environment",
    "inputs",
    "smoke",
    "estimate",
    "gate",
    "request",
    "approval",
    "launch",
    "ended",
    "verification",
    "report",
]
WALKS = {"digits": (digits_project, "auto"), "trainer_style": (diabetes_project, "legacy")}

pytestmark = pytest.mark.multiprocess


@pytest.fixture(scope="module", params=sorted(WALKS))
def done(request, workplace, walk_through):
    task, mode = WALKS[request.param]
    return walk_through(workplace, task, mode)


@pytest.fixture
def store(done):
    settings = load_settings(state_dir=done.place.human.state_dir, keys_dir=done.place.human.keys_dir)
    store = SqlStore(settings.url, clock=lambda: 0.0)
    yield store
    store.close()


def test_every_step_is_taken_once_and_in_order(done) -> None:
    assert [step for step in done.steps if step not in ("progress", "answers")] == STEPS
    assert len(done.tools) == 15


def test_few_calls_and_few_tokens(done) -> None:
    print(f"{done.agent.num_calls} calls, {done.agent.num_waits} waits, {done.agent.tokens} tokens")
    assert done.agent.num_calls <= MOST_CALLS
    assert done.agent.tokens <= MOST_TOKENS


def test_smoke_run_passed_on_all_its_evidence(done, store) -> None:
    smoke = store.plan(done.walked.results["launch"]["plan_id"]).smoke
    assert smoke is not None
    assert {check.name: check.outcome for check in smoke.checks} == dict.fromkeys(
        ("ran_to_end", "steps_seen", "loss_finite", "loss_fell", "checkpoint_loads"), "passed"
    )
    assert smoke.losses[-1] < smoke.losses[0]


def test_launch_waited_for_a_human_and_used_the_approval_up(done, store) -> None:
    results = done.walked.results
    assert results["gate"]["status"] == "approval_required"
    assert "run_id" not in results["gate"]
    approval = store.approval(results["request"]["request_id"])
    assert approval is not None
    assert (approval.decision.decision, approval.decision.level.value) == ("approve", "simulated")
    assert approval.used_by == done.walked.run_id
    assert store.plan(results["launch"]["plan_id"]).state is PlanState.LAUNCHED


def test_human_saw_the_plan_that_ran(done, store) -> None:
    shown = done.walked.results["approval"]["shown"]
    plan = store.plan(done.walked.results["launch"]["plan_id"])
    assert "SIMULATED" in shown
    assert plan.plan_digest in shown
    assert all(file.path in shown for file in plan.plan.data)


def test_run_succeeded_as_the_approved_plan_and_left_nothing_behind(done, store) -> None:
    run = store.run(done.walked.run_id)
    assert run.state is RunState.SUCCEEDED
    assert run.result is not None
    assert run.result.survivors == ()
    assert run.plan_digest == store.plan(run.plan_id).plan_digest == store.request(run.request_id).plan_digest


def test_verified_values_are_those_of_the_predictions(done) -> None:
    verification = done.walked.results["verification"]
    wanted = column(done.project / "data" / "holdout.csv", "label")
    run_dir = done.place.run_dir(done.walked.run_id)
    (path,) = [p for p in run_dir.rglob("predictions.csv") if "code" not in p.parts]
    predicted = column(path, "prediction")
    assert predicted.keys() == wanted.keys()
    own = {
        "accuracy": lambda: sum(predicted[i] == wanted[i] for i in wanted) / len(wanted),
        "mae": lambda: sum(abs(predicted[i] - wanted[i]) for i in wanted) / len(wanted),
        "rmse": lambda: math.sqrt(sum((predicted[i] - wanted[i]) ** 2 for i in wanted) / len(wanted)),
    }
    assert verification["verdict"] == "verified"
    for metric in verification["metrics"]:
        assert metric["n"] == len(wanted)
        assert metric["value"] == pytest.approx(own[metric["name"]](), rel=1e-3)
        assert metric["low"] < metric["value"] < metric["high"]
    constant = "majority" if "accuracy" in {m["name"] for m in verification["metrics"]} else "mean"
    assert {row["baseline"] for row in verification["comparisons"]} == {constant, "linear"}
    better = next(row for row in verification["comparisons"] if row["baseline"] == constant)
    assert better["p_adjusted"] < 0.01


def test_report_is_complete_and_signed(done) -> None:
    report = done.walked.results["report"]
    page = Path(report["html_path"]).read_text()
    assert "simulated" in page.lower()
    assert report["not_verified"], "a report without a list of what was not verified"
    assert not report.get("unsupported"), "the summary quotes the server's numbers alone"
    checked = done.place.forerun("report", done.walked.run_id, "--verify")
    assert checked.returncode == 0, checked.stderr


def test_every_claim_leads_to_a_file_a_line_and_its_digest(done) -> None:
    report = json.loads(Path(done.walked.results["report"]["json_path"]).read_text())
    claims = report["predicate"]["forerun_report"]["claims"]
    named = {claim["id"] for claim in claims}
    assert {f"metric:{metric['name']}" for metric in done.walked.results["verification"]["metrics"]} <= named
    smoke_dir = done.place.run_dir(done.walked.results["smoke"]["run_id"])
    for claim in claims:
        assert claim["evidence"], claim["id"]
        for evidence in claim["evidence"]:
            if evidence.startswith("report/report.json:approval "):
                continue  # it points into this very document
            found = re.fullmatch(r"(.+):(\d+|all) sha256:([0-9a-f]{64})", evidence)
            assert found, evidence
            name, line, digest = found.groups()
            root, inside = (
                (smoke_dir, name[6:])
                if name.startswith("smoke/")
                else (
                    done.place.run_dir(done.walked.run_id),
                    name,
                )
            )
            content = (root / inside).read_bytes()
            assert hashlib.sha256(content).hexdigest() == digest, evidence
            assert line == "all" or 1 <= int(line) <= content.count(b"\n"), evidence


def test_report_check_notices_a_changed_byte_in_each_of_its_files(done) -> None:
    files = sorted(Path(done.walked.results["report"]["html_path"]).parent.iterdir())
    assert {"report.html", "report.json", "report.md"} < {path.name for path in files}
    for path in files:
        original = path.read_bytes()
        place = len(original) // 2
        try:
            path.write_bytes(original[:place] + bytes([original[place] ^ 1]) + original[place + 1 :])
            checked = done.place.forerun("report", done.walked.run_id, "--verify")
            assert checked.returncode != 0, f"{path.name} was changed and nobody noticed"
        finally:
            path.write_bytes(original)


def test_launching_again_from_a_new_server_gives_the_same_run(done) -> None:
    async def again() -> dict[str, object]:
        with anyio.fail_after(50):
            async with Client(done.place.server, mode="auto") as client:
                plan_id = done.walked.results["launch"]["plan_id"]
                return await Agent(client).call("launch_training", plan_id=plan_id)

    result = anyio.run(again)
    assert (result["run_id"], result["already_launched"]) == (done.walked.run_id, True)


def test_approving_needs_a_terminal(done) -> None:
    refused = done.place.forerun("approve", done.walked.results["request"]["request_id"])
    assert refused.returncode != 0
    assert "terminal" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_audit_chain_holds(done) -> None:
    checked = done.place.forerun("audit", "verify")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def column(path: Path, name: str) -> dict[str, float]:
    with path.open(newline="") as handle:
        return {row["id"]: float(row[name]) for row in csv.DictReader(handle)}
