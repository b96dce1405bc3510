"""A sweep: one approval and one ceiling for several runs, each of which starts once and by name."""

import threading
from decimal import Decimal
from pathlib import Path

import pytest

from agent_server.procedure.asking import request_approval
from agent_server.procedure.following import plan_of
from agent_server.procedure.starting import ApprovalRequired, Started, launch_training
from runtime.config.plan import TrainingPlan
from runtime.layout import RunLayout
from runtime.run_files import read_order, read_plan
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tests.fakes.policies import apply_file, policy_text, write
from tools.domain.approval import ApprovalRequest
from tools.domain.errors import InvalidInput, Refused
from tools.domain.plan_state import PlanRecord, PlanState
from tools.request_approval import shown_text
from tools.shown_plan import whole_cost_words

SWEEP = (("--lr", "0.1"), ("--lr", "0.2"), ("--lr", "0.4"))
PRICES = "{currency: EUR, source: contract 17, as_of: 2026-01-01, prices: [{amount: 6.00, per: node_hour}]}\n"


def launched(bench: Bench, plan_id: str, member: int) -> Started:
    found = launch_training(bench.place, plan_id, member)
    assert isinstance(found, Started)
    return found


def asked(bench: Bench) -> ApprovalRequest:
    """Three runs of at most 600 s at 6.00 EUR an hour, estimated at 0.15 each."""
    apply_file(bench.human, "prices", write(bench.project.parent / "prices.yaml", PRICES))
    record = bench.record(PlanState.ESTIMATED, sweep=SWEEP, cost=0.15)
    return request_approval(bench.place, record.plan_id, "three rates").request


@pytest.fixture
def sweep(bench: Bench) -> PlanRecord:
    request = asked(bench)
    bench.human.decide(request)
    return bench.store.plan(request.plan_id)


def test_the_human_sees_every_run_and_the_sum(bench: Bench) -> None:
    request = asked(bench)
    text = shown_text(bench.store.plan(request.plan_id), request, spec=None, differences=())
    for line in ("covers 3 runs, each of them once", "run 1: --lr 0.1", "run 2: --lr 0.2", "run 3: --lr 0.4"):
        assert line in text
    assert "All together: cost 0.45 EUR" in text
    assert "At most: 3.00 EUR, 1.00 device hours" in text
    assert whole_cost_words(request) == "0.45"


def test_each_run_starts_once_and_repeats_give_the_same_run(bench: Bench, sweep: PlanRecord) -> None:
    runs = {}
    for member in (2, 1, 3):
        started = launched(bench, sweep.plan_id, member)
        runs[member] = started.run.run_id
        assert (started.run.member, started.already) == (member, False)
        files = RunLayout(Path(started.run.run_dir))
        order = read_order(files)
        assert order is not None
        assert order.spec.argv[-2:] == SWEEP[member - 1]
        assert order.member == member
        assert read_plan(files) == sweep.plan
        assert plan_of(bench.place, started.run).argv == SWEEP[member - 1]
    assert len(set(runs.values())) == 3
    for member, run_id in runs.items():
        again = launched(bench, sweep.plan_id, member)
        assert (again.run.run_id, again.already, again.left) == (run_id, True, ())
    assert bench.store.problems() == []


@pytest.mark.parametrize("member", [None, 0, 4, -1])
def test_a_run_that_is_not_listed_is_refused(bench: Bench, sweep: PlanRecord, member: int | None) -> None:
    with pytest.raises(InvalidInput, match=r"names none of them|lists the runs 1 to 3"):
        launch_training(bench.place, sweep.plan_id, member)
    assert bench.store.runs(limit=9) == []


def test_a_member_of_a_plan_that_is_no_sweep_is_refused(bench: Bench) -> None:
    with pytest.raises(InvalidInput, match="is no sweep"):
        launch_training(bench.place, bench.approved().plan_id, 1)
    assert bench.store.runs(limit=9) == []


