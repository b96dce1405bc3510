"""estimate_cost: time, memory and cost of the full run from its smoke run, with intervals and what is unknown."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from runtime.config.plan import TrainingPlan
from runtime.layout import RunLayout
from runtime.records import EventRecord, read_events
from runtime.run_files import read_result

from .domain.errors import WrongStep
from .domain.ports import PastEstimate
from .domain.reports import CostEstimate, Interval, SmokeResult
from .evidence.prices import PriceList, cost_of
from .evidence.run_metrics import read_run_metrics
from .evidence.step_counts import StepCount, full_run_steps
from .evidence.step_times import WARM_UP_INTERVALS, StepTimes, bootstrap_step_interval, step_times
from .evidence.trainer import find_trainer_state
from .text import shown

__all__ = ["PriceList", "estimate_cost"]

MEMORY_MARGIN = 1.10
MEMORY_MARGIN_HIGH = 1.25
_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class SmokeTiming:
    """What the smoke run took, in seconds. `rest_s` is all that is neither start-up nor steps nor checkpoint saves,
    `training_s` the train_runtime that transformers' Trainer reports."""

    elapsed_s: float
    steps: StepTimes | None
    start_up_s: float | None
    checkpoints_s: float
    rest_s: float | None
    training_s: float | None = None


def estimate_cost(
    plan: TrainingPlan,
    *,
    plan_digest: str,
    smoke: SmokeResult,
    layout: RunLayout,
    past: Sequence[PastEstimate],
    prices: PriceList | None,
) -> CostEstimate:
    """Estimate the full run of `plan`.

    Args:
        layout: the run directory of the smoke run that `smoke` judged.
        past: earlier estimates with what was then measured.
        prices: the price list that counts; None means that no price is known.

    Raises:
        WrongStep: the smoke run is another plan's.
    """
    if smoke.plan_digest != plan_digest:
        raise WrongStep("the smoke run belongs to another plan", next_step="smoke_test for this plan")
    events = tuple(read_events(layout.events))
    count = full_run_steps(plan, events, find_trainer_state(layout))
    timing = _timing(layout, events)
    unknowns: list[str] = []
    wall_time, method = _wall_time(timing, count, smoke=smoke, unknowns=unknowns)
    memory = _memory(smoke, device=plan.layout.device, unknowns=unknowns)
    cost, price_source = _cost(wall_time, plan=plan, prices=prices, unknowns=unknowns)
    return CostEstimate(
        plan_digest=plan_digest,
        wall_time_s=wall_time,
        memory_bytes=memory,
        cost=cost,
        currency=prices.currency if prices and cost else "",
        price_source=price_source,
        device_hours=wall_time.value * plan.layout.num_processes / _SECONDS_PER_HOUR if wall_time else None,
        num_steps=count.num_steps,
        method=f"{method} Steps: {shown(count.why)}.",
        unknowns=tuple(unknowns),
        past_accuracy=past_accuracy(past),
    )


def _timing(layout: RunLayout, events: Sequence[EventRecord]) -> SmokeTiming | None:
    result = read_result(layout)
    if result is None:
        return None
    metrics = read_run_metrics(layout)
    steps = step_times(metrics)
    saves = [e.details.get("seconds") for e in events if e.event == "checkpoint_saved"]
    checkpoints_s = sum(s for s in saves if isinstance(s, int | float) and not isinstance(s, bool) and s >= 0)
    if steps is None:
        training = [m.record.value for m in metrics if m.record.name == "train_runtime" and m.record.rank == 0]
        return SmokeTiming(result.elapsed_s, None, None, checkpoints_s, None, training[-1] if training else None)
    start_up_s = max(0.0, steps.first_time_s - result.started_at_s - steps.median_s)
    rest_s = max(0.0, result.ended_at_s - steps.last_time_s - checkpoints_s)
    return SmokeTiming(result.elapsed_s, steps, start_up_s, checkpoints_s, rest_s)


def _wall_time(
    timing: SmokeTiming | None, count: StepCount, *, smoke: SmokeResult, unknowns: list[str]
) -> tuple[Interval | None, str]:
    if timing is None:
        unknowns.append("wall time: the smoke run left no result")
        return None, "No time was measured."
    if count.num_steps is None:
        unknowns.append(f"wall time: the number of steps is unknown ({shown(count.why)})")
        return None, "No wall time without a number of steps."
    if timing.steps is None or timing.start_up_s is None or timing.rest_s is None:
        return _bounds(timing, count.num_steps, num_seen=smoke.num_steps, unknowns=unknowns)
    fixed_s = timing.start_up_s + timing.checkpoints_s + timing.rest_s
    low, high = bootstrap_step_interval(timing.steps.seconds)
    median = timing.steps.median_s
    unknowns.append(
        "checkpoints and evaluations of the full run beyond the smoke run's: their number and length are unmeasured"
    )
    num_steps = count.num_steps
    interval = Interval(
        value=fixed_s + num_steps * median,
        low=fixed_s + num_steps * min(low, median),
        high=fixed_s + num_steps * max(high, median),
    )
    return interval, (
        f"start-up {timing.start_up_s:.3g} s + {num_steps} steps x median {median:.4g} s + checkpoints "
        f"{timing.checkpoints_s:.3g} s + rest {timing.rest_s:.3g} s; median over {len(timing.steps.seconds)} intervals "
        f"after {WARM_UP_INTERVALS} of warm-up ({shown(timing.steps.source)}); 95% interval by block bootstrap."
    )


