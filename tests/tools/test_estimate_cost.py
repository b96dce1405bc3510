"""Estimates: computed from the smoke run, with an interval, a price with its source, and everything unknown by name."""

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.config.plan import ProcessLayout, TrainingPlan
from runtime.layout import RunLayout
from tests.fakes.run_directories import START_S, add_event, add_metric, make_layout, make_plan, make_run
from tools.domain.errors import WrongStep
from tools.domain.ports import PastEstimate
from tools.domain.reports import CostEstimate, Interval, SmokeResult
from tools.estimate_cost import PriceList, estimate_cost, past_accuracy
from tools.evidence.prices import Price, cost_of
from tools.evidence.step_times import bootstrap_step_interval

STEP_SECONDS = [9.0, 3.0, 0.5, 0.6, 0.4, 0.5, 0.5, 0.7, 0.3, 0.5, 0.5]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    return make_layout(tmp_path / "run")


def smoke_of(plan: TrainingPlan, *, num_steps: int | None = 12, memory: int | None = 1000) -> SmokeResult:
    return SmokeResult(
        run_id="run-0000000000", plan_digest=plan.digest, verdict="passed", checks=(), num_steps=num_steps,
        peak_memory_bytes=memory,
    )  # fmt: skip


def write_smoke(layout: RunLayout, plan: TrainingPlan) -> None:
    """Start-up 10 s to the first record, the steps, then a checkpoint of 2 s within 5 s to the end."""
    now_s = START_S + 10
    add_metric(layout, "backward_loss", 1.0, step=1, time_s=now_s)
    for step, seconds in enumerate(STEP_SECONDS, start=2):
        now_s += seconds
        add_metric(layout, "backward_loss", 1.0, step=step, time_s=now_s)
    add_event(layout, "checkpoint_saved", path="checkpoints/smoke", seconds=2.0, size_bytes=1)
    make_run(layout, plan, ended_at_s=now_s + 5, elapsed_s=now_s + 5 - START_S)


def estimate(
    plan: TrainingPlan, layout: RunLayout, *, prices: PriceList | None = None, smoke: SmokeResult | None = None
) -> CostEstimate:
    return estimate_cost(
        plan, plan_digest=plan.digest, smoke=smoke or smoke_of(plan), layout=layout, past=(), prices=prices
    )


def prices(amount: str = "3.60", per: str = "device_hour", **more: str) -> PriceList:
    price = {"amount": amount, "per": per, **more}
    return PriceList.model_validate(
        {"currency": "USD", "source": "contract 17", "as_of": "2026-01-01", "prices": [price]}
    )


def test_time_is_start_up_steps_checkpoints_and_rest(layout: RunLayout) -> None:
    plan = make_plan(argv=("--steps", "1000"), smoke_args=("--steps", "12"))
    write_smoke(layout, plan)
    found = estimate(plan, layout, prices=prices())
    median = statistics.median(STEP_SECONDS[2:])
    assert found.wall_time_s is not None
    assert found.wall_time_s.value == pytest.approx((10 - median) + 1000 * median + 2 + 3)
    assert found.wall_time_s.low <= found.wall_time_s.value <= found.wall_time_s.high
    assert found.wall_time_s.low >= 1000 * 0.3
    assert found.wall_time_s.high <= 1000 * 0.7 + 15
    assert found.num_steps == 1000
    assert found.device_hours == pytest.approx(found.wall_time_s.value * 2 / 3600)
    assert found.cost is not None
    assert found.cost.value == pytest.approx(found.device_hours * 3.60)
    assert (found.currency, found.past_accuracy) == ("USD", "no earlier runs measured")
    assert any("checkpoints and evaluations" in u for u in found.unknowns)
    assert "1000 steps x median 0.5 s" in found.method


def test_memory_has_a_margin_and_a_device_is_said_to_be_unmeasured(layout: RunLayout) -> None:
    plan = make_plan(argv=("--steps", "9"), device="cuda")
    found = estimate(plan, layout)
    assert found.memory_bytes is not None
    assert (found.memory_bytes.low, found.memory_bytes.high) == (1000, 1250)
    assert found.memory_bytes.value == pytest.approx(1100)
    assert any("memory of the cuda devices" in u for u in found.unknowns)
    unknown = estimate(plan, layout, smoke=smoke_of(plan, memory=None))
    assert unknown.memory_bytes is None
    assert any(u.startswith("memory: ") for u in unknown.unknowns)


def test_without_times_there_are_bounds_and_no_confidence_interval(layout: RunLayout) -> None:
    plan = make_plan(argv=("--steps", "120"), smoke_args=("--steps", "12"))
    layout.stdout(0).write_text("".join(f'{{"step":{i},"loss":1}}\n' for i in range(1, 13)))
    make_run(layout, plan, elapsed_s=60.0)
    found = estimate(plan, layout)
    assert found.wall_time_s == Interval(value=600, low=60, high=600, level=100)
    assert found.method.startswith("Bounds, no confidence interval")
    assert any("carry no times" in u for u in found.unknowns)


