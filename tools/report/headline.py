"""The headline: what a reader in a hurry may take away, and nothing more."""

from typing import Any

from ..domain.approval import AssuranceLevel
from .facts import Facts
from .material import ReportMaterial


def headline(material: ReportMaterial, facts: Facts, *, num_not_verified: int) -> dict[str, Any]:
    """Verdict (one of verified, not_verified, failed, unfinished), one sentence, and what must not be overlooked."""
    verdict, text = _verdict(material)
    text += f" {num_not_verified} things are not verified; they are listed below."
    return {"verdict": verdict, "text": text, "warnings": list(_warnings(material, facts))}


def _verdict(material: ReportMaterial) -> tuple[str, str]:
    run, verification = material.run, material.verification
    if not run.ended:
        return "unfinished", f"Run {run.run_id} is {run.state.value}; it has no result yet."
    if run.state.value != "succeeded":
        reason = run.reason or (run.result.reason if run.result else "no reason is known")
        return "failed", f"Run {run.run_id} did not succeed ({run.state.value}): {reason}."
    if verification is None:
        return "not_verified", f"Run {run.run_id} ran to its end; its metrics are NOT VERIFIED: nobody scored them."
    if verification.verdict != "verified":
        return "not_verified", f"Run {run.run_id} ran to its end; its metrics are NOT VERIFIED: {verification.reason}"
    scores = "; ".join(
        f"{m.name} {m.value:.4f} ({m.interval.level:g}% interval {m.interval.low:.4f} to {m.interval.high:.4f})"
        for m in verification.metrics
    )
    return "verified", f"Scored by the server on {verification.n} held-out rows: {scores}."


def _warnings(material: ReportMaterial, facts: Facts) -> list[str]:
    approval, verification = material.approval, material.verification
    found = []
    if approval is not None and approval.decision.level is AssuranceLevel.SIMULATED:
        found.append("SIMULATED APPROVAL: no human decided. This report is a demonstration.")
    if facts.signature_problems:
        found.append(f"The approval's signature does not hold: {'; '.join(facts.signature_problems)}")
    leaks = [f for f in verification.leakage if f.level != "note"] if verification else []
    if leaks:
        found.append(f"Leakage between training and hold-out data: {leaks[0].message}")
    worse = [c for c in verification.comparisons if not c.conclusion.startswith("better")] if verification else []
    found += [f"{c.metric}: {c.conclusion.partition('. Baseline:')[0]}" for c in worse]
    if facts.predictions_changed:
        found.append(facts.predictions_changed)
    if facts.code_changes:
        found.append(f"The code in the run directory differs from the plan: {facts.code_changes[0]}")
    return found