def _bounds(
    timing: SmokeTiming, num_steps: int, *, num_seen: int | None, unknowns: list[str]
) -> tuple[Interval | None, str]:
    """Records without times: the smoke run's time is all start-up in the one extreme, all steps in the other. Where
    Trainer reported its train_runtime, that is the steps' part, and the value lies between."""
    if not num_seen:
        unknowns.append("wall time: no step of the smoke run was seen")
        return None, "No step was seen."
    scale = max(1.0, num_steps / num_seen)
    low, high = timing.elapsed_s, timing.elapsed_s * scale
    took = f"the smoke run took {timing.elapsed_s:.4g} s for {num_seen} steps; the full run has {num_steps}."
    training_s = timing.training_s
    if training_s is None or not 0 < training_s <= timing.elapsed_s:
        unknowns.append(
            "time per step: the script's records carry no times, so start-up and steps cannot be told apart"
        )
        method = f"Bounds, no confidence interval: {took} The value is the upper bound."
        return Interval(value=high, low=low, high=high, level=100.0), method
    unknowns.append("spread of the step times: only their sum was reported")
    value = timing.elapsed_s - training_s + training_s * scale
    method = f"Bounds, no confidence interval: {took} Of this, train_runtime {training_s:.4g} s grows with the steps."
    return Interval(value=value, low=low, high=high, level=100.0), method


def _memory(smoke: SmokeResult, *, device: str, unknowns: list[str]) -> Interval | None:
    if device != "cpu":
        unknowns.append(f"memory of the {device} devices: not measured by the smoke run; the figure is host memory")
    peak = smoke.peak_memory_bytes
    if peak is None:
        unknowns.append("memory: the smoke run's peak was not measured")
        return None
    return Interval(value=peak * MEMORY_MARGIN, low=float(peak), high=peak * MEMORY_MARGIN_HIGH)


def _cost(
    wall_time: Interval | None, *, plan: TrainingPlan, prices: PriceList | None, unknowns: list[str]
) -> tuple[Interval | None, str]:
    price = prices.price_for(plan.layout) if prices else None
    if prices is None or price is None:
        fits = f" for launcher {plan.layout.launcher}, device {plan.layout.device}" if prices else ""
        unknowns.append(f"cost: no price is known{fits}")
        return None, "unknown"
    source = shown(prices.describe(price))
    if wall_time is None:
        unknowns.append("cost: the wall time is unknown")
        return None, source
    value, low, high = (
        cost_of(seconds / _SECONDS_PER_HOUR, layout=plan.layout, price=price)
        for seconds in (wall_time.value, wall_time.low, wall_time.high)
    )
    return Interval(value=value, low=low, high=high, level=wall_time.level), source


def past_accuracy(past: Sequence[PastEstimate]) -> str:
    """How earlier estimates compared with what was measured: number, median absolute error, coverage."""
    times = [
        (p.estimate.wall_time_s, p.actual_wall_time_s)
        for p in past
        if p.estimate.wall_time_s and p.actual_wall_time_s > 0
    ]
    memories = [
        (p.estimate.memory_bytes, float(p.actual_memory_bytes))
        for p in past
        if p.estimate.memory_bytes and p.actual_memory_bytes
    ]
    words = [w for w in (_accuracy("time", times), _accuracy("memory", memories)) if w]
    return "; ".join(words) if words else "no earlier runs measured"


def _accuracy(what: str, pairs: Sequence[tuple[Interval, float]]) -> str:
    if not pairs:
        return ""
    error = statistics.median(abs(estimate.value - actual) / actual for estimate, actual in pairs)
    covered = sum(estimate.low <= actual <= estimate.high for estimate, actual in pairs)
    runs = "1 earlier run" if len(pairs) == 1 else f"{len(pairs)} earlier runs"
    return (
        f"{what}: {runs} measured, median absolute error {error:.1%} of the actual value, actual inside the interval "
        f"in {covered} of {len(pairs)}"
    )
