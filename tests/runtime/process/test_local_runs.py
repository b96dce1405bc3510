"""Whole runs by the local launcher: torchrun, workers by path, failures told by rank; changed plans never start."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runtime.config.order import CostLimit
from runtime.launchers.local import LocalLauncher
from runtime.records import read_events
from runtime.run_files import read_order, request_cancel, write_model
from runtime.supervision.prologue import check_plan

pytestmark = pytest.mark.multiprocess

# One rank fails in the named way while its peer waits for it in a collective (a real failure case, C10).
FAIL = """
import os, sys, signal, torch, torch.distributed as dist
mode, rank = os.environ.get("FAIL", ""), int(os.environ["RANK"])
if mode == "first" and rank == 1: raise RuntimeError("broken before init")
dist.init_process_group("gloo")
dist.barrier()
print("rank", rank, "is here")
if rank == 1:
    if mode == "exc": raise ValueError("boom on rank 1")
    if mode == "exit7": sys.exit(7)
    if mode == "kill": os.kill(os.getpid(), signal.SIGKILL)
if mode: dist.all_reduce(torch.ones(1))
print("done", rank)
"""
DIE = """
import os, signal
for i in range(20): print('step', i, 'loss', 1/(i+1))
print('about to die')
if os.environ.get('SIG'): os.kill(os.getpid(), signal.SIGKILL)
os._exit(3)
"""


@pytest.mark.parametrize(
    ("mode", "exit_code", "message"),
    [
        ("exc", 1, "exit 1: ValueError: boom on rank 1"),
        ("exit7", 7, "exit 7"),
        ("kill", 137, "signal 9 (SIGKILL)"),
        ("first", 1, "exit 1: RuntimeError: broken before init"),
    ],
)
def test_a_failed_rank_fails_the_run_and_comes_first(runs: Any, mode: str, exit_code: int, message: str) -> None:
    result = runs.planned(FAIL, environment={"FAIL": mode}, num_processes=2).submit().result()
    assert (result.state, result.exit_code) == ("failed", exit_code)
    assert result.reason == f"rank 1: {message}"
    first = result.failures[0]
    assert (first.rank, first.message) == (1, message)
    assert first.signal_name == ("SIGKILL" if mode == "kill" else "")
    if mode != "first":
        assert "rank 1 is here" in first.last_lines
    assert all(failure.rank == 0 for failure in result.failures[1:])
    assert result.survivors == ()


def test_without_a_failure_every_rank_ends_well(runs: Any) -> None:
    run = runs.planned(FAIL, num_processes=2).submit()
    result = run.result()
    assert (result.state, result.exit_code, result.failures) == ("succeeded", 0, ())
    assert [run.text(run.layout.stdout(rank)).splitlines()[-1] for rank in (0, 1)] == ["done 0", "done 1"]
    assert not (run.layout.code / "__pycache__").exists()


def test_kill_9_of_a_worker_is_told_with_rank_signal_and_last_lines(runs: Any) -> None:
    script = """
import os, time
print("line 1"); print("pid", os.getpid())
time.sleep(600)
"""
    run = runs.planned(script, num_processes=2).submit()
    run.wait_for_output("pid", rank=0)
    run.wait_for_output("pid", rank=1)
    pid = int(run.text(run.layout.stdout(1)).split()[-1])
    os.kill(pid, signal.SIGKILL)
    result = run.result(20.0)
    assert (result.state, result.exit_code, result.reason) == ("failed", 137, "rank 1: signal 9 (SIGKILL)")
    assert result.failures[0].last_lines == ("line 1", f"pid {pid}")
    assert [failure.signal_name for failure in result.failures] == ["SIGKILL", "SIGTERM"]


def test_a_peer_that_ignores_sigterm_does_not_hold_up_the_end(runs: Any) -> None:
    script = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready"); sys.stdin.read()
if os.environ["RANK"] == "1":
    while not os.path.exists("go"): time.sleep(0.05)
    sys.exit(5)
time.sleep(600)
"""
    run = runs.planned(script, num_processes=2).submit()
    run.wait_for_output("ready", rank=0)
    run.wait_for_output("ready", rank=1)
    (run.layout.work / "go").touch()
    result = run.result(25.0)  # the engine's grace is 10 s; torchrun alone would wait 30 s
    assert (result.state, result.exit_code) == ("failed", 5)
    assert [(f.rank, f.signal_name) for f in result.failures] == [(1, ""), (0, "SIGKILL")]


