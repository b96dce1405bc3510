"""Run directories as workers leave them, without running anything: plans, records, events, results and logs."""

import json
from pathlib import Path
from typing import Any

from runtime.config.order import RunKind, RunResult
from runtime.config.plan import (
    Ceilings,
    CodeFile,
    CodeSnapshot,
    Interpreter,
    ProcessLayout,
    SmokeSettings,
    TrainingPlan,
)
from runtime.layout import RunLayout
from runtime.records import MetricRecord, append_metric
from tools.domain.run_state import RunRecord, RunState

RUN_ID = "run-0000000000"
START_S = 1_000_000.0
_ENDED = ("succeeded", "failed", "cancelled", "stopped_at_limit")


def make_layout(root: Path) -> RunLayout:
    """An empty run directory."""
    layout = RunLayout(root)
    for path in (layout.logs, layout.work, layout.checkpoints):
        path.mkdir(parents=True)
    return layout


def make_plan(
    *,
    argv: tuple[str, ...] = (),
    smoke_args: tuple[str, ...] = (),
    num_steps: int = 12,
    loss: str = "loss",
    **layout: Any,
) -> TrainingPlan:
    """A small plan; `layout` overrides ProcessLayout."""
    file = CodeFile(path="train.py", sha256="b" * 64, size_bytes=5)
    return TrainingPlan(
        argv=argv,
        environment={},
        code=CodeSnapshot(origin="/project", entry="train.py", sha256="a" * 64, files=(file,)),
        data=(),
        interpreter=Interpreter(executable="/usr/bin/python3", version="3.11.7", packages={}),
        layout=ProcessLayout.model_validate({"num_processes": 2, **layout}),
        seed=1,
        smoke=SmokeSettings(args=smoke_args, num_steps=num_steps, loss=loss),
        evaluation=None,
        ceilings=Ceilings(wall_time_s=3600),
    )


def make_run(
    layout: RunLayout,
    plan: TrainingPlan,
    *,
    kind: RunKind = "smoke",
    state: RunState = RunState.SUCCEEDED,
    exit_code: int = 0,
    **result: Any,
) -> RunRecord:
    """The run's record, with a result (also written to result.json) if it ended with one."""
    ended = None
    if state.value in _ENDED:
        base = {"run_id": RUN_ID, "state": state.value, "reason": "", "exit_code": exit_code, "started_at_s": START_S}
        base |= {"ended_at_s": START_S + 60, "elapsed_s": 60.0, "disk_bytes": 0, **result}
        ended = RunResult.model_validate(base)
        layout.result.write_text(ended.model_dump_json())
    return RunRecord(
        run_id=RUN_ID,
        plan_id="plan-0000000000",
        plan_digest=plan.digest,
        kind=kind,
        state=state,
        run_dir=str(layout.root),
        created_at_s=START_S,
        result=ended,
    )


def add_metric(
    layout: RunLayout, name: str, value: float, *, step: int | None, rank: int = 0, time_s: float = START_S
) -> None:
    append_metric(layout.metrics(rank), MetricRecord(step, name, value, rank, time_s))


def add_losses(layout: RunLayout, *values: float, name: str = "loss", rank: int = 0, seconds: float = 0.5) -> None:
    """Losses of steps 1, 2, ... as our runtime writes them, `seconds` apart, beginning 10 s after the start."""
    for step, value in enumerate(values, start=1):
        add_metric(layout, name, value, step=step, rank=rank, time_s=START_S + 10 + step * seconds)


def add_event(layout: RunLayout, event: str, *, time_s: float = START_S, **details: Any) -> None:
    with layout.events.open("a") as handle:
        handle.write(json.dumps({"event": event, "time_s": time_s, "rank": 0, "details": details}) + "\n")
