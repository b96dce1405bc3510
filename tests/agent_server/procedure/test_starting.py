"""Runs begin once, and only what a human approved begins in full."""

import os
import threading
from pathlib import Path

import pytest

from agent_server.procedure.starting import ApprovalRequired, Started, launch_training, smoke_test
from runtime.errors import LaunchError
from runtime.launchers.process import start_ticks
from runtime.layout import RunLayout
from runtime.run_files import claim_run, read_order, read_plan
from tests.fakes.approvals import smoke_result
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tools.domain.errors import Refused, WrongStep
from tools.domain.plan_state import PlanState
from tools.domain.run_state import RunState


def layout(started: Started) -> RunLayout:
    return RunLayout(Path(started.run.run_dir))


def launched(bench: Bench, plan_id: str) -> Started:
    found = launch_training(bench.place, plan_id)
    assert isinstance(found, Started)
    return found


def run_directories(bench: Bench) -> list[str]:
    directory = bench.place.settings.runs_dir
    return sorted(os.listdir(directory)) if directory.exists() else []


def test_a_smoke_run_has_its_code_its_plan_and_a_lease_on_this_process(bench: Bench) -> None:
    record = bench.record()
    started = smoke_test(bench.place, record.plan_id)
    files = layout(started)
    order = read_order(files)
    assert order is not None
    assert (order.kind, order.plan_digest, order.wall_time_s) == ("smoke", record.plan_digest, 300.0)
    assert order.lease is not None
    assert (order.lease.pid, order.lease.start_ticks) == (os.getpid(), start_ticks(os.getpid()))
    assert order.spec.argv[-1] == "--small"
    assert (files.code / "model.py").read_text() == "LAYERS = 2\n"
    assert read_plan(files) == record.plan
    assert started.run.state is RunState.RUNNING
    assert not started.already


def test_a_repeated_smoke_test_is_the_same_run_while_it_is_open_and_after_it_was_judged(bench: Bench) -> None:
    record = bench.record()
    first = smoke_test(bench.place, record.plan_id)
    again = smoke_test(bench.place, record.plan_id)
    assert (again.run.run_id, again.already) == (first.run.run_id, True)
    end_run(layout(first))
    smoke = smoke_result(bench.plan()).model_copy(update={"run_id": first.run.run_id})
    bench.store.save_plan(record.model_copy(update={"state": PlanState.SMOKED, "smoke": smoke}), expect=PlanState.VALID)
    after = smoke_test(bench.place, record.plan_id)
    assert (after.run.run_id, after.run.state, after.already) == (first.run.run_id, RunState.SUCCEEDED, True)
    assert bench.launcher.submitted == [first.run.run_id]
    assert run_directories(bench) == [first.run.run_id]


def test_a_smoke_run_that_failed_may_be_repeated(bench: Bench) -> None:
    record = bench.record()
    first = smoke_test(bench.place, record.plan_id)
    end_run(layout(first), "failed")
    second = smoke_test(bench.place, record.plan_id)
    assert second.run.run_id != first.run.run_id
    assert not second.already


def test_open_questions_keep_everything_from_starting(bench: Bench) -> None:
    record = bench.record().model_copy(update={"plan_id": "plan-0000000000", "plan": None, "plan_digest": None})
    bench.store.add_plan(record.model_copy(update={"state": PlanState.DRAFTED}))
    for step in (smoke_test, launch_training):
        with pytest.raises(WrongStep) as caught:
            step(bench.place, record.plan_id)
        assert "answer_questions" in caught.value.next_step


@pytest.mark.parametrize("state", [PlanState.VALID, PlanState.SMOKED])
def test_no_launch_before_smoke_run_and_estimate(bench: Bench, state: PlanState) -> None:
    record = bench.record(state)
    with pytest.raises(WrongStep) as caught:
        launch_training(bench.place, record.plan_id)
    assert ("smoke_test" if state is PlanState.VALID else "estimate_cost") in caught.value.next_step
    assert run_directories(bench) == []


def test_a_plan_nobody_decided_on_needs_approval_and_starts_nothing(bench: Bench) -> None:
    estimated = bench.record(PlanState.ESTIMATED)
    found = launch_training(bench.place, estimated.plan_id)
    assert isinstance(found, ApprovalRequired)
    assert "no human has approved" in found.missing[0]
    request = bench.requested(argv=("--lr", "0.5"))
    found = launch_training(bench.place, request.plan_id)
    assert isinstance(found, ApprovalRequired)
    assert found.request_id == request.request_id
    assert run_directories(bench) == []


def test_an_unapproved_variant_is_told_how_it_differs_from_the_approved_plan(bench: Bench) -> None:
    approved = bench.approved()
    other = bench.record(PlanState.ESTIMATED, argv=("--lr", "0.1"))
    found = launch_training(bench.place, other.plan_id)
    assert isinstance(found, ApprovalRequired)
    text = " ".join(found.missing)
    assert approved.plan_id in text
    assert "0.01" in text
    assert "0.1" in text
    assert run_directories(bench) == []


def test_an_approved_plan_starts_without_a_lease_and_uses_its_approval(bench: Bench) -> None:
    record = bench.approved()
    started = launched(bench, record.plan_id)
    order = read_order(layout(started))
    assert order is not None
    assert (order.kind, order.lease, order.wall_time_s) == ("full", None, 600.0)
    assert order.spec.argv[-2:] == ("--lr", "0.01")
    assert bench.store.plan(record.plan_id).state is PlanState.LAUNCHED
    request = bench.store.request_for_plan(record.plan_id)
    assert request is not None
    approval = bench.store.approval(request.request_id)
    assert approval is not None
    assert approval.used_by == started.run.run_id
    assert started.run.request_id == request.request_id


