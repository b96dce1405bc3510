"""What the files of a run say comes into the store, once, whoever looks and however often."""

from pathlib import Path

import pytest

from agent_server.procedure.following import cancel
from agent_server.procedure.starting import Started, launch_training, smoke_test
from runtime.config.order import Claim
from runtime.launchers.process import boot_id
from runtime.launchers.scheduled import Scheduled
from runtime.layout import RunLayout
from runtime.run_files import claim_run, write_model
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tools.domain.plan_state import PlanState
from tools.domain.run_state import RunRecord, RunState

DEAD_PID = 2**22 + 1  # above the kernel's limit of pids


def started(bench: Bench, *, full: bool = True) -> tuple[RunRecord, RunLayout]:
    plan_id = bench.approved().plan_id if full else bench.record().plan_id
    found = launch_training(bench.place, plan_id) if full else smoke_test(bench.place, plan_id)
    assert isinstance(found, Started)
    return found.run, RunLayout(Path(found.run.run_dir))


def supervisor_died(layout: RunLayout) -> None:
    layout.claim.unlink()
    claim = Claim(owner="supervisor", pid=DEAD_PID, start_ticks=1, boot_id=boot_id(), time_s=1.0)
    write_model(layout.claim, claim)


def events(bench: Bench, subject: str) -> list[str]:
    return [record.event for record in bench.store.audit_log() if record.subject == subject]


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "stopped_at_limit"])
def test_a_result_ends_the_run(bench: Bench, state: str) -> None:
    run, layout = started(bench)
    end_run(layout, state, reason="so it was")  # type: ignore[arg-type]  # the literals
    bench.place.reconciler.reconcile_all()
    saved = bench.store.run(run.run_id)
    assert (saved.state.value, saved.reason) == (state, "so it was")
    assert saved.result is not None


def test_looking_again_changes_nothing(bench: Bench) -> None:
    run, layout = started(bench)
    end_run(layout)
    bench.place.reconciler.reconcile_all()
    before = len(bench.store.audit_log())
    bench.place.reconciler.reconcile_all()
    bench.place.reconciler.reconcile(run)  # a stale record of another pass
    assert len(bench.store.audit_log()) == before


def test_a_supervisor_gone_without_a_result_makes_the_run_lost_and_a_late_result_still_counts(
    bench: Bench,
) -> None:
    run, layout = started(bench)
    supervisor_died(layout)
    bench.place.reconciler.reconcile_all()
    lost = bench.store.run(run.run_id)
    assert lost.state is RunState.LOST
    assert "supervisor" in lost.reason
    end_run(layout, "failed")
    bench.place.reconciler.reconcile_all()
    assert bench.store.run(run.run_id).state is RunState.FAILED


def test_a_run_that_nobody_takes_is_submitted_again_and_given_up_in_the_end(bench: Bench) -> None:
    bench.launcher.claims = False
    record = bench.approved()
    found = launch_training(bench.place, record.plan_id)
    assert isinstance(found, Started)
    assert found.run.state is RunState.LAUNCHING
    bench.clock.now_s += 30
    bench.place.reconciler.reconcile_all()
    assert bench.launcher.submitted == [found.run.run_id] * 2
    bench.clock.now_s += 120
    bench.place.reconciler.reconcile_all()
    run = bench.store.run(found.run.run_id)
    assert run.state is RunState.FAILED
    assert not claim_run(RunLayout(Path(run.run_dir)))


def test_cancelling_before_anyone_took_the_run_means_that_nobody_will(bench: Bench) -> None:
    bench.launcher.claims = False
    record = bench.approved()
    found = launch_training(bench.place, record.plan_id)
    assert isinstance(found, Started)
    run = cancel(bench.place, found.run.run_id, "alice")
    assert run.state is RunState.CANCELLED
    assert not claim_run(RunLayout(Path(run.run_dir)))


def test_cancel_waits_for_the_end_and_is_logged_and_repeats_without_effect(bench: Bench) -> None:
    run, _ = started(bench)
    assert cancel(bench.place, run.run_id, "alice").state is RunState.CANCELLED
    before = len(bench.store.audit_log())
    assert cancel(bench.place, run.run_id, "alice").state is RunState.CANCELLED
    assert len(bench.store.audit_log()) == before
    assert "cancel_requested" in events(bench, run.run_id)


