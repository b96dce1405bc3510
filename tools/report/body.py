"""The report's body: plain JSON data, every outside text masked and made visible. All renderings come from it alone."""

import importlib.metadata
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from runtime.config.digest import digest_model
from runtime.config.plan import TrainingPlan
from runtime.records import encode_number

from ..domain.approval import AssuranceLevel
from ..domain.reports import Claim, Interval, NotVerified
from ..text import redact, shown
from ..verify_metrics import evaluator_digest
from .accounting import Account
from .facts import Facts, key_words, masked_command, masked_value
from .headline import headline
from .material import ReportMaterial
from .measurements import curves_of
from .summary import CheckedSummary

SCHEMA_VERSION = 1
_EXACT_KEYS = frozenset({"path", "roots", "envelope", "public_pem"})

_EVENTS = ("run_started", "batch_arithmetic", "planned_steps", "attempt_started", "attempt_ended", "requeued")
_PLAN_PARTS = (
    "arguments",
    "sweep",
    "smoke_arguments",
    "code",
    "interpreter",
    "layout",
    "seed",
    "ceilings",
    "evaluation",
    "evaluation_digest",
)

LEVEL_WORDS = {
    AssuranceLevel.SIMULATED: "SIMULATED: a demonstration; no human decided anything",
    AssuranceLevel.A2: "A2: typed at a terminal with a passphrase; same account as the agent, not tamper-proof",
    AssuranceLevel.A3: "A3: passkey with user verification, or a separate account of the operating system",
    AssuranceLevel.A4: "A4: an authenticated human who is not the requester",
}


def make_body(
    material: ReportMaterial,
    facts: Facts,
    *,
    claims: Sequence[Claim],
    not_verified: Sequence[NotVerified],
    deviations: Sequence[str],
    summary: CheckedSummary,
    signer: str,
) -> dict[str, Any]:
    """Put all parts into one document."""
    record, verification = material.plan_record, material.verification
    plan = record.plan
    loss = plan.smoke.loss if plan else "loss"
    body = {
        "schema_version": SCHEMA_VERSION,
        "forerun_version": forerun_version(),
        "created_at": utc(material.created_at_s),
        "headline": headline(material, facts, num_not_verified=len(not_verified)),
        "run": _run(material, facts),
        "plan": _plan(material, plan),
        "approval": _approval(material, facts),
        "free_launch": _free_launch(material),
        "smoke": record.smoke.model_dump(mode="json") if record.smoke else None,
        "estimate": record.estimate.model_dump(mode="json") if record.estimate else None,
        "estimate_and_actual": _estimate_and_actual(material, facts),
        "account": _account(facts.account, material),
        "verification": verification.model_dump(mode="json") if verification else None,
        "evaluator": {"name": "forerun verify_metrics", "version": forerun_version(), "sha256": evaluator_digest()},
        "metrics": _metrics(material, facts),
        "curves": [
            {
                "name": curve.name,
                "file": curve.file,
                "sha256": facts.inventory.sha256(curve.file),
                "by_step": curve.by_step,
                "num_values": curve.num_values,
                "points": [[x, y] for x, y in curve.points],
            }
            for curve in curves_of(facts.series, first=loss)
        ],
        "environment": material.environment.model_dump(mode="json") if material.environment else None,
        "diagnosis": material.diagnosis.model_dump(mode="json") if material.diagnosis else None,
        "past_runs": [
            {
                "run_id": r.run_id,
                "plan_id": r.plan_id,
                "kind": r.kind,
                "member": r.member,
                "state": r.state.value,
                "reason": r.reason,
            }
            for r in material.past_runs
        ],
        "claims": [claim.model_dump(mode="json") for claim in claims],
        "not_verified": [gap.model_dump(mode="json") for gap in not_verified],
        "deviations": list(deviations),
        "summary": [
            {"sentence": s.text, "support": s.support, "reason": s.reason} for s in summary.sentences if s.supported
        ],
        "unsupported_claims": [{"sentence": s.text, "reason": s.reason} for s in summary.sentences if not s.supported],
        "roots": facts.inventory.roots,
        "files": [
            {"root": f.root, "path": f.path, "size_bytes": f.size_bytes, "sha256": f.sha256}
            for f in facts.inventory.files
        ],
        "audit_head": material.audit_head or None,
        "signed_by": signer,
    }
    cleaned: dict[str, Any] = clean(body)
    return cleaned


