"""provenance_report: what ran, what was measured, what was not verified; signed, for people and for programs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from runtime.errors import ForerunError
from runtime.files import write_atomic, write_json_atomic

from .domain.errors import InvalidInput
from .domain.reports import NotVerified, ReportSummary
from .holdout_rows import read_rows
from .report.body import make_body, utc
from .report.check import verify_report
from .report.claims import make_claims
from .report.deviations import find_deviations
from .report.facts import Facts, gather
from .report.gaps import find_gaps
from .report.known_numbers import known_numbers
from .report.material import ReportMaterial
from .report.paths import ReportPaths
from .report.render import render_html, render_markdown
from .report.statement import PAYLOAD_TYPE, body_of, encode, make_statement
from .report.summary import CheckedSummary, Evidence, check_summary
from .signatures import key_id, public_pem, sign
from .verify_metrics import per_row_scores

__all__ = ["ReportMaterial", "provenance_report", "verify_report"]


def provenance_report(material: ReportMaterial, *, summary: str, private_key: Ed25519PrivateKey) -> ReportSummary:
    """Write report.json, its DSSE envelope, report.html and report.md into <run>/report, replacing an older report.

    Args:
        summary: the agent's own words; sentences whose numbers no evidence supports are listed as unsupported.
        private_key: the server's report key.

    Raises:
        InvalidInput: the run directory is gone, so there is nothing to report from.
    """
    if not material.layout.root.is_dir():
        raise InvalidInput(f"the run directory {material.layout.root} does not exist", next_step="list_work")
    facts = gather(material)
    signer = key_id(public_pem(private_key))
    body = make_body(
        material,
        facts,
        claims=make_claims(material, facts),
        not_verified=find_gaps(material, facts),
        deviations=find_deviations(material, facts),
        summary=_checked(material, facts, summary),
        signer=signer,
    )
    payload = encode(make_statement(body))
    digest = hashlib.sha256(payload).hexdigest()
    read_back = body_of(json.loads(payload))  # people see what was signed, not what it was made from
    paths = ReportPaths(material.layout.report)
    paths.root.mkdir(exist_ok=True)
    write_atomic(paths.json, payload)
    write_json_atomic(paths.envelope, sign(payload, PAYLOAD_TYPE, private_key))
    write_atomic(paths.html, render_html(read_back, sha256=digest).encode())
    write_atomic(paths.markdown, render_markdown(read_back, sha256=digest).encode())
    return ReportSummary(
        run_id=material.run.run_id,
        json_path=str(paths.json),
        html_path=str(paths.html),
        markdown_path=str(paths.markdown),
        sha256=digest,
        num_claims=len(body["claims"]),
        not_verified=tuple(NotVerified.model_validate(gap) for gap in body["not_verified"]),
        unsupported_claims=tuple(item["sentence"] for item in body["unsupported_claims"]),
        signed_by=signer,
    )


def _checked(material: ReportMaterial, facts: Facts, summary: str) -> CheckedSummary:
    plan, environment, run = material.plan_record.plan, material.environment, material.run
    versions = set(plan.interpreter.packages.values()) | {plan.interpreter.version} if plan else set()
    if environment is not None:
        versions |= {v for v in (environment.python_version, environment.driver_version, environment.cuda_version) if v}
    times = (run.created_at_s, facts.spell.started_at_s, run.result.ended_at_s if run.result else None)
    dates = {text for text in map(utc, (*times, material.created_at_s)) if text}

    @cache
    def per_row() -> Mapping[str, Sequence[float]]:
        return _per_row(material)

    return check_summary(
        summary,
        Evidence(
            numbers=known_numbers(material, facts),
            verification=material.verification,
            versions=frozenset(versions),
            dates=frozenset(dates),
            per_row=per_row,
        ),
    )


def _per_row(material: ReportMaterial) -> Mapping[str, Sequence[float]]:
    """The scored rows once more, to explain a claim that is an average of averages; nothing if they have changed."""
    plan, verification = material.plan_record.plan, material.verification
    if plan is None or plan.evaluation is None or verification is None:
        return {}
    try:
        rows = read_rows(plan, plan.evaluation, material.layout, not_before_s=0.0)
    except (ForerunError, OSError):
        return {}
    if rows.predictions_sha256 != verification.predictions_sha256:
        return {}
    return per_row_scores(plan.evaluation.task, rows)