def test_trainers_own_time_is_the_part_that_grows(layout: RunLayout) -> None:
    plan = make_plan(argv=("--max_steps", "120"), smoke_args=("--max_steps", "12"))
    layout.stdout(0).write_text("{'train_runtime': 24.0, 'train_loss': 1.0, 'epoch': 1.0}\n")
    make_run(layout, plan, elapsed_s=60.0)
    found = estimate(plan, layout)
    assert found.wall_time_s == Interval(value=36 + 240, low=60, high=600, level=100)
    assert any("only their sum" in u for u in found.unknowns)


@pytest.mark.parametrize(("argv", "ran"), [((), True), (("--steps", "9"), False)])
def test_unknown_steps_or_times_mean_an_unknown_cost(layout: RunLayout, argv: tuple[str, ...], ran: bool) -> None:
    plan = make_plan(argv=argv)
    if ran:
        write_smoke(layout, plan)
    found = estimate(plan, layout, prices=prices())
    assert (found.wall_time_s, found.cost, found.device_hours) == (None, None, None)
    assert any(u.startswith("wall time: ") for u in found.unknowns)
    assert "cost: the wall time is unknown" in found.unknowns


def test_no_price_is_unknown_and_a_price_of_zero_is_given(layout: RunLayout) -> None:
    plan = make_plan(argv=("--steps", "100"))
    write_smoke(layout, plan)
    for none in (None, prices(device="cuda"), prices(launcher="slurm")):
        found = estimate(plan, layout, prices=none)
        assert (found.cost, found.price_source, found.currency) == (None, "unknown", "")
        assert any(u.startswith("cost: no price is known") for u in found.unknowns)
    free = estimate(plan, layout, prices=prices("0"))
    assert free.cost is not None
    assert (free.cost.value, free.currency) == (0.0, "USD")
    assert "a price of 0 is given, not assumed" in free.price_source


@pytest.mark.parametrize(
    ("amount", "per", "processes", "device", "expected"),
    [
        ("2.50", "device_hour", 16, "cuda", 120.0),
        ("20", "node_hour", 16, "cuda", 120.0),
        ("0.10", "node_hour", 2, "cpu", 0.60),
        ("0", "device_hour", 16, "cuda", 0.0),
    ],
)
def test_a_price_is_multiplied_by_its_own_unit_once(
    amount: str, per: str, processes: int, device: str, expected: float
) -> None:
    layout = ProcessLayout(num_processes=processes, num_nodes=2, device=device)
    price = Price.model_validate({"amount": amount, "per": per})
    assert cost_of(3.0, layout=layout, price=price) == expected


def test_the_unit_the_source_and_the_age_stand_beside_the_price() -> None:
    found = prices("2.5", "node_hour").model_copy(update={"age_days": 33})
    words = "2.5 USD per node hour, contract 17 (as of 2026-01-01, 33 days old)"
    assert found.describe(found.prices[0]) == words


def past(value: float, low: float, high: float, actual: float) -> PastEstimate:
    interval = Interval(value=value, low=low, high=high)
    one = CostEstimate(
        plan_digest="0" * 64, wall_time_s=interval, memory_bytes=None, cost=None, method="", past_accuracy=""
    )
    return PastEstimate(one, actual, None)


def test_past_accuracy_is_counted(layout: RunLayout) -> None:
    rows = [past(110, 90, 120, 100), past(80, 70, 90, 100), past(100, 99, 101, 100)]
    assert past_accuracy(rows) == (
        "time: 3 earlier runs measured, median absolute error 10.0% of the actual value, actual inside the interval in "
        "2 of 3"
    )
    assert past_accuracy(()) == "no earlier runs measured"


def test_another_plans_smoke_run_is_refused(layout: RunLayout) -> None:
    plan = make_plan()
    with pytest.raises(WrongStep):
        estimate(plan, layout, smoke=smoke_of(make_plan(argv=("--x",))))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.001, 100), min_size=4, max_size=40))
def test_the_bootstrap_interval_lies_within_the_data(seconds: list[float]) -> None:
    low, high = bootstrap_step_interval(seconds)
    assert min(seconds) * (1 - 1e-9) <= low <= high <= max(seconds) * (1 + 1e-9)
    assert (low, high) == bootstrap_step_interval(seconds)


def test_the_interval_covers_the_true_mean_of_dependent_steps() -> None:
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        noise = random.normal(0, 0.1, 80)
        steps = 1.0 + np.convolve(noise, [0.5, 0.5], mode="valid")
        low, high = bootstrap_step_interval(list(steps))
        covered += low <= 1.0 <= high
    assert covered >= 50