@pytest.mark.parametrize("killed", [False, True])
def test_the_last_lines_before_a_death_are_kept(runs: Any, killed: bool) -> None:
    """C16"""
    run = runs.planned(DIE, environment={"SIG": "1"} if killed else {}).submit()
    result = run.result()
    lines = run.text(run.layout.stdout(0)).splitlines()
    assert lines == [f"step {i} loss {1 / (i + 1)}" for i in range(20)] + ["about to die"]
    assert result.failures[0].message == ("signal 9 (SIGKILL)" if killed else "exit 3")
    assert result.failures[0].last_lines[-1] == "about to die"


def test_stdin_is_empty_and_pools_work(runs: Any) -> None:
    """C79, and children that python spawns: they find the script's classes and our runtime."""
    script = """
import multiprocessing, sys
import runtime.layout
class Doubler:
    def __call__(self, x): return 2 * x
if __name__ == "__main__":
    try: print("answer", input("Continue? "))
    except EOFError: print("EOF on input")
    print("rest", len(sys.stdin.read()))
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(Doubler(), [1, 2, 3]))
"""
    run = runs.planned(script).submit()
    result = run.result()
    output = run.text(run.layout.stdout(0))
    assert result.state == "succeeded", run.text(run.layout.stderr(0))
    assert "Continue? EOF on input\nrest 0\n" in output
    assert [f"{method} [2, 4, 6]" in output for method in ("fork", "spawn", "forkserver")] == [True] * 3


def test_the_environment_is_the_plans_and_arguments_arrive_verbatim(runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "x")
    monkeypatch.setenv("RANK", "7")
    script = "import json, os, sys; print(json.dumps([sys.argv, dict(os.environ), os.getcwd(), sys.path[0]]))"
    args = ("--lr=0.1", "", "a b", "${local_rank}", "$$", "--", "-m", "--parent", "{run_dir}/x", "'\"\\")
    run = runs.planned(script, args=args, environment={"GIVEN": "1"}).submit()
    assert run.result().state == "succeeded"
    argv, environment, directory, path0 = json.loads(run.text(run.layout.stdout(0)))
    entry = str(run.layout.code / "script.py")
    assert argv == [entry, *(arg.replace("{run_dir}", str(run.layout.root)) for arg in args)]
    assert (directory, path0) == (str(run.layout.work), str(run.layout.code))
    assert "SECRET_OF_THE_SERVER" not in environment
    assert (environment["GIVEN"], environment["RANK"], environment["WORLD_SIZE"]) == ("1", "0", "1")
    assert environment["FORERUN_RUN"] == run.run_id


