"""Runs in temporary directories: planned ones as the server makes them, and bare ones without plan or torch."""

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest

from runtime.config.order import LaunchOrder, LaunchSpec, Lease, RunKind, RunResult
from runtime.config.plan import Ceilings, DataFile, Interpreter, ProcessLayout, SmokeSettings, TrainingPlan
from runtime.launchers.local import LocalLauncher, run_environment
from runtime.launchers.process import kill_marked, marked_pids
from runtime.layout import RunLayout
from runtime.run_files import read_claim, read_result, write_model
from runtime.snapshots.data_manifest import data_digest
from runtime.snapshots.snapshot import collect, materialise, store
from tests.fakes.author import Author
from tests.fakes.nodes import Start, starter, two_hosts

DEADLINE_S = 50.0
_T = TypeVar("_T")


def wait_until(condition: Callable[[], _T], what: str = "condition", deadline_s: float = DEADLINE_S) -> _T:
    """The first true value of the condition."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come within {deadline_s} s"
        time.sleep(0.02)
    return value


@dataclass
class Run:
    """A run directory ready to be submitted."""

    layout: RunLayout
    run_id: str
    source: Path
    plan: TrainingPlan | None = None
    data: Path | None = None

    def submit(self) -> "Run":
        LocalLauncher().submit(self.layout)
        return self

    def result(self, deadline_s: float = DEADLINE_S) -> RunResult:
        try:
            return wait_until(lambda: read_result(self.layout), "result.json", deadline_s)
        except AssertionError:
            sys.stderr.write(self.text(self.layout.supervisor_log) + self.text(self.layout.engine_log))
            raise

    def supervisor(self) -> int:
        """pid of the supervisor, once it has claimed the run."""
        return wait_until(lambda: read_claim(self.layout), "claim.json").pid

    def text(self, path: Path) -> str:
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_output(self, text: str, *, rank: int | None = None) -> None:
        path = self.layout.engine_log if rank is None else self.layout.stdout(rank)
        wait_until(lambda: text in self.text(path), f"{text!r} in {path.name}")

    def alive(self) -> list[int]:
        return marked_pids(self.run_id)


@dataclass
class Runs:
    """Makes runs below one directory and ends what they leave."""

    root: Path
    made: list[Run] = field(default_factory=list)

    def planned(
        self,
        script: str,
        *,
        args: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
        num_processes: int = 1,
        kind: RunKind = "full",
        grace_s: float = 3.0,
        files: dict[str, str] | None = None,
        max_retries: int = 0,
        **order: Any,
    ) -> Run:
        """A run with plan, snapshot and data, launched by torchrun."""
        run = self._new(script, files or {})
        run.data = run.source.parent / "data.csv"
        run.data.write_text("id,label\n1,0\n2,1\n")
        size, digest, mode = data_digest(run.data)
        snapshot, _ = collect(run.source, data_paths=[run.data])
        store(snapshot, self.root / "store")
        materialise(snapshot, self.root / "store", run.layout.code)
        run.plan = TrainingPlan(
            argv=args,
            environment={"PATH": os.environ["PATH"]} | (environment or {}),
            code=snapshot,
            data=(DataFile(role="train", path=str(run.data), size_bytes=size, sha256=digest, mode=mode),),
            interpreter=Interpreter(executable=sys.executable, version="", packages={}),
            layout=ProcessLayout(num_processes=num_processes),
            seed=None,
            smoke=SmokeSettings(args=("--small", "{run_dir}")),
            evaluation=None,
            ceilings=Ceilings(wall_time_s=300.0, max_retries=max_retries),
        )
        write_model(run.layout.plan, run.plan)
        spec = LocalLauncher().render(run.plan, run.layout, run_id=run.run_id, kind=kind)
        self._order(run, spec, kind=kind, plan_digest=run.plan.digest, grace_s=grace_s, **order)
        return run

    def bare(self, script: str, *, argv: tuple[str, ...] | None = None, grace_s: float = 3.0, **order: Any) -> Run:
        """A run whose engine is a plain script: no plan, no torch, so it starts at once."""
        run = self._new(script, {})
        spec = LaunchSpec(
            argv=argv or (sys.executable, str(run.source)),
            environment=run_environment(run.layout, run_id=run.run_id),
            working_directory=str(run.layout.root),
        )
        self._order(run, spec, kind="full", plan_digest="", grace_s=grace_s, without_plan=True, **order)
        return run

    def _new(self, script: str, files: dict[str, str]) -> Run:
        run_id = f"run-{secrets.token_hex(5)}"
        base = self.root / run_id
        (base / "source").mkdir(parents=True)
        source = base / "source" / "script.py"
        for name, content in {**files, "script.py": script}.items():
            path = source.parent / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        layout = RunLayout(base / "run")
        layout.root.mkdir()
        run = Run(layout, run_id, source)
        self.made.append(run)
        return run

    def _order(self, run: Run, spec: LaunchSpec, **fields: Any) -> None:
        defaults: dict[str, Any] = {"wall_time_s": 60.0, "disk_bytes": 2**30}
        write_model(run.layout.launch, LaunchOrder(run_id=run.run_id, spec=spec, **(defaults | fields)))


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    yield from _runs(tmp_path)


@pytest.fixture(scope="module")
def module_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    yield from _runs(tmp_path_factory.mktemp("runs"))


def _runs(root: Path) -> Iterator[Runs]:
    made = Runs(root)
    yield made
    for run in made.made:
        claim = read_claim(run.layout) if run.layout.claim.exists() else None
        if claim is not None and read_result(run.layout) is None and claim.owner == "supervisor":
            with contextlib.suppress(ProcessLookupError):
                os.kill(claim.pid, 9)
        assert kill_marked(run.run_id, deadline_s=10.0) == []


@pytest.fixture
def author(tmp_path: Path) -> Author:
    return Author(tmp_path)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    yield from starter(tmp_path)


@pytest.fixture
def hosts() -> Iterator[list[list[str]]]:
    yield from two_hosts()


@pytest.fixture
def until() -> Callable[..., Any]:
    return wait_until


@pytest.fixture
def lease_of() -> Callable[[int], Lease]:
    from runtime.procfs import start_ticks

    def make(pid: int) -> Lease:
        ticks = start_ticks(pid)
        assert ticks is not None
        return Lease(pid=pid, start_ticks=ticks)

    return make