def test_every_repeated_launch_is_the_same_run(bench: Bench) -> None:
    record = bench.approved()
    first = launched(bench, record.plan_id)
    again = launched(bench, record.plan_id)
    end_run(layout(first), "failed")
    after_the_end = launched(bench, record.plan_id)
    for other in (again, after_the_end):
        assert (other.run.run_id, other.already) == (first.run.run_id, True)
    assert after_the_end.run.state is RunState.FAILED
    assert bench.launcher.submitted == [first.run.run_id]


def test_launches_at_the_same_time_make_one_run_and_leave_one_directory(bench: Bench) -> None:
    record = bench.approved()
    found: list[Started] = []
    barrier = threading.Barrier(6)

    def launch() -> None:
        barrier.wait(20)
        found.append(launched(bench, record.plan_id))

    threads = [threading.Thread(target=launch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert len(found) == 6
    assert len({started.run.run_id for started in found}) == 1
    assert sum(not started.already for started in found) == 1
    assert len(bench.launcher.owned) == 1
    assert run_directories(bench) == [found[0].run.run_id]
    assert len(bench.store.runs(limit=10)) == 1


def same_size_and_time(path: Path, text: str) -> None:
    before = path.stat()
    assert len(text) == before.st_size
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("file", "text"),
    [("model.py", "LAYERS = 3\n"), ("train.py", "import modeL\n"), ("data/train.csv", "id,label\n1,0\n2,0\n")],
)
def test_one_changed_byte_since_the_approval_is_refused_by_name(bench: Bench, file: str, text: str) -> None:
    record = bench.approved()
    same_size_and_time(bench.project / file, text)
    with pytest.raises(Refused) as caught:
        launch_training(bench.place, record.plan_id)
    assert file in caught.value.what
    assert f"base_plan_id={record.plan_id}" in caught.value.next_step
    assert run_directories(bench) == []
    assert bench.store.plan(record.plan_id).state is PlanState.APPROVED


def test_an_added_file_is_refused_and_a_touched_one_is_not(bench: Bench) -> None:
    record = bench.approved()
    os.utime(bench.project / "train.py")
    (bench.project / "sitecustomize.py").write_text("print('hello')\n")
    with pytest.raises(Refused, match="sitecustomize"):
        launch_training(bench.place, record.plan_id)
    (bench.project / "sitecustomize.py").unlink()
    assert not launched(bench, record.plan_id).already


def test_an_approval_that_expired_starts_nothing_also_when_the_clock_is_set_back(bench: Bench) -> None:
    record = bench.approved()
    bench.clock.now_s += 3601
    bench.store.append_audit(actor="x", event="later", subject="x", details={})
    bench.clock.now_s -= 3601
    found = launch_training(bench.place, record.plan_id)
    assert isinstance(found, ApprovalRequired)
    assert found.record.state is PlanState.EXPIRED
    assert run_directories(bench) == []


def test_a_refusal_by_the_human_starts_nothing(bench: Bench) -> None:
    request = bench.requested()
    bench.human.decide(request, decision="refuse")
    found = launch_training(bench.place, request.plan_id)
    assert isinstance(found, ApprovalRequired)
    assert "refused" in found.missing[0]
    assert run_directories(bench) == []


def test_a_removed_key_is_named(bench: Bench) -> None:
    record = bench.approved()
    bench.store.remove_key(bench.human.key.key_id, actor="alice")
    with pytest.raises(Refused, match="removed"):
        launch_training(bench.place, record.plan_id)
    assert run_directories(bench) == []


def test_a_server_that_dies_between_the_approval_and_the_start_is_made_good_exactly_once(bench: Bench) -> None:
    record = bench.approved()
    bench.launcher.error = SystemExit("kill -9, so to speak")
    with pytest.raises(SystemExit):
        launch_training(bench.place, record.plan_id)
    bench.launcher.error = None
    (run,) = bench.store.runs(limit=10)
    assert run.state is RunState.LAUNCHING
    bench.clock.now_s += 20
    bench.place.reconciler.reconcile_all()
    bench.place.reconciler.reconcile_all()
    assert bench.launcher.owned == [run.run_id]
    assert launched(bench, record.plan_id).run.run_id == run.run_id
    assert bench.store.run(run.run_id).state is RunState.RUNNING


def test_a_launcher_that_cannot_start_fails_the_run_for_good(bench: Bench) -> None:
    record = bench.approved()
    bench.launcher.error = LaunchError("no more processes")
    with pytest.raises(LaunchError, match="no more processes"):
        launch_training(bench.place, record.plan_id)
    (run,) = bench.store.runs(limit=10)
    assert run.state is RunState.FAILED
    assert not claim_run(RunLayout(Path(run.run_dir))), "a late supervisor must not take it"
    bench.launcher.error = None
    again = launched(bench, record.plan_id)
    assert (again.run.run_id, again.run.state, again.already) == (run.run_id, RunState.FAILED, True)


def test_a_plan_made_from_another_is_refused_with_its_difference_first(bench: Bench) -> None:
    base = bench.approved()
    made = bench.record(PlanState.ESTIMATED, argv=("--lr", "0.1")).model_copy(
        update={"plan_id": "plan-0000000001", "base_plan_id": base.plan_id}
    )
    bench.store.add_plan(made)
    found = launch_training(bench.place, made.plan_id)
    assert isinstance(found, ApprovalRequired)
    assert found.missing[1] == (
        f"against plan {base.plan_id}, which it was made from, it differs in: argument 2: '0.01' -> '0.1'"
    )
    assert len(found.missing) == 2, "the same plan is not compared twice"
