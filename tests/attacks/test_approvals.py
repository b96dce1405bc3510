"""Approvals that are forged, replayed, carried elsewhere or taken twice: each is a refusal, and nothing starts."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import ElicitRequestParams, ElicitResult

from agent_server.approvals.decide import Verdict, decide
from agent_server.container import Container
from agent_server.mcp_api.server import build_server
from agent_server.procedure import Procedure
from agent_server.procedure.starting import ApprovalRequired, Started, launch_training
from agent_server.procedure.workplace import Workplace
from agent_server.reconciler import Reconciler
from agent_server.settings import Settings
from runtime.layout import RunLayout
from runtime.run_files import read_plan
from tests.fakes.approvals import Clock, Human, approved, estimated_record, open_store, run_of
from tests.fakes.bench import Bench
from tools.domain.approval import Approval, AssuranceLevel
from tools.domain.errors import Refused
from tools.domain.plan_state import PlanState
from tools.request_approval import DECISION_TYPE, decision_payload
from tools.signatures import sign


def refusal(place: Workplace, plan_id: str) -> str:
    """Why it may not launch; nothing was made for it."""
    with pytest.raises(Refused) as caught:
        launch_training(place, plan_id)
    assert place.store.runs(limit=9) == []
    assert not place.settings.runs_dir.exists() or not os.listdir(place.settings.runs_dir)
    return caught.value.what


def forged(human: Human, approval: Approval, **changes: Any) -> Approval:
    """The decision with other words, signed by this human's key."""
    decision = approval.decision.model_copy(update=changes)
    return Approval(decision=decision, envelope=sign(decision_payload(decision), DECISION_TYPE, human.private))


def test_a_decision_signed_by_a_key_that_nobody_enrolled_launches_nothing(bench: Bench) -> None:
    honest = bench.store.approval(bench.store.requests(limit=1)[0].request_id) if bench.approved() else None
    assert honest is not None
    request = bench.requested()
    mallory = Human(bench.store, bench.clock, name="mallory")
    record = bench.store.plan(request.plan_id)
    approval = forged(
        mallory,
        honest,
        request_id=request.request_id,
        request_digest=request.digest,
        plan_digest=request.plan_digest,
        key_id=mallory.key.key_id,
        approver="mallory",
    )
    bench.store.add_decision(approval, plan=record)  # what code on the account can do, past the human's door
    assert "is not enrolled" in refusal(bench.place, request.plan_id)


def test_the_approval_of_one_plan_on_the_request_of_another_launches_nothing(bench: Bench) -> None:
    first = bench.approved()
    honest = bench.store.approval(bench.store.requests(limit=1)[0].request_id)
    assert honest is not None
    request = bench.requested(argv=("--lr", "0.1"))
    moved = honest.model_copy(
        update={"decision": honest.decision.model_copy(update={"request_id": request.request_id})}
    )
    bench.store.add_decision(moved, plan=bench.store.plan(request.plan_id))
    said = refusal(bench.place, request.plan_id)
    assert "the decision was edited" in said
    assert "not the one that was decided" in said
    assert isinstance(launch_training(bench.place, first.plan_id), Started)  # the honest one is still good


def test_an_approval_of_one_argument_is_none_of_another(bench: Bench) -> None:
    approved = bench.approved()
    other = bench.record(PlanState.ESTIMATED, argv=("--lr", "0.1"))
    found = launch_training(bench.place, other.plan_id)
    assert isinstance(found, ApprovalRequired)
    assert any("argument 2: '0.01' -> '0.1'" in text for text in found.missing)
    assert bench.store.runs(limit=9) == []
    started = launch_training(bench.place, approved.plan_id)
    assert isinstance(started, Started)
    again = launch_training(bench.place, approved.plan_id)
    assert isinstance(again, Started)
    assert (again.already, again.run.run_id) == (True, started.run.run_id)


@pytest.mark.parametrize("what", ["pointed elsewhere", "changed behind the link"])
def test_a_link_in_the_code_covers_what_it_points_to(bench: Bench, tmp_path: Path, what: str) -> None:
    (tmp_path / "one.yaml").write_text("lr: 1\n")
    (tmp_path / "two.yaml").write_text("lr: 2\n")
    link = bench.project / "config.yaml"
    link.symlink_to(tmp_path / "one.yaml")
    record = bench.approved()
    if what == "pointed elsewhere":
        link.unlink()
        link.symlink_to(tmp_path / "two.yaml")
    else:
        (tmp_path / "one.yaml").write_text("lr: 3\n")
    assert "code config.yaml: content changed" in refusal(bench.place, record.plan_id)