def test_the_store_itself_starts_no_member_twice_and_none_unlisted(bench: Bench, sweep: PlanRecord) -> None:
    request = bench.store.request_for_plan(sweep.plan_id)
    assert request is not None
    run = launched(bench, sweep.plan_id, 1).run
    other = run.model_copy(update={"run_id": "run-0000000001"})
    assert bench.store.consume_approval(request.request_id, other).run_id == run.run_id
    for member in (None, 9):
        with pytest.raises(Refused, match=r"names none of them|lists the runs 1 to 3"):
            bench.store.consume_approval(request.request_id, other.model_copy(update={"member": member}))


def test_launches_at_once_of_one_member_are_one_run(bench: Bench, sweep: PlanRecord) -> None:
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(launched(bench, sweep.plan_id, 2).run.run_id)) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert [run.member for run in bench.store.runs(limit=9)] == [2]


def test_budgets_reserve_the_total_and_each_run_settles_its_own_part(bench: Bench, sweep: PlanRecord) -> None:
    held = bench.store.reservations()
    assert [r.cost for r in held] == ["1.00"] * 3
    assert sum(Decimal(r.device_hours) for r in held) == Decimal(1)
    first = launched(bench, sweep.plan_id, 1)
    order = read_order(RunLayout(Path(first.run.run_dir)))
    assert order is not None
    assert order.cost is not None
    assert (order.cost.most, order.cost.hourly_rate, order.cost.currency) == ("1.00", "6.00", "EUR")
    end_run(RunLayout(Path(first.run.run_dir)), elapsed_s=60.0)
    bench.place.reconciler.reconcile_all()
    by_member = {r.reservation_id.rpartition(".")[2]: r.actual_cost for r in bench.store.reservations()}
    assert by_member == {"1": "0.10", "2": None, "3": None}


def test_a_budget_that_does_not_hold_all_runs_holds_none(bench: Bench) -> None:
    text = policy_text(budgets="{day: {cost: 2.99}, project: null, requester: null}")
    apply_file(bench.human, "policy", write(bench.project.parent / "policy.yaml", text))
    request = asked(bench)
    with pytest.raises(Refused, match=r"is 2.99 EUR: 0.00 are used or reserved, this launch may cost 3.00"):
        bench.human.decide(request)
    assert bench.store.reservations() == []


def test_the_others_may_start_later_once_the_first_has_started_in_time(bench: Bench, sweep: PlanRecord) -> None:
    launched(bench, sweep.plan_id, 1)
    bench.clock.now_s += 3600 + 100
    assert launched(bench, sweep.plan_id, 2).left == (3,)
    bench.clock.now_s += 3 * 600
    with pytest.raises(Refused, match="expired"):
        launch_training(bench.place, sweep.plan_id, 3)
    assert launched(bench, sweep.plan_id, 2).already


def test_a_sweep_of_which_nothing_started_in_time_has_expired(bench: Bench, sweep: PlanRecord) -> None:
    bench.clock.now_s += 3600
    found = launch_training(bench.place, sweep.plan_id, 1)
    assert isinstance(found, ApprovalRequired)
    assert "expired" in found.missing[0]
    assert bench.store.runs(limit=9) == []


def test_the_digest_covers_every_member() -> None:
    plans = [
        TrainingPlan.model_construct(argv=sweep[0], sweep=sweep, inherited_hashes={}, data=())
        for sweep in (SWEEP, (*SWEEP[:2], ("--lr", "0.3")), SWEEP[:2], (SWEEP[0], SWEEP[2], SWEEP[1]))
    ]
    assert len({plan.digest for plan in plans}) == 4


def test_the_free_tier_takes_no_sweep(bench: Bench) -> None:
    text = policy_text(free_tier="{max_cost: 10, max_device_hours: 9, max_per_day: 2}")
    apply_file(bench.human, "policy", write(bench.project.parent / "policy.yaml", text))
    apply_file(bench.human, "prices", write(bench.project.parent / "prices.yaml", PRICES))
    record = bench.record(PlanState.ESTIMATED, sweep=SWEEP, cost=0.15)
    assert isinstance(launch_training(bench.place, record.plan_id, 1), ApprovalRequired)
    assert bench.store.runs(limit=9) == []
