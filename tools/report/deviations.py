"""Deviations: where what happened differs from what was planned, estimated or approved."""

import math
from collections.abc import Iterator

from runtime.config.plan import TrainingPlan

from ..domain.approval import AssuranceLevel
from ..text import shown
from .facts import Facts, key_words
from .material import FULL_KINDS, ReportMaterial

_NEW_KEY_S = 24 * 3600.0


def find_deviations(material: ReportMaterial, facts: Facts) -> tuple[str, ...]:
    """One sentence each; empty if nothing deviates."""
    return tuple(
        dict.fromkeys(
            [
                *_approval(material),
                *_keys(material),
                *_run(material, facts),
                *_estimates(material, facts),
                *_integrity(material, facts),
                *_modules(material, facts),
            ]
        )
    )


def _approval(material: ReportMaterial) -> Iterator[str]:
    approval = material.approval
    if approval is None:
        if material.run.kind in FULL_KINDS:
            yield "the full run has no approval on record"
        return
    decision = approval.decision
    if decision.level is AssuranceLevel.SIMULATED:
        yield "the approval is SIMULATED: no human decided"
    for name in decision.accepted_not_shown:
        yield f"smoke evidence {name!r} was missing and accepted by {decision.approver}"


def _keys(material: ReportMaterial) -> Iterator[str]:
    """Keys that can approve beside the first one, and a deciding key that is new: enrolled by whom?"""
    approval, key = material.approval, material.approver_key
    if approval is not None and key is not None:
        age_s = approval.decision.decided_at_s - key.enrolled_at_s
        if age_s < _NEW_KEY_S:
            yield (
                f"the key that decided, {key_words(key)}, was enrolled only {max(0.0, age_s) / 60:.0f} min before the "
                "decision: ask its owner whether that was them"
            )
    for other in material.enrolled_keys[1:]:
        yield f"another key can approve beside the first: {key_words(other)}"


def _run(material: ReportMaterial, facts: Facts) -> Iterator[str]:
    run, plan = material.run, material.plan_record.plan
    if run.ended and run.state.value != "succeeded":
        reason = run.reason or (run.result.reason if run.result else "no reason given")
        yield f"the run ended {run.state.value}: {reason}"
    result = run.result
    if result is not None and result.attempts > 1:
        yield f"the job failed and was started again: {result.attempts} attempts; the last one counts"
    if result is not None and result.survivors:
        yield f"processes outlived the run: {', '.join(map(str, result.survivors))}"
    if result is not None and result.signals_sent:
        yield f"the supervisor sent {', '.join(result.signals_sent)}"
    if plan is None:
        return
    if plan.digest != run.plan_digest:
        yield "the plan on record is not the one that ran"
    for event in facts.events:
        world = event.details.get("world_size")
        if event.event == "run_started" and world not in (None, plan.layout.num_processes):
            yield f"the run had {world} processes, the plan {plan.layout.num_processes}"
    yield from _ceilings(material, facts, plan)
    yield from _contradictions(material, facts)
    for series in facts.series:
        bad = next((m for m in series.values if not math.isfinite(m.record.value)), None)
        if bad is not None:
            yield f"{series.name} is not finite at step {bad.record.step} ({bad.file}:{bad.line})"


def _contradictions(material: ReportMaterial, facts: Facts) -> Iterator[str]:
    """Where the script's own value of a held-out metric lies outside the interval that the server computed."""
    verification = material.verification
    for metric in verification.metrics if verification else ():
        names = {metric.name, *(f"{prefix}_{metric.name}" for prefix in ("test", "eval", "holdout"))}
        for series in facts.series:
            record, interval = series.last.record, metric.interval
            if series.name in names and not interval.low <= record.value <= interval.high:
                yield (
                    f"the script reports {series.name} {record.value:.4f} ({series.last.file}:{series.last.line}), the"
                    f" server computed {metric.value:.4f} (interval {interval.low:.4f} to {interval.high:.4f})"
                )


def _ceilings(material: ReportMaterial, facts: Facts, plan: TrainingPlan) -> Iterator[str]:
    seconds, ceilings = facts.spell.seconds, plan.ceilings
    if seconds is not None and seconds > ceilings.wall_time_s:
        yield f"the run took {seconds:.0f} s, the ceiling is {ceilings.wall_time_s:.0f} s"
    result = material.run.result
    if result is not None and result.disk_bytes > ceilings.disk_bytes:
        yield f"the run wrote {result.disk_bytes} bytes, the ceiling is {ceilings.disk_bytes}"
    cost = facts.account.lines[0].cost
    ceiling = None if ceilings.cost is None else ceilings.cost / plan.num_runs
    if cost is not None and ceiling is not None and cost > ceiling:
        yield f"the run cost {cost:.2f} {ceilings.currency}, the ceiling is {ceiling:.2f}"


def _estimates(material: ReportMaterial, facts: Facts) -> Iterator[str]:
    estimate, run = material.plan_record.estimate, material.run
    if estimate is None or run.kind not in FULL_KINDS or not run.ended:
        return
    measured = (
        ("time", estimate.wall_time_s, facts.spell.seconds, "s"),
        ("memory", estimate.memory_bytes, run.result.peak_memory_bytes if run.result else None, "bytes"),
    )
    for name, interval, actual, unit in measured:
        if interval is not None and actual is not None and not interval.low <= actual <= interval.high:
            yield (
                f"the {name} was {actual:.6g} {unit}, outside the estimate of {interval.low:.6g} to"
                f" {interval.high:.6g} {unit}"
            )


def _modules(material: ReportMaterial, facts: Facts) -> Iterator[str]:
    """What the full run loaded from outside and the smoke run, which the human judged, did not."""
    smoke = material.plan_record.smoke
    if material.run.kind not in FULL_KINDS or facts.outside_modules is None:
        return
    if smoke is None or smoke.outside_modules is None:
        return
    before = {module.path: module for module in smoke.outside_modules}
    for module in facts.outside_modules:
        was = before.get(module.path)
        where = f"module {shown(module.name)} ({shown(module.path)})"
        if was is None:
            yield f"{where} was loaded from outside the snapshot and was first seen in this run"
        elif was.sha256 != module.sha256:
            now = module.sha256[:12] or "gone"
            yield f"{where} is another one than in the smoke run ({was.sha256[:12] or 'gone'} -> {now})"


def _integrity(material: ReportMaterial, facts: Facts) -> Iterator[str]:
    for text in facts.code_changes:
        yield f"code in the run directory differs from the plan: {text}"
    for text in facts.data_changes:
        yield f"data differs from the plan now: {text}"
    if facts.predictions_changed:
        yield facts.predictions_changed
    for text in facts.signature_problems:
        yield f"approval: {text}"
    verification = material.verification
    for finding in verification.leakage if verification else ():
        if finding.level != "note":
            yield f"leakage: {finding.message}"
