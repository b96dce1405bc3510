"""Records for tests of store and approvals: a plan that went through smoke run and estimate, and a human with a key."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent_server.approvals.decide import Verdict, decide
from agent_server.approvals.policy import SHIPPED
from agent_server.store.sql import SqlStore
from runtime.config.plan import (
    Ceilings,
    CodeFile,
    CodeSnapshot,
    DataFile,
    Interpreter,
    ProcessLayout,
    SmokeSettings,
    TrainingPlan,
)
from tools.domain.approval import Approval, ApprovalRequest, ApproverKey, AssuranceLevel
from tools.domain.ids import new_id
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.ports import StoreMode
from tools.domain.reports import CostEstimate, Interval, SmokeCheck, SmokeResult
from tools.domain.run_state import RunRecord, RunState
from tools.request_approval import build_request, missing_evidence
from tools.signatures import key_id, public_pem

START_S = 1_800_000_000.0


@dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    now_s: float = START_S

    def __call__(self) -> float:
        return self.now_s


def training_plan(*, argv: tuple[str, ...] = ("--lr", "0.01"), code: str = "a" * 64) -> TrainingPlan:
    return TrainingPlan(
        argv=argv,
        environment={"PATH": "/usr/bin"},
        code=CodeSnapshot(
            origin="/home/user/project",
            entry="train.py",
            sha256="c" * 64,
            files=(CodeFile(path="train.py", sha256=code, size_bytes=100),),
        ),
        data=(DataFile(role="train", path="/data/train.csv", size_bytes=10, sha256="d" * 64),),
        interpreter=Interpreter(executable="/usr/bin/python3", version="3.11.7", packages={"torch": "2.13.0"}),
        layout=ProcessLayout(num_processes=2),
        seed=7,
        smoke=SmokeSettings(args=("--epochs", "1")),
        evaluation=None,
        ceilings=Ceilings(wall_time_s=600),
    )


def smoke_result(plan: TrainingPlan, *, not_shown: tuple[str, ...] = ()) -> SmokeResult:
    names = ("ran_to_end", "steps_seen", "loss_finite", "loss_fell", "checkpoint_loads")
    checks = tuple(
        SmokeCheck(name=name, outcome="not_shown" if name in not_shown else "passed", detail="12 of 12")
        for name in names
    )
    verdict = "not_shown" if not_shown else "passed"
    return SmokeResult(run_id=new_id("run"), plan_digest=plan.digest, verdict=verdict, checks=checks, losses=(2.3, 1.1))


def cost_estimate(plan: TrainingPlan, *, cost: float | None = None) -> CostEstimate:
    return CostEstimate(
        plan_digest=plan.digest,
        wall_time_s=Interval(value=90.0, low=80.0, high=110.0),
        memory_bytes=None,
        cost=None if cost is None else Interval(value=cost, low=cost * 0.9, high=cost * 1.2),
        currency="" if cost is None else "EUR",
        price_source="" if cost is None else "prices.yaml of 2026-11-01",
        method="steps x median step",
        unknowns=() if cost is not None else ("no price is known",),
        past_accuracy="no earlier estimates",
    )


def estimated_record(
    plan: TrainingPlan | None = None, *, not_shown: tuple[str, ...] = (), cost: float | None = None
) -> PlanRecord:
    plan = plan or training_plan()
    return PlanRecord(
        plan_id=new_id("plan"),
        state=PlanState.ESTIMATED,
        requester="agent",
        created_at_s=START_S,
        plan=plan,
        plan_digest=plan.digest,
        smoke=smoke_result(plan, not_shown=not_shown),
        estimate=cost_estimate(plan, cost=cost),
    )


def run_of(record: PlanRecord, *, kind: str = "full", run_id: str = "") -> RunRecord:
    return RunRecord(
        run_id=run_id or new_id("run"),
        plan_id=record.plan_id,
        plan_digest=record.plan_digest or "",
        kind=kind,  # type: ignore[arg-type]  # tests pass the literals
        state=RunState.LAUNCHING,
        run_dir="/runs/x",
        created_at_s=START_S,
    )


@dataclass
class Human:
    """An approver with a key in memory, enrolled in the store."""

    store: SqlStore
    clock: Callable[[], float]
    name: str = "alice"
    level: AssuranceLevel = AssuranceLevel.A2
    private: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)

    def __post_init__(self) -> None:
        pem = public_pem(self.private)
        self.key = ApproverKey(
            key_id=key_id(pem), approver=self.name, public_pem=pem, level=self.level, enrolled_at_s=self.clock()
        )

    def enroll(self) -> "Human":
        self.store.add_key(self.key)
        return self

    def decide(self, request: ApprovalRequest, *, decision: str = "approve", accept: tuple[str, ...] = ()) -> Approval:
        verdict = Verdict(
            decision=decision,  # type: ignore[arg-type]  # literals
            shown="what was shown",
            channel="terminal",
            request_digest=request.digest,
            accepted_not_shown=accept,
        )
        return decide(self.store, request.request_id, verdict, key=self.key, private_key=self.private, clock=self.clock)


def open_store(directory: Path, clock: Clock, *, mode: StoreMode = "normal", busy_timeout_s: float = 10.0) -> SqlStore:
    url = f"sqlite:///{directory / 'forerun.db'}"
    return SqlStore(url, clock=clock, busy_timeout_s=busy_timeout_s, create_as=mode)


def ask(
    store: SqlStore, clock: Callable[[], float], record: PlanRecord | None = None, *, ttl_s: float = 3600
) -> ApprovalRequest:
    """A stored plan with an open request."""
    record = record or estimated_record()
    store.add_plan(record)
    request = build_request(
        record, reason="the smoke run passed", policy_version=SHIPPED, now_s=clock(), ttl_s=ttl_s, store=store.identity
    )
    store.add_request(request, plan=record)
    return request


def approved(store: SqlStore, clock: Clock, human: Human, record: PlanRecord | None = None) -> ApprovalRequest:
    """A stored plan that the human approved."""
    request = ask(store, clock, record)
    human.decide(request, accept=missing_evidence(store.plan(request.plan_id).smoke))
    return request
