"""judge_smoke: what a smoke run has shown. It passes on evidence alone; what is missing is `not_shown`."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from runtime.config.plan import TrainingPlan
from runtime.layout import RunLayout
from runtime.records import EventRecord, SourcedMetric, read_events
from runtime.snapshots.surroundings import read_outside_modules

from .domain.errors import WrongStep
from .domain.reports import SmokeCheck, SmokeResult
from .domain.run_state import RunRecord, RunState
from .evidence.checkpoint_files import newest_checkpoint
from .evidence.curves import LEAST_VALUES, first_non_finite, in_step_order, is_gradient_norm, is_loss, trend
from .evidence.run_metrics import read_run_metrics
from .evidence.step_counts import steps_seen
from .evidence.step_times import step_times
from .text import shown

RUNTIME_LOSS = "backward_loss"
_CHECKPOINT_FILES_NAMED = 20
_LOSSES_KEPT = 100
Outcome = Literal["passed", "failed", "not_shown"]


def judge_smoke(
    plan: TrainingPlan,
    *,
    plan_digest: str,
    run: RunRecord,
    layout: RunLayout,
    check_checkpoint: Callable[[Path], str | None],
) -> SmokeResult:
    """Judge a smoke run that has ended.

    Args:
        check_checkpoint: why a checkpoint that the script wrote does not load, or None if it does.

    Raises:
        WrongStep: `run` is no smoke run of this plan, or is still running.
    """
    _require_smoke_of(run, plan_digest)
    metrics = read_run_metrics(layout)
    events = tuple(read_events(layout.events))
    losses, note = _losses(metrics, plan.smoke.loss)
    num_seen = steps_seen(metrics, events)
    checks = (
        _ran_to_end(run),
        _steps_seen(num_seen, plan.smoke.num_steps, metrics=metrics, events=events),
        _loss_finite(metrics, losses, name=plan.smoke.loss),
        _loss_fell(losses, name=plan.smoke.loss, note=note),
        _checkpoint_loads(run, layout, events=events, check_checkpoint=check_checkpoint),
    )
    times = step_times(metrics)
    return SmokeResult(
        run_id=run.run_id,
        plan_digest=plan_digest,
        verdict=_verdict(checks),
        checks=checks,
        losses=tuple(m.record.value for m in losses if math.isfinite(m.record.value))[:_LOSSES_KEPT],
        num_steps=num_seen or None,
        step_time_s=times.median_s if times else None,
        peak_memory_bytes=run.result.peak_memory_bytes if run.result else None,
        outside_modules=read_outside_modules(layout),
    )


def _require_smoke_of(run: RunRecord, plan_digest: str) -> None:
    if run.kind != "smoke" or run.plan_digest != plan_digest:
        raise WrongStep(
            f"run {run.run_id} is a {run.kind} run of plan digest {run.plan_digest[:12]}, not a smoke run of "
            f"{plan_digest[:12]}",
            next_step="smoke_test for this plan",
        )
    if not run.ended:
        raise WrongStep(f"run {run.run_id} is {run.state.value}", next_step="monitor_run until it has ended")


def _verdict(checks: Sequence[SmokeCheck]) -> Outcome:
    outcomes = {check.outcome for check in checks}
    return "failed" if "failed" in outcomes else "not_shown" if "not_shown" in outcomes else "passed"


def _ran_to_end(run: RunRecord) -> SmokeCheck:
    result = run.result
    if result is None or run.state is RunState.LOST:
        reason = shown(run.reason) or "it left no result"
        return SmokeCheck(name="ran_to_end", outcome="not_shown", detail=f"run is {run.state.value}: {reason}")
    detail = f"{result.state}, exit code {result.exit_code}: {shown(result.reason)}"
    if result.state == "succeeded" and result.exit_code == 0:
        return SmokeCheck(name="ran_to_end", outcome="passed", detail=detail, sources=("result.json",))
    outcome: Outcome = "not_shown" if result.state == "cancelled" else "failed"
    return SmokeCheck(name="ran_to_end", outcome=outcome, detail=detail, sources=("result.json",))


def _steps_seen(
    num_seen: int, wanted: int, *, metrics: Sequence[SourcedMetric], events: Sequence[EventRecord]
) -> SmokeCheck:
    outcome: Outcome = "passed" if num_seen >= wanted else "not_shown"
    counted = any(e.event == "smoke_steps_done" for e in events)
    stepped = in_step_order([m for m in metrics if m.record.step is not None]) or list(metrics)
    sources = ("events.jsonl",) if counted else _sources([*stepped[:1], *stepped[-1:]])
    return SmokeCheck(name="steps_seen", outcome=outcome, detail=f"{num_seen} of {wanted} steps seen", sources=sources)


def _losses(metrics: Sequence[SourcedMetric], name: str) -> tuple[list[SourcedMetric], str]:
    """The series that is judged, in step order, and a note if it is not the one that the plan names."""
    named = _longest_series(metrics, name)
    if len(named) >= LEAST_VALUES:
        return named, ""
    recorded = _longest_series(metrics, RUNTIME_LOSS)
    if len(recorded) < LEAST_VALUES:
        return named, ""
    return recorded, f"'{shown(name)}' has {len(named)} values, so {RUNTIME_LOSS} of our runtime is judged; "


def _longest_series(metrics: Sequence[SourcedMetric], name: str) -> list[SourcedMetric]:
    series: dict[tuple[int, str], list[SourcedMetric]] = {}
    for metric in metrics:
        if metric.record.name == name:
            series.setdefault((metric.record.rank, metric.file), []).append(metric)
    longest = max(series, key=lambda key: len(series[key]), default=None)
    return in_step_order(series[longest]) if longest else []


def _loss_finite(metrics: Sequence[SourcedMetric], losses: Sequence[SourcedMetric], *, name: str) -> SmokeCheck:
    """Any loss of any rank counts, and a gradient norm that ends non-finite (fp16 scaling may begin so)."""
    last_norms = {(m.record.rank, m.record.name): m for m in metrics if is_gradient_norm(m.record.name)}
    ill = {key for key, metric in last_norms.items() if not math.isfinite(metric.record.value)}
    watched = [
        m for m in metrics if is_loss(m.record.name) or m.record.name == name or (m.record.rank, m.record.name) in ill
    ]
    bad = first_non_finite(watched)
    if bad:
        source = f"{bad.metric.file}:{bad.metric.line}"
        return SmokeCheck(name="loss_finite", outcome="failed", detail=shown(bad.words), sources=(source,))
    if not losses:
        return SmokeCheck(
            name="loss_finite", outcome="not_shown", detail=f"no value of '{shown(name)}' was recorded{_names(metrics)}"
        )
    return SmokeCheck(
        name="loss_finite",
        outcome="passed",
        detail=f"{len(losses)} values of {shown(losses[0].record.name)}, all finite",
        sources=_sources([losses[0], losses[-1]]),
    )


def _loss_fell(losses: Sequence[SourcedMetric], *, name: str, note: str) -> SmokeCheck:
    values = [m.record.value for m in losses]
    found = trend(values) if all(map(math.isfinite, values)) else None
    if found is None:
        reason = "not finite" if len(values) >= LEAST_VALUES else f"{len(values)} of at least {LEAST_VALUES} values"
        return SmokeCheck(name="loss_fell", outcome="not_shown", detail=f"{note}'{shown(name)}': {reason}")
    third = found.num_values // 3
    detail = (
        f"{note}{'fell' if found.fell else 'did not fall'}: mean of the first {third} {found.first_mean:.6g}, "
        f"of the last {third} {found.last_mean:.6g}, {found.num_values} values"
    )
    sources = _sources([losses[0], losses[third - 1], losses[-third], losses[-1]])
    return SmokeCheck(name="loss_fell", outcome="passed" if found.fell else "not_shown", detail=detail, sources=sources)


def _checkpoint_loads(
    run: RunRecord,
    layout: RunLayout,
    *,
    events: Sequence[EventRecord],
    check_checkpoint: Callable[[Path], str | None],
) -> SmokeCheck:
    loaded = [e for e in events if e.event == "checkpoint_loaded"]
    if loaded:
        equal = all(e.details.get("equal") is True for e in loaded)
        paths = shown(", ".join(_inside(layout, str(e.details.get("path"))) for e in loaded))
        words = "loaded, equal to what was saved" if equal else "loaded with other values than were saved"
        return SmokeCheck(
            name="checkpoint_loads",
            outcome="passed" if equal else "failed",
            detail=f"{paths}: {words}",
            sources=("events.jsonl",),
        )
    path = newest_checkpoint(layout, since_s=run.result.started_at_s if run.result else run.created_at_s)
    if path is None:
        return SmokeCheck(
            name="checkpoint_loads",
            outcome="not_shown",
            detail="no checkpoint was written below work/ or checkpoints/",
        )
    where = shown(path.relative_to(layout.root).as_posix())
    problem = check_checkpoint(path)
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return SmokeCheck(
        name="checkpoint_loads",
        outcome="passed" if problem is None else "failed",
        detail=f"{where} loads" if problem is None else f"{where} does not load: {shown(problem)}",
        sources=tuple(shown(p.relative_to(layout.root).as_posix()) for p in files[:_CHECKPOINT_FILES_NAMED]),
    )


def _inside(layout: RunLayout, path: str) -> str:
    """`path` relative to the run directory where it lies in it."""
    return str(Path(path).relative_to(layout.root)) if Path(path).is_relative_to(layout.root) else path


def _sources(metrics: Sequence[SourcedMetric]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"{m.file}:{m.line}" for m in metrics))


def _names(metrics: Sequence[SourcedMetric]) -> str:
    names = sorted({m.record.name for m in metrics})[:10]
    return f"; recorded: {shown(', '.join(names))}" if names else ""