def clean(value: Any, *, exact: bool = False) -> Any:
    """Outside text masked and made visible, all the way down; paths stay exact but for secrets, NaN becomes a word."""
    if isinstance(value, str):
        return redact(value) if exact else shown(value)
    if isinstance(value, float):
        return encode_number(value) if not math.isfinite(value) else value
    if isinstance(value, Mapping):
        return {
            shown(str(k)): v if k == "envelope" else clean(v, exact=exact or k in _EXACT_KEYS) for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean(item, exact=exact) for item in value]
    return value


def utc(seconds: float | None) -> str | None:
    """ISO 8601 in UTC, whole seconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def forerun_version() -> str:
    try:
        return importlib.metadata.version("forerun")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _run(material: ReportMaterial, facts: Facts) -> dict[str, Any]:
    run, result, spell = material.run, material.run.result, facts.spell
    return {
        "run_id": run.run_id,
        "plan_id": run.plan_id,
        "plan_digest": run.plan_digest,
        "kind": run.kind,
        "state": run.state.value,
        "reason": run.reason or (result.reason if result else ""),
        "exit_code": result.exit_code if result else None,
        "attempts": result.attempts if result else None,
        "member": run.member,
        "started_at": utc(spell.started_at_s),
        "ended_at": utc(result.ended_at_s) if result else None,
        "seconds": spell.seconds,
        "seconds_source": spell.source,
        "command": facts.command or None,
        "run_dir": run.run_dir,
        "peak_memory_bytes": result.peak_memory_bytes if result else None,
        "disk_bytes": result.disk_bytes if result else None,
        "signals_sent": list(result.signals_sent) if result else [],
        "survivors": list(result.survivors) if result else [],
        "failures": [failure.model_dump(mode="json") for failure in result.failures] if result else [],
        "events": [
            {"event": e.event, "time": utc(e.time_s), "rank": e.rank, "details": e.details}
            for e in facts.events
            if e.event in _EVENTS
        ],
    }


def _plan(material: ReportMaterial, plan: TrainingPlan | None) -> dict[str, Any]:
    record = material.plan_record
    head = {
        "plan_id": record.plan_id,
        "requester": record.requester,
        "base_plan_id": record.base_plan_id,
        "differences": None if material.differences is None else list(material.differences),
        "findings": [finding.model_dump(mode="json") for finding in record.findings],
        "answers": [
            answer.model_dump(mode="json") | {"value": masked_value(answer.question_id, answer.value)}
            for answer in record.answers
        ],
    }
    if plan is None:
        return head | dict.fromkeys(_PLAN_PARTS) | {"data": [], "settings": [], "inherited": [], "environment": {}}
    code = plan.code
    return head | {
        "arguments": masked_command(material.arguments),
        "sweep": [masked_command(member) for member in plan.sweep],
        "smoke_arguments": masked_command(plan.smoke.args),
        "environment": {name: masked_value(name, value) for name, value in plan.environment.items()},
        "inherited": list(plan.inherited),
        "code": {
            "origin": code.origin,
            "entry": code.entry,
            "sha256": code.sha256,
            "num_files": len(code.files),
            "size_bytes": sum(file.size_bytes for file in code.files),
        },
        "data": [file.model_dump(mode="json") for file in plan.data],
        "interpreter": plan.interpreter.model_dump(mode="json"),
        "layout": plan.layout.model_dump(mode="json"),
        "seed": plan.seed,
        "settings": [
            setting.model_dump(mode="json") | {"value": masked_value(setting.name, setting.value)}
            for setting in plan.settings
        ],
        "ceilings": plan.ceilings.model_dump(mode="json"),
        "evaluation": plan.evaluation.model_dump(mode="json") if plan.evaluation else None,
        "evaluation_digest": digest_model(plan.evaluation) if plan.evaluation else None,
    }


def _approval(material: ReportMaterial, facts: Facts) -> dict[str, Any] | None:
    request, approval = material.request, material.approval
    if request is None and approval is None:
        return None
    asked = {
        "request_id": request.request_id if request else None,
        "request_digest": request.digest if request else None,
        "smoke_digest": request.smoke_digest if request else None,
        "policy_version": request.policy_version if request else None,
        "requester": request.requester if request else None,
        "reason": request.reason if request else None,
        "expires_at": utc(request.expires_at_s) if request else None,
        "decision": None,
    }
    if approval is None:
        return asked
    decision = approval.decision
    return asked | {
        "decision": decision.decision,
        "approver": decision.approver,
        "key_id": decision.key_id,
        "level": decision.level.value,
        "level_words": LEVEL_WORDS[decision.level],
        "simulated": decision.level is AssuranceLevel.SIMULATED,
        "channel": decision.channel,
        "decided_at": utc(decision.decided_at_s),
        "shown_digest": decision.shown_digest,
        "accepted_not_shown": list(decision.accepted_not_shown),
        "note": decision.note,
        "signature_problems": list(facts.signature_problems),
        "public_pem": material.approver_key.public_pem if material.approver_key else None,
        "envelope": approval.envelope,
        "keys": [key_words(key) for key in material.enrolled_keys],
    }


def _free_launch(material: ReportMaterial) -> dict[str, Any] | None:
    free = material.free_launch
    return None if free is None else {"policy_version": free.policy_version, "at": utc(free.time_s)}


def _estimate_and_actual(material: ReportMaterial, facts: Facts) -> list[dict[str, Any]]:
    estimate, run, line = material.plan_record.estimate, material.run, facts.account.lines[0]
    steps = [m.record.step for s in facts.series for m in s.values if m.record.step is not None]
    currency = (estimate.currency if estimate else "") or "currency"
    return [
        _row("time", "s", estimate.wall_time_s if estimate else None, facts.spell.seconds),
        _row(
            "memory",
            "bytes",
            estimate.memory_bytes if estimate else None,
            run.result.peak_memory_bytes if run.result else None,
        ),
        _row("cost", currency, estimate.cost if estimate else None, line.cost),
        _row("steps", "optimizer steps", estimate.num_steps if estimate else None, max(steps) if steps else None),
        _row("energy", "kWh", None, None),
    ]


def _row(name: str, unit: str, estimated: Interval | int | None, actual: float | None) -> dict[str, Any]:
    interval = estimated if isinstance(estimated, Interval) else None
    inside = None if interval is None or actual is None else interval.low <= actual <= interval.high
    return {
        "quantity": name,
        "unit": unit,
        "estimated": interval.value if interval else estimated,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "actual": actual,
        "inside": inside,
    }


def _account(account: Account, material: ReportMaterial) -> dict[str, Any]:
    estimate = material.plan_record.estimate
    return {
        "lines": [
            {
                "run_id": line.spell.run_id,
                "state": line.spell.state,
                "seconds": line.spell.seconds,
                "source": line.spell.source,
                "cost": line.cost,
            }
            for line in account.lines
        ],
        "total_seconds": account.total_seconds,
        "total_cost": account.total_cost,
        "total_cost_shown": account.total_cost_shown,
        "currency": estimate.currency if estimate else "",
        "price_source": estimate.price_source if estimate else "",
        "num_executed": account.num_executed,
        "notes": list(account.notes),
    }


def _metrics(material: ReportMaterial, facts: Facts) -> list[dict[str, Any]]:
    """Every metric of the report with its source: file, line (`all`: the whole file) and digest."""
    verification = material.verification
    found: list[dict[str, Any]] = []
    for metric in verification.metrics if verification else ():
        assert verification is not None
        source: dict[str, Any] = {
            "file": verification.predictions_file,
            "line": "all",
            "sha256": verification.predictions_sha256,
        }
        found.append(
            {"origin": "server_scored", **metric.model_dump(mode="json"), "step": None, "rank": None, "source": source}
        )
    for series in facts.series:
        record = series.last.record
        source = {
            "file": series.last.file,
            "line": series.last.line,
            "sha256": facts.inventory.sha256(series.last.file),
        }
        found.append(
            {
                "origin": record.origin,
                "name": record.name,
                "value": record.value,
                "interval": None,
                "n": len(series.values),
                "method": f"last of {len(series.values)} values that the script reported",
                "step": record.step,
                "rank": record.rank,
                "source": source,
            }
        )
    return found
