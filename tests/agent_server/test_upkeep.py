"""Without anybody asking: ended runs settle, open requests expire, leftovers go."""

import threading
from pathlib import Path

from agent_server.procedure.starting import Started, launch_training
from agent_server.upkeep import Upkeep
from runtime.layout import RunLayout
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tools.domain.errors import StoreUnavailable
from tools.domain.plan_state import PlanState
from tools.domain.run_state import RunState


def upkeep(bench: Bench) -> Upkeep:
    return Upkeep(bench.store, bench.place.reconciler, bench.place.settings, clock=bench.clock)


def test_a_run_that_ends_settles_its_budget_without_a_call(bench: Bench) -> None:
    started = launch_training(bench.place, bench.approved().plan_id)
    assert isinstance(started, Started)
    over, settled = threading.Event(), threading.Event()
    keeper = upkeep(bench)

    def keep() -> None:
        keeper.keep(over, interval_s=0.01)
        settled.set()

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        end_run(RunLayout(Path(started.run.run_dir)), elapsed_s=3.0)
        for _ in range(1000):
            held = bench.store.reservation_of(started.run.run_id)
            if held is not None and held.settled:
                break
            over.wait(0.02)
        assert held is not None
        assert held.settled
        assert bench.store.run(started.run.run_id).state is RunState.SUCCEEDED
    finally:
        over.set()
        thread.join(20)
    assert settled.is_set()


def test_an_open_request_expires_by_itself(bench: Bench) -> None:
    request = bench.requested()
    bench.clock.now_s = request.expires_at_s + 1
    upkeep(bench).once()
    assert bench.store.plan(request.plan_id).state is PlanState.EXPIRED


def test_a_directory_prepared_in_vain_is_removed_and_a_runs_stays(bench: Bench) -> None:
    started = launch_training(bench.place, bench.approved().plan_id)
    assert isinstance(started, Started)
    runs = bench.place.settings.runs_dir
    (runs / "run-0000000000" / "code").mkdir(parents=True)
    (runs / "run-0000000000" / "code").chmod(0o555)
    bench.clock.now_s += 3600
    upkeep(bench).once()
    assert [path.name for path in runs.iterdir()] == [started.run.run_id]


def test_what_fails_is_tried_again_and_keeps_nothing_else_from_being_done(bench: Bench) -> None:
    (bench.place.settings.runs_dir / "run-0000000000").mkdir(parents=True)
    bench.clock.now_s += 3600

    def fail() -> None:
        raise StoreUnavailable("the database is locked")

    keeper = upkeep(bench)
    bench.place.reconciler.reconcile_all = fail  # type: ignore[method-assign]  # stands for a database that is locked
    keeper.once()
    assert list(bench.place.settings.runs_dir.iterdir()) == []
