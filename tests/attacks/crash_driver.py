"""Kills a server at each of its steps between approval and running, then starts another one; prints what came of it.

    python crash_driver.py DIRECTORY [--reads]

Real processes: the server is a fork that SIGKILLs itself, supervisors are the real ones; the job's Python is a shell
script that notes each start. One JSON line a kill. With --reads it is killed before reads of
the database as well, which change nothing.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from agent_server.container import Container, build
from agent_server.procedure.starting import Started
from agent_server.settings import Settings
from agent_server.store.sql import SqlStore
from agent_server.upkeep import Upkeep
from runtime.config.plan import Ceilings, Interpreter, ProcessLayout
from runtime.launchers import process  # loaded before the kills are counted
from runtime.layout import RunLayout
from runtime.run_files import read_result
from runtime.snapshots.snapshot import collect
from runtime.snapshots.snapshot import store as store_code
from tests.fakes.approvals import Clock, Human, ask, estimated_record, training_plan
from tools.domain.paths import AllowedRoots
from tools.domain.plan_state import PlanRecord

DEADLINE_S = 100.0
MAX_STEPS = 400
MUCH_LATER_S = 7200.0  # when even a directory without a mark is nobody's any more
LATER_S = 20.0  # the second server comes after the time in which the first would still be asked
_CHANGES = (
    "os.mkdir",
    "os.rename",
    "os.link",
    "os.remove",
    "os.rmdir",
    "subprocess.Popen",
    "os.posix_spawn",
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
PYTHON = """#!/bin/sh
case "$*" in *torchrun_engine*) echo "$FORERUN_RUN" >> {starts} ;; esac
"""


class Site:
    """A state directory, a project, and a Python that trains nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = Settings(state_dir=root / "state", keys_dir=root / "keys")
        self.starts = root / "starts"
        self.starts.touch()
        project = root / "project"
        project.mkdir()
        (project / "train.py").write_text("print('never run')\n")
        self.python = root / "python"
        self.python.write_text(PYTHON.format(starts=self.starts))
        self.python.chmod(0o755)
        self.snapshot, _ = collect(project / "train.py", data_paths=[])
        store_code(self.snapshot, self.settings.snapshots_dir)
        with_store(self, lambda store: store.mode)

    def server(self, *, later_s: float = 0.0) -> Container:
        roots = AllowedRoots.of([self.root / "project"])
        return build(self.settings, roots, clock=lambda: time.time() + later_s)

    def approved(self, number: int) -> PlanRecord:
        """A plan of its own for each kill, approved."""
        plan = training_plan(argv=("--number", str(number))).model_copy(
            update={
                "environment": {"PATH": os.environ["PATH"]},
                "code": self.snapshot,
                "data": (),
                "interpreter": Interpreter(executable=str(self.python), version="", packages={}),
                "layout": ProcessLayout(num_processes=1),
                "ceilings": Ceilings(wall_time_s=60),
            }
        )
        record = estimated_record(plan)

        def decide(store: SqlStore) -> None:
            human = Human(store, Clock(time.time()), name=f"human{number}").enroll()
            human.decide(ask(store, time.time, record))

        with_store(self, decide)
        return record


def with_store(site: Site, act: Callable[[SqlStore], object]) -> None:
    """Open, use and close: no connection may cross a fork."""
    store = SqlStore(site.settings.url, clock=time.time)
    try:
        act(store)
    finally:
        store.close()


