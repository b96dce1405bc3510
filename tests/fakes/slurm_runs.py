"""Runs for a private Slurm cluster: plans, run directories, and waiting for what the cluster does with them."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from runtime.config.order import LaunchOrder, RunKind, RunResult
from runtime.config.plan import (
    Ceilings,
    CodeSnapshot,
    Interpreter,
    ProcessLayout,
    Setting,
    SmokeSettings,
    TrainingPlan,
)
from runtime.launchers.slurm import SlurmLauncher
from runtime.layout import RunLayout
from runtime.run_files import read_result, write_model
from runtime.snapshots.snapshot import collect, materialise, store

DEADLINE_S = 170.0  # a machine that is busy with other tests is slow
_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], what: str, deadline_s: float = DEADLINE_S, *, look_s: float = 0.05) -> _T:
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come within {deadline_s} s"
        time.sleep(look_s)
    return value


def slurm_command(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30.0, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@dataclass
class Run:
    layout: RunLayout
    run_id: str
    plan: TrainingPlan

    def submit(self) -> "Run":
        SlurmLauncher().submit(self.layout)
        return self

    def result(self) -> RunResult:
        try:
            return wait_until(lambda: read_result(self.layout), "result.json")
        except AssertionError:
            for path in (self.layout.supervisor_log, self.layout.engine_log, self.layout.stderr(0)):
                sys.stderr.write(f"== {path.name}\n{path.read_text() if path.exists() else ''}\n")
            raise

    @property
    def job_id(self) -> str:
        return self.layout.batch_job.read_text().strip()


def start_requeued(run: Run) -> None:
    """Let a job that is back in the queue start within seconds, where Slurm would wait for two minutes.

    Slurm waits because a node refuses a new credential of the second in which it revoked the job's old one: a job that
    is started then has failed for good ("Job credential revoked"). So it may start two seconds after it was seen to
    wait; a time that Slurm sets anew, when the first end is complete, and a hold are lifted again.
    """
    seen = time.monotonic()

    def ended() -> bool:
        nonlocal seen
        job = SlurmLauncher().poll(run.layout)
        if job is not None and job.state == "COMPLETING":
            seen = time.monotonic()
        elif job is not None and job.phase == "pending" and time.monotonic() > seen + 2.0:
            words = [["scontrol", "update", f"jobid={run.job_id}", "StartTime=now"]]
            if "held" in job.reason.lower():
                words.insert(0, ["scontrol", "release", run.job_id])
            for command in words:
                subprocess.run(command, capture_output=True, timeout=30.0, stdin=subprocess.DEVNULL)
        return read_result(run.layout) is not None

    wait_until(ended, "the end of the second start", look_s=0.5)


@dataclass
class Runs:
    root: Path
    made: list[Run] = field(default_factory=list)

    def new(
        self,
        script: str,
        *,
        args: tuple[str, ...] = (),
        kind: RunKind = "full",
        settings: dict[str, str] | None = None,
        max_retries: int = 0,
        wall_time_s: float = 400.0,
        **layout: Any,
    ) -> Run:
        run_id = f"run-{secrets.token_hex(5)}"
        base = self.root / run_id
        (base / "source").mkdir(parents=True)
        (base / "source" / "train.py").write_text(script)
        directory = RunLayout(base / "a run's $(touch x) `y`")
        directory.root.mkdir()
        code, _ = collect(base / "source" / "train.py", data_paths=[])
        store(code, self.root / "store")
        materialise(code, self.root / "store", directory.code)
        plan = make_plan(
            code=code,
            argv=args,
            settings=settings,
            layout=layout,
            ceilings=Ceilings(wall_time_s=wall_time_s, max_retries=max_retries),
        )
        write_model(directory.plan, plan)
        order = LaunchOrder(
            run_id=run_id,
            kind=kind,
            plan_digest=plan.digest,
            spec=SlurmLauncher().render(plan, directory, run_id=run_id, kind=kind),
            wall_time_s=plan.smoke.wall_time_s if kind == "smoke" else wall_time_s,
            disk_bytes=2**30,
            max_restarts=0 if kind == "smoke" else max_retries,
        )
        write_model(directory.launch, order)
        self.made.append(Run(directory, run_id, plan))
        return self.made[-1]


def make_plan(
    *, settings: dict[str, str] | None = None, layout: dict[str, Any] | None = None, **fields: Any
) -> TrainingPlan:
    defaults: dict[str, Any] = {
        "argv": (),
        "environment": {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
        "code": CodeSnapshot(origin="/x", entry="train.py", sha256="0" * 64, files=()),
        "data": (),
        "interpreter": Interpreter(executable=sys.executable, version="", packages={}),
        "seed": None,
        "smoke": SmokeSettings(args=("--small",)),
        "evaluation": None,
        "ceilings": Ceilings(wall_time_s=600.0),
    }
    given = [Setting(name=name, value=value, origin="argument") for name, value in (settings or {}).items()]
    place = ProcessLayout(**{"num_processes": 1, "launcher": "slurm", **(layout or {})})
    return TrainingPlan(**(defaults | fields), settings=tuple(given), layout=place)
