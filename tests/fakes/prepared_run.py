"""A run as it lies on disk after training, with data, smoke run, approval and records: for verification and report."""

import csv
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runtime.config.digest import digest_entries, digest_file
from runtime.config.order import LaunchOrder, LaunchSpec, RunResult
from runtime.config.plan import (
    Ceilings,
    CodeFile,
    CodeSnapshot,
    DataFile,
    Evaluation,
    Interpreter,
    ProcessLayout,
    Setting,
    SmokeSettings,
    TrainingPlan,
)
from runtime.layout import RunLayout
from runtime.records import MetricRecord, append_event, append_metric
from tools.domain.approval import Approval, ApprovalRequest, ApproverKey, AssuranceLevel, Decision
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.reports import CostEstimate, Interval, SmokeCheck, SmokeResult
from tools.domain.run_state import RunRecord, RunState
from tools.request_approval import DECISION_TYPE, decision_payload
from tools.signatures import key_id, public_pem, sign

SCRIPT = "print('training')\n"


@dataclass(frozen=True)
class PreparedRun:
    """Everything about one run. `labels` are the hold-out's, ids are t0, t1, ..."""

    base: Path
    plan: TrainingPlan
    run: RunRecord
    layout: RunLayout
    labels: tuple[Any, ...]

    @property
    def holdout(self) -> Path:
        return self.base / "data" / "holdout.csv"

    @property
    def train(self) -> Path:
        return self.base / "data" / "train.csv"

    def predict(self, predictions: Sequence[Any], *, ids: Sequence[Any] | None = None, name: str = "preds.csv") -> Path:
        """Write the predictions file as the script would, by default one row for every hold-out row."""
        path = self.layout.work / name
        names = [f"t{row}" for row in range(len(predictions))] if ids is None else ids
        write_csv(path, ["id", "prediction"], zip(names, predictions, strict=True))
        return path

    def with_evaluation(self, **changes: Any) -> "PreparedRun":
        """The same run under a plan whose evaluation differs."""
        assert self.plan.evaluation is not None
        return self.with_plan(evaluation=self.plan.evaluation.model_copy(update=changes))

    def with_plan(self, **changes: Any) -> "PreparedRun":
        plan = self.plan.model_copy(update=changes)
        return replace(self, plan=plan, run=self.run.model_copy(update={"plan_digest": plan.digest}))