def forked(act: Callable[[], None]) -> int:
    """The wait status of a process of its own that does this."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def kill_at(number: int, state: Path, note: Path, *, reads: bool) -> None:
    """SIGKILL this process at its step `number` from here on: before a change of file, process or database."""
    steps = 0

    def step(what: str) -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            descriptor = os.open(note, os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(descriptor, what.encode())
            os.kill(os.getpid(), signal.SIGKILL)

    def audited(name: str, arguments: tuple[Any, ...]) -> None:
        if name in _CHANGES:
            step(f"{name} {Path(str(arguments[0])).name[:20]}")
        elif name == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING:
            path = str(arguments[0])
            if path.startswith(str(state)) and not path.endswith(note.name):
                step("open for writing")

    def statement(_c: Any, _cursor: Any, text: str, *_: Any) -> None:
        if reads or (text != "BEGIN" and not text.startswith(("SELECT", "PRAGMA"))):
            step(f"sql {text.split(None, 1)[0]}")

    def committed(connection: Connection) -> None:
        if reads or connection.get_execution_options().get("forerun_write"):
            step("sql COMMIT")

    event.listen(Engine, "before_cursor_execute", statement)
    event.listen(Engine, "commit", committed)
    sys.addaudithook(audited)


def first_server(site: Site, plan_id: str, number: int, note: Path, *, reads: bool) -> Callable[[], None]:
    def act() -> None:
        container = site.server()
        container.store.plan(plan_id)  # the database is open, as in a server that has been at work
        kill_at(number, site.settings.state_dir, note, reads=reads)
        container.procedure.launch(plan_id)

    return act


def second_server(site: Site, plan_ids: list[str], answers: Path) -> Callable[[], None]:
    """Finishes what the first left, then launches each plan as an agent would that never got its answer."""

    def act() -> None:
        container = site.server(later_s=LATER_S)
        container.reconciler.reconcile_all()
        told = {}
        for plan_id in plan_ids:
            started = container.procedure.launch(plan_id)
            told[plan_id] = started.run.run_id if isinstance(started, Started) else ""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            container.reconciler.reconcile_all()
            if not container.store.open_runs():
                break
            time.sleep(0.1)
        upkeep = Upkeep(container.store, container.reconciler, site.settings, clock=lambda: time.time() + MUCH_LATER_S)
        before = len(list(site.settings.runs_dir.iterdir()))
        upkeep.once()
        answers.with_name("cleared").write_text(json.dumps(before - len(list(site.settings.runs_dir.iterdir()))))
        answers.write_text(json.dumps(told))

    return act


def main(root: Path, *, reads: bool) -> int:
    assert process.__name__
    site = Site(root)
    kills: list[tuple[str, str]] = []
    for number in range(1, MAX_STEPS):
        record, note = site.approved(number), root / f"note{number}"
        status = forked(first_server(site, record.plan_id, number, note, reads=reads))
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                return 1
            kills.append((record.plan_id, "not killed"))
            break
        kills.append((record.plan_id, note.read_text()))
    answers = root / "answers"
    if forked(second_server(site, [plan_id for plan_id, _ in kills], answers)):
        return 1
    told = json.loads(answers.read_text())
    starts = site.starts.read_text().split()
    container = site.server()  # a third one, which only looks
    for plan_id, where in kills:
        runs = [run for run in container.store.runs(limit=9, plan_id=plan_id) if run.kind == "full"]
        line = {
            "where": where,
            "runs": [run.run_id for run in runs],
            "told": told[plan_id],
            "starts": sum(starts.count(run.run_id) for run in runs),
            "states": [run.state.value for run in runs],
            "reasons": [run.reason for run in runs],
            "results": sum(read_result(RunLayout(Path(run.run_dir))) is not None for run in runs),
        }
        print(json.dumps(line), flush=True)
    known = {run.run_id for run in container.store.runs(limit=9999)}
    end = {
        "all_starts": len(starts),
        "problems": list(container.store.problems()),
        "left_behind": sorted({path.name for path in site.settings.runs_dir.iterdir()} ^ known)
        + [path.name for path in site.settings.snapshots_dir.iterdir() if path.name.startswith(".")],
        "cleared": json.loads(answers.with_name("cleared").read_text()),
    }
    print(json.dumps(end), flush=True)
    container.store.close()  # type: ignore[attr-defined]  # a SqlStore
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), reads="--reads" in sys.argv))
