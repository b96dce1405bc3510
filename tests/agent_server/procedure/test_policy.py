"""The policy and the prices in the procedure: estimates, levels, the free tier, and what was spent."""

import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from agent_server.approvals.policy import SHIPPED
from agent_server.procedure.asking import estimate, request_approval
from agent_server.procedure.following import run_progress
from agent_server.procedure.spending import Spent, spent_on, totals
from agent_server.procedure.starting import ApprovalRequired, Started, launch_training, smoke_test
from runtime.config.order import Heartbeat
from runtime.config.plan import ProcessLayout, SmokeSettings
from runtime.layout import RunLayout
from runtime.run_files import read_claim, write_model
from tests.fakes.approvals import smoke_result
from tests.fakes.bench import Bench
from tests.fakes.launcher import end_run
from tests.fakes.policies import PRICES, apply_file, policy_text, write
from tests.fakes.run_directories import START_S, add_metric, make_layout, make_run
from tools.domain.approval import AssuranceLevel
from tools.domain.errors import Refused, WrongStep
from tools.domain.ids import new_id
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.reports import Device
from tools.domain.run_state import RunRecord, RunState

TIER = "{max_cost: 10, max_device_hours: 1, max_per_day: 2}"


def put(bench: Bench, kind: str, text: str) -> Path:
    path = write(bench.project.parent / f"{kind}.yaml", text)
    apply_file(bench.human, kind, path)  # type: ignore[arg-type]  # one of the two words
    return path


def smoked(bench: Bench, *, device: str = "cpu", processes: int = 2) -> PlanRecord:
    """A plan of 1000 steps whose smoke run of 12 steps took a second each."""
    plan = bench.plan(argv=("--steps", "1000")).model_copy(
        update={
            "smoke": SmokeSettings(args=("--steps", "12")),
            "layout": ProcessLayout(num_processes=processes, device=device),
        }
    )
    run_id = new_id("run")
    layout = make_layout(bench.place.settings.runs_dir / run_id)
    for step in range(1, 13):
        add_metric(layout, "backward_loss", 1.0, step=step, time_s=START_S + step)
    run = make_run(layout, plan, ended_at_s=START_S + 14, elapsed_s=14.0)
    record = PlanRecord(
        plan_id=new_id("plan"),
        state=PlanState.SMOKED,
        requester="agent",
        created_at_s=bench.clock(),
        plan=plan,
        plan_digest=plan.digest,
        smoke=smoke_result(plan).model_copy(update={"run_id": run_id, "num_steps": 12}),
    )
    bench.store.add_plan(record)
    launching = run.model_copy(
        update={"run_id": run_id, "plan_id": record.plan_id, "state": RunState.LAUNCHING, "result": None}
    )
    bench.store.add_run(launching)
    ended = run.model_copy(update={"run_id": run_id, "plan_id": record.plan_id})
    bench.store.save_run(ended, expect=RunState.LAUNCHING)
    return record


def data_is_harmless(bench: Bench) -> str:
    return f"{{absent: A2, present: A2, paths_without: [{bench.project / 'data'}]}}"


def started(bench: Bench, plan_id: str) -> Started:
    found = launch_training(bench.place, plan_id)
    assert isinstance(found, Started)
    return found


def gpu(ordinal: int, utilisation: float) -> Device:
    return Device(
        kind="cuda",
        name="H100",
        ordinal=ordinal,
        memory_total_bytes=2**36,
        memory_free_bytes=2**36,
        memory_kind="dedicated",
        utilisation_percent=utilisation,
    )


def test_an_estimate_has_no_cost_before_prices_are_signed_and_has_one_after(bench: Bench) -> None:
    record = smoked(bench)
    before = estimate(bench.place, record.plan_id)
    assert before.wall_time_s is not None
    assert (before.cost, before.currency, before.price_source) == (None, "", "unknown")
    write(bench.project.parent / "prices.yaml", PRICES)
    assert estimate(bench.place, record.plan_id).cost is None, "a file that nobody signed counts for nothing"
    put(bench, "prices", PRICES)
    after = estimate(bench.place, record.plan_id)
    assert after.cost is not None
    assert after.cost.value == pytest.approx(after.wall_time_s.value / 3600 * 36.0 if after.wall_time_s else -1)
    assert after.currency == "EUR"
    assert "36.00 EUR per node hour, contract 17 (as of 2026-01-01" in after.price_source


