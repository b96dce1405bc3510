"""Bench: a workplace with the real store, real snapshots, and a launcher whose supervisor is the test."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from agent_server.procedure.asking import request_approval
from agent_server.procedure.workplace import Workplace
from agent_server.reconciler import Reconciler
from agent_server.settings import Settings
from agent_server.store.sql import SqlStore
from runtime.config.plan import Ceilings, DataFile, Interpreter, ProcessLayout, SmokeSettings, TrainingPlan
from runtime.snapshots.data_manifest import data_digest
from runtime.snapshots.snapshot import collect
from runtime.snapshots.snapshot import store as store_code
from tests.fakes.approvals import Clock, Human, cost_estimate, open_store, smoke_result
from tests.fakes.launcher import TestLauncher
from tools.domain.approval import ApprovalRequest
from tools.domain.ids import new_id
from tools.domain.paths import AllowedRoots
from tools.domain.plan_state import PlanRecord, PlanState


@dataclass
class Bench:
    """The workplace, and the hands of everybody around it."""

    place: Workplace
    store: SqlStore
    clock: Clock
    launcher: TestLauncher
    human: Human
    project: Path

    def plan(
        self, *, argv: tuple[str, ...] = ("--lr", "0.01"), sweep: tuple[tuple[str, ...], ...] = ()
    ) -> TrainingPlan:
        """A settled plan for the project as it is now; its code lies in the snapshot store."""
        data = self.project / "data" / "train.csv"
        snapshot, _ = collect(self.project / "train.py", data_paths=[data])
        store_code(snapshot, self.place.settings.snapshots_dir)
        size, digest, mode = data_digest(data)
        return TrainingPlan(
            argv=sweep[0] if sweep else argv,
            sweep=sweep,
            environment={"PATH": "/usr/bin:/bin"},
            code=snapshot,
            data=(DataFile(role="train", path=str(data), size_bytes=size, sha256=digest, mode=mode),),
            interpreter=Interpreter(executable=sys.executable, version="3.11", packages={}),
            layout=ProcessLayout(num_processes=2),
            seed=1,
            smoke=SmokeSettings(args=("--small",)),
            evaluation=None,
            ceilings=Ceilings(wall_time_s=600),
        )

    def record(
        self,
        state: PlanState = PlanState.VALID,
        *,
        argv: tuple[str, ...] = ("--lr", "0.01"),
        sweep: tuple[tuple[str, ...], ...] = (),
        cost: float | None = None,
    ) -> PlanRecord:
        """A stored plan in this state (up to `estimated`), with the evidence that belongs to it."""
        return self.put(self.plan(argv=argv, sweep=sweep), state, cost=cost)

    def put(
        self, plan: TrainingPlan, state: PlanState = PlanState.ESTIMATED, *, cost: float | None = None
    ) -> PlanRecord:
        """Store this plan in this state (up to `estimated`), with the evidence that belongs to it.

        Args:
            cost: of the estimate, in EUR; None is unknown.
        """
        tried = state in (PlanState.SMOKED, PlanState.ESTIMATED)
        record = PlanRecord(
            plan_id=new_id("plan"),
            state=state,
            requester="agent",
            created_at_s=self.clock(),
            plan=plan,
            plan_digest=plan.digest,
            smoke=smoke_result(plan) if tried else None,
            estimate=cost_estimate(plan, cost=cost) if state is PlanState.ESTIMATED else None,
        )
        self.store.add_plan(record)
        return record

    def requested(self, *, argv: tuple[str, ...] = ("--lr", "0.01")) -> ApprovalRequest:
        return request_approval(self.place, self.record(PlanState.ESTIMATED, argv=argv).plan_id, "it is time").request

    def approved(self) -> PlanRecord:
        """A plan that the human approved."""
        request = self.requested()
        self.human.decide(request)
        return self.store.plan(request.plan_id)


def make_bench(directory: Path) -> Bench:
    """A project with a script, a module and a data file, and a store beside it."""
    project = directory / "project"
    (project / "data").mkdir(parents=True)
    (project / "train.py").write_text("import model\n")
    (project / "model.py").write_text("LAYERS = 2\n")
    (project / "data" / "train.csv").write_text("id,label\n1,0\n2,1\n")
    clock = Clock(time.time())
    state = directory / "state"
    state.mkdir()
    store = open_store(state, clock)
    launcher = TestLauncher()
    place = Workplace(
        store=store,
        settings=Settings(state_dir=state, keys_dir=directory / "keys"),
        roots=AllowedRoots.of([project]),
        clock=clock,
        reconciler=Reconciler(store, clock, launchers=lambda _: launcher),
        launchers=lambda _: launcher,
        claim_wait_s=0.2,
    )
    return Bench(place, store, clock, launcher, Human(store, clock).enroll(), project)