def test_secrets_are_inherited_by_name_and_a_missing_one_stops_the_start(
    runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HUB_TOKEN", "hidden")
    for names, state in ((("HUB_TOKEN",), "succeeded"), (("HUB_TOKEN", "OTHER_TOKEN"), "failed")):
        run = runs.planned("import os; assert os.environ['HUB_TOKEN'] == 'hidden'")
        order = read_order(run.layout)
        plan = run.plan.model_copy(update={"inherited": names})
        write_model(run.layout.plan, plan)
        write_model(run.layout.launch, order.model_copy(update={"plan_digest": plan.digest}))
        result = run.submit().result()
        assert result.state == state
        assert "hidden" not in run.text(run.layout.launch) + run.text(run.layout.plan)
    assert "OTHER_TOKEN" in result.reason


@pytest.mark.parametrize("owner", ["script folder", "namespace folder", "PYTHONPATH", "nobody"])
def test_a_runtime_of_the_users_own_wins(runs: Any, tmp_path: Path, owner: str) -> None:
    """Hostile PYTHONPATH: runtime/ and tools/ of the user's, as packages and as plain folders."""
    theirs = {
        "script folder": {"runtime/__init__.py": "NAME = 'theirs'"},
        "namespace folder": {"runtime/part.py": "NAME = 'theirs'"},
    }.get(owner, {})
    library = tmp_path / "library"
    (library / "tools").mkdir(parents=True)
    (library / "tools" / "mine.py").write_text("NAME = 'my tools'")
    if owner == "PYTHONPATH":
        (library / "runtime").mkdir()
        (library / "runtime" / "__init__.py").write_text("NAME = 'theirs'")
    script = """
import importlib, tools.mine
part = "runtime.part" if "namespace" in __import__("sys").argv[1] else "runtime"
module = importlib.import_module(part)
print(tools.mine.NAME, getattr(module, "NAME", "ours"))
if not hasattr(module, "NAME"):
    import runtime.layout; print(runtime.layout.RunLayout.__name__)
"""
    run = runs.planned(script, args=(owner,), files=theirs, environment={"PYTHONPATH": str(library)}).submit()
    assert run.result().state == "succeeded", run.text(run.layout.stderr(0))
    expected = "my tools ours\nRunLayout\n" if owner == "nobody" else "my tools theirs\n"
    assert run.text(run.layout.stdout(0)) == expected


def test_the_script_runs_as_python_runs_it(runs: Any) -> None:
    """Threads and exit handlers after the last line still find __main__; the traceback shows the script alone."""
    script = """
import atexit, pickle, sys, threading, time
class Thing: pass
def late():
    time.sleep(0.2)
    print("late", pickle.loads(pickle.dumps(Thing())).__class__.__name__)
threading.Thread(target=late).start()
atexit.register(lambda: print("bye", __name__, Thing.__name__))
import __main__
assert __main__.Thing is Thing and __spec__ is None
raise RuntimeError("the end\\nof it")
"""
    run = runs.planned(script).submit()
    result = run.result()
    assert result.reason == "rank 0: exit 1: RuntimeError: the end\nof it"
    assert run.text(run.layout.stdout(0)) == "late Thing\nbye __main__ Thing\n"
    error = json.loads(run.text(run.layout.error(0)))
    assert error["type"] == "RuntimeError"
    assert error["traceback"] in run.text(run.layout.stderr(0))
    assert "worker.py" not in error["traceback"]


def test_kill_9_of_engine_or_supervisor_ends_every_rank(runs: Any, until: Callable[..., Any]) -> None:
    script = """
import os, time
print("pid", os.getpid())
time.sleep(600)
"""
    for victim in ("engine", "supervisor"):
        run = runs.planned(script, num_processes=2).submit()
        for rank in (0, 1):
            run.wait_for_output("pid", rank=rank)
        events = {event.event: event.details for event in read_events(run.layout.events)}
        os.kill(events["job_started"]["pid"] if victim == "engine" else run.supervisor(), signal.SIGKILL)
        until(lambda run=run: not run.alive(), "the end of all ranks", 10.0)
        if victim == "engine":
            result = run.result()
            assert result.state == "failed"
            assert "signal 9 (SIGKILL)" in result.reason


def test_a_stubborn_job_is_killed_after_its_grace(runs: Any) -> None:
    """C17"""
    script = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)
print('ready', flush=True)
time.sleep(600)
"""
    run = runs.planned(script, num_processes=2, grace_s=2.0).submit()
    for rank in (0, 1):
        run.wait_for_output("ready", rank=rank)
    request_cancel(run.layout, reason="stop")
    request_cancel(run.layout, reason="stop again")
    result = run.result(12.0)
    assert result.state == "cancelled"
    assert result.signals_sent == ("SIGTERM", "SIGKILL after 2 s")
    assert result.survivors == ()
    assert not run.alive()


def test_a_script_may_use_its_grace_to_save(runs: Any) -> None:
    script = """