def test_a_link_to_data_pointed_elsewhere_after_the_approval_is_refused(bench: Bench) -> None:
    data = bench.project / "data" / "train.csv"
    kept, other = data.with_name("kept.csv"), data.with_name("other.csv")
    data.rename(kept)
    other.write_text("id,label\n1,1\n2,0\n")
    data.symlink_to(kept)
    record = bench.approved()
    data.unlink()
    data.symlink_to(other)
    assert "data train" in refusal(bench.place, record.plan_id)


def test_the_servers_environment_of_today_does_not_reach_the_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    record = bench.approved()
    monkeypatch.setenv("PATH", "/evil:" + os.environ["PATH"])
    monkeypatch.setenv("LD_PRELOAD", "")
    started = launch_training(bench.place, record.plan_id)
    assert isinstance(started, Started)
    plan = read_plan(RunLayout(Path(started.run.run_dir)))
    assert plan is not None
    assert plan.environment == {"PATH": "/usr/bin:/bin"}


# -- another state directory ------------------------------------------------------------------------------------------


def place_on(bench: Bench, state: Path) -> Workplace:
    """The same workplace with FORERUN_STATE_DIR pointing elsewhere."""
    store = open_store(state, bench.clock)
    reconciler = Reconciler(store, bench.clock, launchers=lambda _: bench.launcher)
    settings = Settings(state_dir=state, keys_dir=bench.place.settings.keys_dir)
    return replace(bench.place, store=store, settings=settings, reconciler=reconciler)


def test_a_copied_state_directory_approves_and_launches_nothing(bench: Bench, tmp_path: Path) -> None:
    record, request = bench.approved(), bench.requested(argv=("--lr", "0.5"))
    copy = tmp_path / "copy"
    shutil.copytree(bench.place.settings.state_dir, copy)
    there = place_on(bench, copy)
    try:
        assert "copies approve nothing" in refusal(there, record.plan_id)
        verdict = Verdict("approve", "what was shown", "terminal", request.digest)
        human = bench.human
        with pytest.raises(Refused, match="copies approve nothing"):
            decide(
                there.store, request.request_id, verdict, key=human.key, private_key=human.private, clock=bench.clock
            )
    finally:
        there.store.close()  # type: ignore[attr-defined]  # a SqlStore
    assert isinstance(launch_training(bench.place, record.plan_id), Started)


def test_a_copy_put_in_the_place_of_a_used_one_launches_nothing(bench: Bench, tmp_path: Path) -> None:
    record = bench.approved()
    state = bench.place.settings.state_dir
    shutil.copytree(state, tmp_path / "before")
    assert isinstance(launch_training(bench.place, record.plan_id), Started)
    bench.store.close()
    state.rename(tmp_path / "used")
    (tmp_path / "before").rename(state)
    there = place_on(bench, state)
    try:
        assert "copies approve nothing" in refusal(there, record.plan_id)
    finally:
        there.store.close()  # type: ignore[attr-defined]  # a SqlStore