def test_a_smoke_run_that_showed_nothing_is_judged_once_and_lets_nothing_pass(bench: Bench) -> None:
    run, layout = started(bench, full=False)
    end_run(layout)
    bench.place.reconciler.reconcile_all()
    bench.place.reconciler.reconcile_all()
    record = bench.store.plan(run.plan_id)
    assert record.state is PlanState.NOT_SHOWN
    assert record.smoke is not None
    assert record.smoke.run_id == run.run_id
    assert events(bench, run.plan_id).count("plan_saved") == 1


def test_a_smoke_run_that_failed_leaves_the_plan_where_it_was(bench: Bench) -> None:
    run, layout = started(bench, full=False)
    end_run(layout, "failed")
    bench.place.reconciler.reconcile_all()
    record = bench.store.plan(run.plan_id)
    assert record.state is PlanState.VALID
    assert record.smoke is not None
    assert record.smoke.verdict == "failed"


def test_a_smoke_run_that_was_called_off_is_no_evidence(bench: Bench) -> None:
    run, layout = started(bench, full=False)
    end_run(layout, "cancelled")
    bench.place.reconciler.reconcile_all()
    record = bench.store.plan(run.plan_id)
    assert (record.state, record.smoke) == (PlanState.VALID, None)


def test_what_a_run_really_took_is_kept_for_later_estimates(bench: Bench) -> None:
    _, layout = started(bench)
    end_run(layout, elapsed_s=42.0)
    bench.place.reconciler.reconcile_all()
    (past,) = bench.store.past_estimates()
    assert (past.actual_wall_time_s, past.actual_memory_bytes) == (42.0, 1000)


def test_a_failed_run_is_no_measure_for_estimates(bench: Bench) -> None:
    _, layout = started(bench)
    end_run(layout, "failed")
    bench.place.reconciler.reconcile_all()
    assert list(bench.store.past_estimates()) == []


def test_requests_expire_in_the_store(bench: Bench) -> None:
    request = bench.requested()
    bench.clock.now_s += 3599
    bench.place.reconciler.reconcile_all()
    assert bench.store.plan(request.plan_id).state is PlanState.REQUESTED
    bench.clock.now_s += 2
    bench.place.reconciler.reconcile_all()
    assert bench.store.plan(request.plan_id).state is PlanState.EXPIRED


def test_one_unreadable_run_does_not_hide_the_others(bench: Bench) -> None:
    _, broken = started(bench)
    other, layout = started(bench)
    broken.result.write_text("no json")
    end_run(layout)
    bench.place.reconciler.reconcile_all()
    assert bench.store.run(other.run_id).state is RunState.SUCCEEDED


def test_a_run_in_the_queue_of_a_batch_system_is_waited_for(bench: Bench) -> None:
    bench.launcher.claims = False
    bench.launcher.scheduled = Scheduled("7", "pending", "PENDING", reason="Resources")
    found = launch_training(bench.place, bench.approved().plan_id)
    assert isinstance(found, Started)
    bench.clock.now_s += 86_400
    bench.place.reconciler.reconcile_all()
    assert bench.store.run(found.run.run_id).state is RunState.LAUNCHING
    assert len(bench.launcher.submitted) == 1
    bench.launcher.scheduled = Scheduled("7", "ended", "CANCELLED")
    bench.place.reconciler.reconcile_all()
    assert bench.store.run(found.run.run_id).state is RunState.FAILED


def test_a_run_that_its_batch_system_will_start_again_is_not_lost(bench: Bench) -> None:
    run, layout = started(bench)
    supervisor_died(layout)
    bench.launcher.scheduled = Scheduled("7", "pending", "PENDING", restarts=1)
    bench.place.reconciler.reconcile_all()
    assert not bench.store.run(run.run_id).ended
    bench.launcher.scheduled = None
    bench.place.reconciler.reconcile_all()
    assert bench.store.run(run.run_id).state is RunState.LOST