import signal, sys, time
def save(*_): print("saved"); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready"); time.sleep(600)
"""
    run = runs.planned(script, num_processes=2, grace_s=20.0).submit()
    for rank in (0, 1):
        run.wait_for_output("ready", rank=rank)
    request_cancel(run.layout, reason="stop")
    assert run.result().state == "cancelled"
    assert [run.text(run.layout.stdout(rank)) for rank in (0, 1)] == ["ready\nsaved\n"] * 2


def test_a_changed_run_is_never_started(runs: Any) -> None:
    run = runs.planned("print('started')")
    run.data.write_text("id,label\n1,0\n2,0\n")
    result = run.submit().result()
    assert result.state == "failed"
    assert str(run.data) in result.reason
    assert "not started" in result.reason
    assert not run.layout.stdout(0).exists()
    assert not run.layout.engine_log.exists()


def _change_order(run: Any, **changes: Any) -> None:
    order = read_order(run.layout)
    write_model(run.layout.launch, order.model_copy(update=changes))


def _write(path: Path, text: str) -> None:
    path.parent.chmod(0o755)
    if path.exists():
        path.chmod(0o644)
    path.write_text(text)


DRIFT: dict[str, tuple[Callable[[Any], object], str]] = {
    "a code byte": (lambda run: _write(run.layout.code / "script.py", "print('startef')"), "code script.py: content"),
    "a module": (lambda run: _write(run.layout.code / "part/a.py", "x = 2"), "code part/a.py: content"),
    "an extra file": (lambda run: _write(run.layout.code / "json.py", ""), "code json.py: not part of the plan"),
    "a missing file": (lambda run: _remove(run.layout.code / "script.py"), "code script.py: missing"),
    "a data byte": (lambda run: run.data.write_text("id,label\n1,1\n2,1\n"), "data.csv: content changed"),
    "a longer data file": (lambda run: run.data.write_text("id,label\n1,0\n2,1\n3,1\n"), "data.csv: size"),
    "missing data": (lambda run: run.data.unlink(), "data.csv: missing"),
    "the plan": (lambda run: write_model(run.layout.plan, run.plan.model_copy(update={"seed": 7})), "digest"),
    "the command": (lambda run: _change_spec(run, argv=("rm", "-rf")), "launch.json: argv differ"),
    "the environment": (lambda run: _change_spec(run, environment={}), "launch.json: environment differ"),
    "the limits": (lambda run: _change_order(run, wall_time_s=9e9, disk_bytes=2**60), "wall time 9e+09 s is above"),
    "a member of no sweep": (lambda run: _change_order(run, member=2), "launch.json: member 2 of a sweep of 0"),
    "no plan": (lambda run: run.layout.plan.unlink(), "plan.json is missing"),
}


def _remove(path: Path) -> None:
    path.parent.chmod(0o755)
    path.unlink()


def _change_spec(run: Any, **changes: Any) -> None:
    order = read_order(run.layout)
    _change_order(run, spec=order.spec.model_copy(update=changes))


@pytest.mark.parametrize("change", sorted(DRIFT))
def test_the_prologue_names_what_changed(runs: Any, change: str) -> None:
    run = runs.planned("print('started')", files={"part/a.py": "x = 1"})
    assert check_plan(run.layout, read_order(run.layout)) == run.plan
    alter, expected = DRIFT[change]
    alter(run)
    with pytest.raises(Exception, match="Next:") as caught:
        check_plan(run.layout, read_order(run.layout))
    assert expected in str(caught.value)


@pytest.mark.parametrize("most", [None, "4.5", "4.0"])
def test_an_order_may_cost_no_more_than_the_plan(runs: Any, most: str | None) -> None:
    """The plan's ceiling is of all runs of a sweep together."""
    run = runs.planned("print('started')", args=("--lr", "1"))
    ceilings = run.plan.ceilings.model_copy(update={"cost": 8.0, "currency": "EUR"})
    plan = run.plan.model_copy(update={"ceilings": ceilings, "sweep": (("--lr", "1"), ("--lr", "2"))})
    write_model(run.layout.plan, plan)
    spec = LocalLauncher().render(plan.of_member(2), run.layout, run_id=run.run_id, kind="full")
    cost = None if most is None else CostLimit(most=most, hourly_rate="1", currency="EUR")
    _change_order(run, plan_digest=plan.digest, member=2, spec=spec, cost=cost)
    if most == "4.0":
        assert check_plan(run.layout, read_order(run.layout)) == plan
        _change_order(run, member=1)
        with pytest.raises(Exception, match="argv differ"):
            check_plan(run.layout, read_order(run.layout))
        _change_order(run, member=None)
    with pytest.raises(
        Exception, match="names none of the plan's argument sets" if most == "4.0" else "above the plan's 4"
    ):
        check_plan(run.layout, read_order(run.layout))


def test_rendering_is_pure_and_smoke_runs_differ_by_arguments_and_steps(runs: Any) -> None:
    run = runs.planned("print('started')")
    before = sorted(run.layout.root.rglob("*"))
    full, smoke = (
        LocalLauncher().render(run.plan, run.layout, run_id=run.run_id, kind=kind) for kind in ("full", "smoke")
    )
    assert full == LocalLauncher().render(run.plan, run.layout, run_id=run.run_id, kind="rerun")
    assert smoke.argv == (*full.argv, "--small", str(run.layout.root))
    assert smoke.environment == {**full.environment, "FORERUN_SMOKE_STEPS": str(run.plan.smoke.num_steps)}
    assert sorted(run.layout.root.rglob("*")) == before