def write_csv(path: Path, header: Sequence[str], rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(header)
        writer.writerows(rows)


def data_file(role: str, path: Path) -> DataFile:
    return DataFile.model_validate(
        {"role": role, "path": str(path), "size_bytes": path.stat().st_size, "sha256": digest_file(path)}
    )


def prepared_run(
    base: Path,
    *,
    task: str = "classification",
    labels: Sequence[Any] = ("a", "b", "c") * 10,
    metrics: tuple[str, ...] = ("accuracy",),
    baselines: tuple[str, ...] = ("majority", "linear"),
) -> PreparedRun:
    """A full run that succeeded; its predictions are still to be written with `predict`."""
    base = base.resolve()
    codes = {label: number for number, label in enumerate(dict.fromkeys(labels))}
    rows = [(f"t{i}", label, codes[label] + 0.37 * i, i * 0.5) for i, label in enumerate(labels)]
    write_csv(base / "data" / "holdout.csv", ["id", "label", "x", "y"], rows)
    train = [(f"r{i}", label, codes[label] + 0.41 * i, -1.0 - i) for i, label in enumerate(list(labels) * 2)]
    write_csv(base / "data" / "train.csv", ["id", "label", "x", "y"], train)
    holdout_path, train_path = base / "data" / "holdout.csv", base / "data" / "train.csv"
    layout = RunLayout(base / "runs" / "run-0000000001")
    for folder in (layout.code, layout.work, layout.logs, layout.checkpoints):
        folder.mkdir(parents=True)
    (layout.code / "train.py").write_text(SCRIPT)
    digest = digest_file(layout.code / "train.py")
    plan = TrainingPlan(
        argv=("--lr", "0.05", "--epochs", "3"),
        environment={"PATH": "/usr/bin"},
        code=CodeSnapshot(
            origin=str(base / "project"),
            entry="train.py",
            sha256=digest_entries([("train.py", digest, False)]),
            files=(CodeFile(path="train.py", sha256=digest, size_bytes=len(SCRIPT)),),
        ),
        data=(data_file("train", train_path), data_file("holdout", holdout_path)),
        interpreter=Interpreter(executable="/usr/bin/python3", version="3.11.7", packages={"torch": "2.13.0"}),
        layout=ProcessLayout(num_processes=2),
        seed=7,
        smoke=SmokeSettings(args=("--epochs", "1")),
        evaluation=Evaluation.model_validate(
            {
                "predictions": "work/preds.csv",
                "holdout": str(holdout_path),
                "train": str(train_path),
                "task": task,
                "metrics": metrics,
                "baselines": baselines,
            }
        ),
        ceilings=Ceilings(wall_time_s=600),
        settings=(
            Setting(name="lr", value="0.05", origin="argument"),
            Setting(name="weight_decay", value="0.0", origin="assumption"),
        ),
    )
    started = time.time() - 60
    result = RunResult(
        run_id="run-0000000001",
        state="succeeded",
        reason="every rank ended with 0",
        exit_code=0,
        started_at_s=started,
        ended_at_s=started + 50,
        elapsed_s=50.0,
        disk_bytes=10_000,
        peak_memory_bytes=500_000_000,
    )
    run = RunRecord(
        run_id="run-0000000001",
        plan_id="plan-0000000001",
        plan_digest=plan.digest,
        kind="full",
        state=RunState.SUCCEEDED,
        run_dir=str(layout.root),
        created_at_s=started - 1,
        request_id="req-0000000001",
        result=result,
    )
    prepared = PreparedRun(base=base, plan=plan, run=run, layout=layout, labels=tuple(labels))
    _write_records(prepared)
    return prepared


def _write_records(prepared: PreparedRun) -> None:
    layout, plan, run = prepared.layout, prepared.plan, prepared.run
    assert run.result is not None
    layout.plan.write_text(plan.model_dump_json(indent=1))
    spec = LaunchSpec(argv=("torchrun", "train.py"), environment={}, working_directory=str(layout.work))
    order = LaunchOrder(
        run_id=run.run_id, kind="full", plan_digest=plan.digest, spec=spec, wall_time_s=600, disk_bytes=2**30
    )
    layout.launch.write_text(order.model_dump_json(indent=1))
    layout.result.write_text(run.result.model_dump_json(indent=1))
    append_event(layout.events, "run_started", rank=0, world_size=2, device="cpu", torch="2.13.0")
    for step in range(1, 21):
        for name, value in (("loss", 2.0 / step), ("val_accuracy", 0.5 + step / 50)):
            append_metric(layout.metrics(0), MetricRecord(step=step, name=name, value=value, rank=0, time_s=step))
    layout.stdout(0).write_text("step 20\n")
    layout.stderr(0).write_text("")
    (layout.checkpoints / "last").mkdir()
    (layout.checkpoints / "last" / "model.safetensors").write_bytes(bytes(range(256)))


def smoke_of(prepared: PreparedRun, *, not_shown: tuple[str, ...] = ()) -> tuple[SmokeResult, RunRecord, RunLayout]:
    """A smoke run of the same plan, with its own directory."""
    layout = RunLayout(prepared.base / "runs" / "run-0000000000")
    layout.root.mkdir(parents=True)
    for step in range(1, 13):
        record = MetricRecord(step=step, name="loss", value=3.0 / step, rank=0, time_s=step)
        append_metric(layout.metrics(0), record)
    checks = tuple(
        SmokeCheck(
            name=name,
            outcome="not_shown" if name in not_shown else "passed",
            detail="12 of 12",
            sources=("metrics.rank0.jsonl:1", "metrics.rank0.jsonl:12"),
        )
        for name in ("ran_to_end", "steps_seen", "loss_finite", "loss_fell", "checkpoint_loads")
    )
    result = SmokeResult(
        run_id="run-0000000000",
        plan_digest=prepared.plan.digest,
        verdict="not_shown" if not_shown else "passed",
        checks=checks,
        losses=tuple(3.0 / step for step in range(1, 13)),
        num_steps=12,
        step_time_s=0.1,
    )
    run = prepared.run.model_copy(
        update={"run_id": "run-0000000000", "kind": "smoke", "run_dir": str(layout.root), "request_id": None}
    )
    return result, run, layout


def estimate_of(prepared: PreparedRun, *, cost: float | None = None) -> CostEstimate:
    return CostEstimate(
        plan_digest=prepared.plan.digest,
        wall_time_s=Interval(value=45.0, low=40.0, high=55.0),
        memory_bytes=Interval(value=4e8, low=3e8, high=6e8),
        cost=None if cost is None else Interval(value=cost, low=cost * 0.9, high=cost * 1.2),
        currency="" if cost is None else "EUR",
        price_source="" if cost is None else "prices.yaml of 2026-11-01",
        device_hours=0.025,
        num_steps=20,
        method="steps x median step",
        unknowns=() if cost is not None else ("cost: no price is known",),
        past_accuracy="no earlier run",
    )


def plan_record_of(prepared: PreparedRun, smoke: SmokeResult | None, estimate: CostEstimate | None) -> PlanRecord:
    return PlanRecord(
        plan_id="plan-0000000001",
        state=PlanState.LAUNCHED,
        requester="agent",
        created_at_s=prepared.run.created_at_s - 100,
        plan=prepared.plan,
        plan_digest=prepared.plan.digest,
        smoke=smoke,
        estimate=estimate,
    )


def approval_of(
    prepared: PreparedRun,
    smoke: SmokeResult,
    estimate: CostEstimate,
    *,
    level: AssuranceLevel = AssuranceLevel.A2,
    accepted: tuple[str, ...] = (),
) -> tuple[ApprovalRequest, Approval, ApproverKey]:
    """A request for this plan, signed by a fresh key."""
    request = ApprovalRequest(
        request_id="req-0000000001",
        plan_id="plan-0000000001",
        plan_digest=prepared.plan.digest,
        smoke_digest=smoke.digest,
        smoke_verdict="not_shown" if accepted else "passed",
        estimate=estimate,
        policy_version="shipped-1",
        requester="agent",
        reason="train it",
        nonce="00",
        created_at_s=prepared.run.created_at_s - 50,
        expires_at_s=prepared.run.created_at_s + 3550,
    )
    private = Ed25519PrivateKey.generate()
    pem = public_pem(private)
    key = ApproverKey(key_id=key_id(pem), approver="Ada", public_pem=pem, level=level, enrolled_at_s=1.0)
    decision = Decision(
        request_id=request.request_id,
        request_digest=request.digest,
        plan_digest=request.plan_digest,
        decision="approve",
        accepted_not_shown=accepted,
        approver="Ada",
        key_id=key.key_id,
        level=level,
        channel="terminal",
        shown_digest="e" * 64,
        decided_at_s=prepared.run.created_at_s - 20,
        nonce="01",
    )
    envelope = sign(decision_payload(decision), DECISION_TYPE, private)
    return request, Approval(decision=decision, envelope=envelope, used_by=prepared.run.run_id), key


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())
