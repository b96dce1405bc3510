"""A project with a small script that needs no runtime of ours, and a server on it that speaks over real pipes."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agent_server.store.sql import SqlStore
from runtime.config.plan import Ceilings, Interpreter, ProcessLayout
from runtime.snapshots.snapshot import collect
from runtime.snapshots.snapshot import store as store_code
from tests.fakes.approvals import Clock, Human, ask, estimated_record, training_plan
from tests.fakes.wire import Wire, server_argv

SCRIPT = """
import argparse, json, os, signal, struct, subprocess, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--stubborn", action="store_true")
options = parser.parse_args()
if options.stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "300"], start_new_session=True)
for step in range(1, options.steps + 1):
    print(json.dumps({"step": step, "loss": 1.0 / step}), flush=True)
    time.sleep(options.sleep)
header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
with open("checkpoint.safetensors", "wb") as handle:
    handle.write(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.0, 2.0))
"""


@dataclass
class Site:
    """A state directory and a project; servers on it, and the human of the house."""

    directory: Path
    servers: list[Wire] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.directory / "project"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    def serve(self, *, modern: bool = False) -> Wire:
        wire = Wire(server_argv(self.state, self.project), modern=modern)
        self.servers.append(wire)
        return wire

    def inputs(self, **changes: Any) -> dict[str, Any]:
        """Arguments of validate_inputs for the script."""
        return {
            "script": str(self.project / "train.py"),
            "args": ["--steps", "20"],
            "smoke_args": ["--steps", "12"],
            "python": sys.executable,
            "settings": ["num_processes=1", "device=cpu", "seed=none", "wall_time_s=300", "smoke_steps=8"],
        } | changes

    def plan(self, server: Wire, **changes: Any) -> str:
        """A valid plan's id; what is asked is answered in the user's name."""
        found = server.data("validate_inputs", **self.inputs(**changes))
        if found["state"] == "drafted":
            answers = [f"{q['id']}={q.get('proposal') or 'none'}" for q in found["questions"]]
            found = server.data("answer_questions", plan_id=found["plan_id"], answers=answers, source="user")
        assert found["state"] == "valid", found
        return str(found["plan_id"])

    def smoked(self, server: Wire, plan_id: str) -> dict[str, Any]:
        found = server.data("smoke_test", plan_id=plan_id)
        return self.ended(server, found["run_id"])

    def ended(self, server: Wire, run_id: str) -> dict[str, Any]:
        """monitor_run until the run is over."""
        deadline = time.monotonic() + 50
        while True:
            found = server.data("monitor_run", id=run_id, wait_s=20)
            if found["state"] not in ("launching", "running"):
                return found
            assert time.monotonic() < deadline, found

    def asked(self, server: Wire, plan_id: str) -> str:
        """A request for this plan, after its smoke run and estimate."""
        smoke = self.smoked(server, plan_id)
        assert smoke["smoke"]["verdict"] in ("passed", "not_shown"), smoke
        server.data("estimate_cost", plan_id=plan_id)
        return str(server.data("request_approval", plan_id=plan_id, reason="a test")["request_id"])

    def decide(self, request_id: str, *, decision: str = "approve") -> None:
        """The human's part, with the human's own key, past the server."""
        store = SqlStore(f"sqlite:///{self.state / 'forerun.db'}", clock=time.time)
        try:
            human = Human(store, Clock(time.time())).enroll()
            request = store.request(request_id)
            smoke = store.plan(request.plan_id).smoke
            assert smoke is not None
            missing = tuple(check.name for check in smoke.checks if check.outcome == "not_shown")
            human.decide(request, decision=decision, accept=missing)
        finally:
            store.close()

    def approved(self, *, args: tuple[str, ...] = ("--steps", "3")) -> str:
        """A plan that a human approved, with the evidence of a smoke run that was not made: quick, for other cases."""
        script = self.project / "train.py"
        snapshot, _ = collect(script, data_paths=[])
        store_code(snapshot, self.state / "snapshots")
        plan = training_plan(argv=args).model_copy(
            update={
                "environment": {"PATH": os.environ["PATH"]},
                "code": snapshot,
                "data": (),
                "interpreter": Interpreter(executable=sys.executable, version="3.11", packages={}),
                "layout": ProcessLayout(num_processes=1),
                "ceilings": Ceilings(wall_time_s=120),
            }
        )
        record = estimated_record(plan)
        self.state.mkdir(exist_ok=True)
        store = SqlStore(f"sqlite:///{self.state / 'forerun.db'}", clock=time.time)
        try:
            human = Human(store, Clock(time.time())).enroll()
            human.decide(ask(store, time.time, record))
        finally:
            store.close()
        return record.plan_id


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.project.mkdir()
    (made.project / "train.py").write_text(SCRIPT)
    yield made
    for server in made.servers:
        server.kill()