def test_an_edited_price_file_makes_the_estimate_unknown_and_says_why(bench: Bench) -> None:
    path = put(bench, "prices", PRICES)
    path.write_text(PRICES.replace("36.00", "0.01"))
    found = estimate(bench.place, smoked(bench).plan_id)
    assert found.cost is None
    assert any("do not count" in words and "was edited since" in words for words in found.unknowns)


def test_an_estimate_of_other_prices_is_made_again_before_anyone_is_asked(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    record = smoked(bench)
    first = estimate(bench.place, record.plan_id)
    put(bench, "prices", PRICES.replace("36.00", "72.00"))
    with pytest.raises(WrongStep, match="made under other prices") as caught:
        request_approval(bench.place, record.plan_id, "")
    assert "estimate_cost" in caught.value.next_step
    second = estimate(bench.place, record.plan_id)
    assert first.cost is not None
    assert second.cost is not None
    assert second.cost.value == pytest.approx(2 * first.cost.value)
    request = request_approval(bench.place, record.plan_id, "").request
    assert request.assessment is not None
    assert request.assessment.most_cost == "12.00"  # 600 s at 72 an hour
    bench.human.decide(request, decision="refuse")
    assert estimate(bench.place, record.plan_id) == second, "what was shown stays what it was"
    put(bench, "prices", PRICES)
    assert estimate(bench.place, record.plan_id).cost == first.cost
    assert bench.store.plan(record.plan_id).state is PlanState.REFUSED
    assert request_approval(bench.place, record.plan_id, "").request.estimate.cost == first.cost


def test_a_request_names_the_policy_its_expiry_the_level_and_why(bench: Bench) -> None:
    record = bench.record(PlanState.ESTIMATED)
    request = request_approval(bench.place, record.plan_id, "").request
    assert request.policy_version == SHIPPED
    assert request.expires_at_s - request.created_at_s == 3600
    put(
        bench,
        "policy",
        policy_text(requests="{expire_after_s: 120}", launches_device_hours="[{up_to: 0.1, needs: A2}, {needs: A3}]"),
    )
    other = request_approval(bench.place, bench.record(PlanState.ESTIMATED, argv=("x",)).plan_id, "").request
    assert other.policy_version.startswith("lab-1@")
    assert other.expires_at_s - other.created_at_s == 120
    assert other.assessment is not None
    assert other.assessment.level is AssuranceLevel.A3
    assert any(words.startswith("A3: device hours at most 0.333334") for words in other.assessment.why)


def test_a_launch_under_another_policy_is_refused_by_name_and_starts_nothing(bench: Bench) -> None:
    record = bench.approved()
    put(bench, "policy", policy_text())
    with pytest.raises(Refused, match=f"made under policy {SHIPPED}, in force is lab-1@"):
        launch_training(bench.place, record.plan_id)
    assert bench.launcher.submitted == []


def test_devices_that_others_took_since_the_approval_need_the_higher_level(bench: Bench) -> None:
    put(bench, "policy", policy_text(launches_devices="{free: A2, in_use: A3}"))
    seen = [gpu(0, 0.0), gpu(1, 0.0)]
    bench.place = replace(bench.place, survey=lambda _: seen)
    record = smoked(bench, device="cuda")
    estimate(bench.place, record.plan_id)
    request = request_approval(bench.place, record.plan_id, "").request
    assert request.assessment is not None
    assert (request.assessment.device_use, request.assessment.level) == ("free", AssuranceLevel.A2)
    bench.human.decide(request)
    seen[1] = gpu(1, 98.0)
    with pytest.raises(Refused, match="as the devices are used now it needs A3: GPU 1 is in use: 98% busy"):
        launch_training(bench.place, record.plan_id)
    seen[1] = gpu(1, 0.0)
    assert not started(bench, record.plan_id).already


def test_busy_devices_at_the_request_are_told_to_the_human(bench: Bench) -> None:
    put(bench, "policy", policy_text(launches_devices="{free: A2, in_use: A3}"))
    bench.place = replace(bench.place, survey=lambda _: [gpu(0, 55.0), gpu(1, 0.0)])
    record = smoked(bench, device="cuda")
    estimate(bench.place, record.plan_id)
    request = request_approval(bench.place, record.plan_id, "").request
    with pytest.raises(Refused, match="level A2, needed is A3"):
        bench.human.decide(request)


@pytest.mark.parametrize(
    "limits", ["{max_wall_time_s: 299, max_device_hours: 16}", "{max_wall_time_s: 300, max_device_hours: 0.16}"]
)
def test_a_smoke_run_beyond_the_limits_is_refused(bench: Bench, limits: str) -> None:
    put(bench, "policy", policy_text(smoke_runs=limits))
    with pytest.raises(Refused, match="the smoke run may take 300 s on 2 process") as caught:
        smoke_test(bench.place, bench.record().plan_id)
    assert "smoke_wall_time_s" in caught.value.next_step
    put(bench, "policy", policy_text(smoke_runs="{max_wall_time_s: 300, max_device_hours: 0.17}"))
    assert not smoke_test(bench.place, bench.record(argv=("x",)).plan_id).already


def test_no_launch_is_free_by_default(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    assert isinstance(launch_training(bench.place, record.plan_id), ApprovalRequired)
    assert bench.launcher.submitted == []


def test_the_free_tier_launches_once_reserves_and_says_so(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    put(bench, "policy", policy_text(free_tier=TIER, launches_personal_data=data_is_harmless(bench)))
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    first, again = started(bench, record.plan_id), started(bench, record.plan_id)
    assert (first.already, again.already, again.run.run_id) == (False, True, first.run.run_id)
    assert first.run.request_id is None
    row = bench.store.reservation_of(first.run.run_id)
    assert row is not None
    assert (row.free, row.cost, row.reservation_id) == (True, "6.00", first.run.run_id)
    assert any(r.event == "launched_without_approval" and r.subject == record.plan_id for r in bench.store.audit_log())
    end_run(RunLayout(Path(first.run.run_dir)), elapsed_s=100.0)
    assert started(bench, record.plan_id).run.state is RunState.SUCCEEDED
    settled = bench.store.reservation_of(first.run.run_id)
    assert settled is not None
    assert settled.actual_cost == "1.00"
    assert bench.store.problems() == []


def test_the_free_tier_ends_where_its_limits_end(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    put(bench, "policy", policy_text(free_tier=TIER, launches_personal_data=data_is_harmless(bench)))
    records = [smoked(bench, processes=n) for n in (2, 3, 4)]
    for record in records:
        estimate(bench.place, record.plan_id)
    assert not started(bench, records[0].plan_id).already
    assert not started(bench, records[1].plan_id).already
    assert isinstance(launch_training(bench.place, records[2].plan_id), ApprovalRequired), "two a day"
    bench.clock.now_s += 86_400
    assert not started(bench, records[2].plan_id).already


def test_free_launches_at_the_same_time_keep_the_limit_of_the_day(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    one = TIER.replace("max_per_day: 2", "max_per_day: 1")
    put(bench, "policy", policy_text(free_tier=one, launches_personal_data=data_is_harmless(bench)))
    records = [smoked(bench, processes=n) for n in (1, 2, 3, 4)]
    for record in records:
        estimate(bench.place, record.plan_id)
    barrier, found = threading.Barrier(4), []

    def launch(plan_id: str) -> None:
        barrier.wait(20)
        try:
            found.append(isinstance(launch_training(bench.place, plan_id), Started))
        except Refused:
            found.append(False)

    threads = [threading.Thread(target=launch, args=(record.plan_id,)) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert sorted(found) == [False, False, False, True]
    assert sum(row.free for row in bench.store.reservations()) == 1


@pytest.mark.parametrize("edited", ["policy", "prices"])
def test_an_edited_file_closes_the_free_tier(bench: Bench, edited: str) -> None:
    put(bench, "prices", PRICES)
    put(bench, "policy", policy_text(free_tier=TIER, launches_personal_data=data_is_harmless(bench)))
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    path = bench.project.parent / f"{edited}.yaml"
    path.write_text(path.read_text() + "\n")
    assert isinstance(launch_training(bench.place, record.plan_id), ApprovalRequired)


def test_changed_code_is_not_launched_freely(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    put(bench, "policy", policy_text(free_tier=TIER, launches_personal_data=data_is_harmless(bench)))
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    (bench.project / "model.py").write_text("LAYERS = 9\n")
    assert isinstance(launch_training(bench.place, record.plan_id), ApprovalRequired)


def test_a_full_budget_is_named_when_a_free_launch_does_not_fit(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    budgets = "{day: {cost: 5.99}, project: null, requester: null}"
    put(bench, "policy", policy_text(free_tier=TIER, launches_personal_data=data_is_harmless(bench), budgets=budgets))
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    with pytest.raises(Refused, match="budget of the day"):
        launch_training(bench.place, record.plan_id)
    assert list(bench.place.settings.runs_dir.glob("run-*")) == [
        bench.place.settings.runs_dir / (record.smoke.run_id if record.smoke else "")
    ]
    assert bench.store.plan(record.plan_id).state is PlanState.ESTIMATED


def beat(run: RunRecord, elapsed_s: float) -> None:
    """A heartbeat of the run's supervisor."""
    last = Heartbeat(time_s=1.0, pid=1, start_ticks=1, boot_id="x", elapsed_s=elapsed_s, disk_bytes=0, phase="running")
    write_model(RunLayout(Path(run.run_dir)).heartbeat, last)


def test_what_a_run_has_cost_so_far_is_counted_to_its_last_heartbeat_also_when_it_is_lost(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    bench.human.decide(request_approval(bench.place, record.plan_id, "").request)
    run = started(bench, record.plan_id).run
    assert spent_on(bench.store, [run], now_s=bench.clock())[run.run_id].words() == "unknown"
    beat(run, 90.0)
    assert spent_on(bench.store, [run], now_s=bench.clock() + 9e5)[run.run_id].words() == "0.90 EUR"
    claim = read_claim(RunLayout(Path(run.run_dir)))
    assert claim is not None
    write_model(RunLayout(Path(run.run_dir)).claim, claim.model_copy(update={"boot_id": "another boot", "time_s": 1.0}))
    lost = bench.place.reconciler.reconcile(bench.store.run(run.run_id))
    assert lost.state is RunState.LOST
    found = spent_on(bench.store, [lost], now_s=bench.clock())[run.run_id]
    assert found.words() == "0.90 EUR"
    assert "the supervisor is gone without a result" in found.note


def test_stopped_time_is_not_billed_and_totals_are_those_of_the_lines(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    bench.human.decide(request_approval(bench.place, record.plan_id, "").request)
    run = started(bench, record.plan_id).run
    end_run(RunLayout(Path(run.run_dir)), elapsed_s=120.0)
    run = started(bench, record.plan_id).run
    for later_s in (0.0, 15 * 3600.0, 20 * 3600.0):
        found = spent_on(bench.store, [run], now_s=bench.clock() + later_s)[run.run_id]
        assert found.words() == "1.20 EUR"
    put(bench, "prices", PRICES.replace("36.00", "99.00"))
    assert spent_on(bench.store, [run], now_s=bench.clock())[run.run_id].words() == "1.20 EUR", "the price of its day"
    progress = run_progress(bench.place, run)
    assert (progress.spent_cost, progress.currency) == (1.2, "EUR")


def test_totals_add_what_is_shown_by_currency_and_never_count_unknown_as_nothing() -> None:
    lines = [Spent(Decimal("0.005"), "EUR"), Spent(Decimal("0.005"), "EUR"), Spent(Decimal("1.50"), "USD"), Spent()]
    assert [one.words() for one in lines] == ["0.01 EUR", "0.01 EUR", "1.50 USD", "unknown"]
    assert totals(lines) == "0.02 EUR; 1.50 USD; 1 run(s) of unknown cost, not 0"


def test_a_run_that_never_started_costs_nothing(bench: Bench) -> None:
    put(bench, "prices", PRICES)
    record = smoked(bench)
    estimate(bench.place, record.plan_id)
    bench.human.decide(request_approval(bench.place, record.plan_id, "").request)
    bench.launcher.claims = False
    run = started(bench, record.plan_id).run
    bench.clock.now_s += 500
    run = bench.place.reconciler.reconcile(bench.store.run(run.run_id))
    assert run.state is RunState.FAILED
    assert spent_on(bench.store, [run], now_s=bench.clock())[run.run_id].words() == "0.00 EUR"
    row = bench.store.reservation_of(run.run_id)
    assert row is not None
    assert row.actual_cost == "0.00"


def test_a_smoke_run_is_shown_at_the_price_that_counts_now(bench: Bench) -> None:
    record = smoked(bench)
    run = bench.store.runs(limit=1, plan_id=record.plan_id)[0]
    assert spent_on(bench.store, [run], now_s=bench.clock())[run.run_id].words() == "unknown"
    put(bench, "prices", PRICES)
    found = spent_on(bench.store, [run], now_s=bench.clock())[run.run_id]
    assert (found.words(), found.note) == ("0.14 EUR", "at the price that counts now")
