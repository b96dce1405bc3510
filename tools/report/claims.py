"""Claims: every statement of the report with the files, lines and digests that it rests on."""

import math
from collections.abc import Iterator

from runtime.config.digest import digest_json

from ..domain.reports import Claim
from .facts import Facts
from .inventory import Inventory
from .material import ReportMaterial
from .measurements import Series


def make_claims(material: ReportMaterial, facts: Facts) -> tuple[Claim, ...]:
    """What the report states as fact, and who stands for it."""
    return (*_run(material, facts), *_scores(material), *_script(facts), *_smoke(material, facts))


def _run(material: ReportMaterial, facts: Facts) -> Iterator[Claim]:
    run, inventory = material.run, facts.inventory
    result = run.result
    if result is not None:
        evidence = (inventory.evidence("result.json", "all"),)
        text = f"run {run.run_id} ended {result.state} (exit code {result.exit_code}): {result.reason}"
        yield Claim(id="run_state", text=text, evidence=evidence, verified_by="supervisor")
        text = f"the run took {result.elapsed_s:.1f} s"
        yield Claim(id="duration", text=text, evidence=evidence, verified_by="supervisor")
        if result.peak_memory_bytes is not None:
            text = f"the job's processes held at most {result.peak_memory_bytes} bytes of memory together"
            yield Claim(id="peak_memory", text=text, evidence=evidence, verified_by="supervisor")
    if material.plan_record.plan is not None and inventory.sha256("plan.json"):
        text = f"the run was started with plan {run.plan_digest}"
        yield Claim(id="plan", text=text, evidence=(inventory.evidence("plan.json", "all"),), verified_by="supervisor")
    approval = material.approval
    if approval is not None and not facts.signature_problems:
        decision = approval.decision
        digest = digest_json(approval.envelope)
        yield Claim(
            id="approval",
            text=f"{decision.approver} decided {decision.decision!r} at level {decision.level.value}",
            evidence=(f"report/report.json:approval sha256:{digest}",),
            verified_by="human",
        )


def _scores(material: ReportMaterial) -> Iterator[Claim]:
    verification = material.verification
    if verification is None or verification.verdict != "verified":
        return
    predictions = f"{verification.predictions_file}:all sha256:{verification.predictions_sha256}"
    plan = material.plan_record.plan
    holdout = plan.evaluation.holdout if plan and plan.evaluation else "hold-out"
    evidence = (predictions, f"{holdout}:all sha256:{verification.holdout_sha256}")
    for metric in verification.metrics:
        interval = metric.interval
        yield Claim(
            id=f"metric:{metric.name}",
            text=f"{metric.name} is {metric.value:.4f} on {metric.n} held-out rows"
            f" ({interval.level:g}% interval {interval.low:.4f} to {interval.high:.4f}; {metric.method})",
            evidence=evidence,
            verified_by="server",
        )
    for comparison in verification.comparisons:
        yield Claim(
            id=f"comparison:{comparison.metric}:{comparison.baseline}",
            text=f"{comparison.metric}: {comparison.conclusion}",
            evidence=evidence,
            verified_by="server",
        )
    for finding in verification.leakage:
        yield Claim(id=f"leakage:{finding.code}", text=finding.message, evidence=evidence, verified_by="server")


def _script(facts: Facts) -> Iterator[Claim]:
    for series in facts.series:
        last = series.last
        step = f" at step {last.record.step}" if last.record.step is not None else ""
        yield Claim(
            id=f"script_metric:{series.name}",
            text=f"the script reported {series.name} = {last.record.value:.6g}{step},"
            f" the last of {len(series.values)} values",
            evidence=(facts.inventory.evidence(last.file, last.line),),
            verified_by="script",
        )
        claim = _course(series, facts.inventory)
        if claim is not None:
            yield claim


def _course(series: Series, inventory: Inventory) -> Claim | None:
    """How a loss went from its first to its last finite value."""
    finite = [m for m in series.values if math.isfinite(m.record.value)]
    if "loss" not in series.name.lower() or len(finite) < 2:
        return None
    first, last = finite[0], finite[-1]
    word = "fell" if last.record.value < first.record.value else "did not fall"
    return Claim(
        id=f"course:{series.name}",
        text=f"{series.name} {word}: {first.record.value:.6g} at first, {last.record.value:.6g} at last"
        f" ({len(finite)} finite of {len(series.values)} values)",
        evidence=tuple(inventory.evidence(m.file, m.line) for m in (first, last)),
        verified_by="script",
    )


def _smoke(material: ReportMaterial, facts: Facts) -> Iterator[Claim]:
    smoke = material.plan_record.smoke
    for check in smoke.checks if smoke else ():
        if check.outcome == "not_shown":
            continue
        yield Claim(
            id=f"smoke:{check.name}",
            text=f"smoke run {smoke.run_id if smoke else ''}: {check.name} {check.outcome}: {check.detail}",
            evidence=tuple(_source(source, facts.inventory) for source in check.sources),
            verified_by="server",
        )


def _source(text: str, inventory: Inventory) -> str:
    path, _, line = text.rpartition(":")
    if not path:
        path, line = text, "all"
    return inventory.evidence(path, line, "smoke")