def test_a_simulated_directory_lends_its_approvals_to_nobody(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    demo = open_store(tmp_path / "demo", bench.clock, mode="simulated")
    actor = Human(demo, bench.clock, level=AssuranceLevel.SIMULATED).enroll()
    request = bench.requested()
    record = bench.store.plan(request.plan_id)
    demo.add_plan(record.model_copy(update={"state": PlanState.ESTIMATED}))
    asked = request.model_copy(update={"store": demo.identity})
    demo.add_request(asked, plan=record)
    simulated = actor.decide(asked)
    with pytest.raises(Refused, match="simulated"):
        bench.store.add_decision(simulated, plan=record)
    with pytest.raises(Refused, match="simulated"):
        bench.store.add_key(actor.key)
    found = launch_training(bench.place, record.plan_id)
    assert isinstance(found, ApprovalRequired)
    demo.close()


# -- a client that says yes to everything -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_client_that_accepts_every_question_approves_nothing(bench: Bench, mode: Any) -> None:
    asked: list[str] = []

    async def accept(context: Any, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approved": True, "confirm": True})

    request = bench.requested()
    container = Container(bench.store, Procedure(bench.place), bench.place.reconciler)

    async def insist() -> list[dict[str, Any]]:
        async with Client(build_server(lambda: container), mode=mode, elicitation_callback=accept) as client:
            found = []
            for arguments in ({"plan_id": request.plan_id}, {"plan_id": request.plan_id, "approved": True}):
                result = await client.call_tool("launch_training", arguments)
                found.append({"error": result.is_error, "data": result.structured_content, "text": str(result.content)})
            return found

    plain, confirmed = anyio.run(insist)
    assert asked == []  # elicitation may ask, it never approves
    assert "run_id" not in (plain["data"] or {})
    assert "no human has approved" in plain["text"]
    assert confirmed["error"]
    assert "approved" in confirmed["text"]
    assert bench.store.runs(limit=9) == []
    assert bench.store.plan(request.plan_id).state is PlanState.REQUESTED


# -- two launches at once ---------------------------------------------------------------------------------------------

_TRIES_IN_A_STORE = 10  # each launch reads the whole audit log, so a fresh one is quicker
_RACER = """
import sys
from pathlib import Path
from tests.fakes.approvals import Clock, open_store, run_of

stores = {}
print("ready", flush=True)
for line in sys.stdin:
    directory, plan_id, request_id = line.split()
    if directory not in stores:
        stores[directory] = open_store(Path(directory), Clock())
    store = stores[directory]
    run = run_of(store.plan(plan_id))
    print("set", flush=True)
    sys.stdin.readline()
    print(run.run_id, store.consume_approval(request_id, run).run_id, flush=True)
for store in stores.values():
    store.close()
"""


@dataclass
class Racers:
    """Two processes that wait for each other at every start."""

    processes: "list[subprocess.Popen[str]]"

    def say(self, text: str) -> None:
        for racer in self.processes:
            assert racer.stdin is not None
            racer.stdin.write(text + "\n")
            racer.stdin.flush()

    def hear(self) -> list[str]:
        lines = []
        for racer in self.processes:
            assert racer.stdout is not None
            lines.append(racer.stdout.readline().strip())
        return lines


@pytest.fixture
def racers() -> Iterator[Racers]:
    pipe, argv = subprocess.PIPE, [sys.executable, "-c", _RACER]
    made = Racers([subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, bufsize=1) for _ in range(2)])
    assert made.hear() == ["ready"] * 2
    yield made
    for racer in made.processes:
        racer.kill()
        racer.communicate()


def race(racers: Racers, directory: Path, tries: int) -> int:
    """Let both launch each approval at once, check that one run comes of it; how often the second won."""
    clock, second_won = Clock(), 0
    directory.mkdir()
    store = open_store(directory, clock)
    human = Human(store, clock).enroll()
    for attempt in range(tries):
        record = estimated_record()
        request = approved(store, clock, human, record)
        racers.say(f"{directory} {record.plan_id} {request.request_id}")
        assert racers.hear() == ["set"] * 2
        racers.say("go")
        (mine, kept), (yours, also_kept) = (line.split() for line in racers.hear())
        assert kept == also_kept, attempt
        assert kept in (mine, yours)
        assert [run.run_id for run in store.runs(limit=9, plan_id=record.plan_id)] == [kept]
        second_won += kept == yours
    assert len(store.runs(limit=9999)) == tries
    assert store.problems() == []
    store.close()
    return second_won


@pytest.mark.multiprocess
def test_two_launches_racing_for_one_approval_give_one_run(tmp_path: Path, racers: Racers) -> None:
    for number in range(200 // _TRIES_IN_A_STORE):
        race(racers, tmp_path / str(number), _TRIES_IN_A_STORE)


@pytest.mark.soak
@pytest.mark.multiprocess
def test_a_thousand_races_give_a_thousand_runs(tmp_path: Path, racers: Racers) -> None:
    won = [race(racers, tmp_path / str(n), _TRIES_IN_A_STORE) for n in range(1000 // _TRIES_IN_A_STORE)]
    assert 0 < sum(won) < 1000  # they did race


def test_a_run_of_ones_own_making_does_not_use_an_approval(bench: Bench) -> None:
    record = bench.approved()
    request = bench.store.request_for_plan(record.plan_id)
    assert request is not None
    foreign = run_of(bench.record(PlanState.ESTIMATED, argv=("--evil",)))
    with pytest.raises(Refused, match="the run is of plan digest"):
        bench.store.consume_approval(request.request_id, foreign)
    assert bench.store.runs(limit=9) == []
