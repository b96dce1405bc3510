"""Reports written in tests: the material of a prepared run, and what came out."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.fakes.prepared_run import (
    PreparedRun,
    approval_of,
    estimate_of,
    plan_record_of,
    smoke_of,
)
from tools.domain.approval import AssuranceLevel
from tools.domain.reports import ReportSummary
from tools.provenance_report import ReportMaterial, provenance_report, verify_report
from tools.report.statement import body_of
from tools.signatures import public_pem
from tools.verify_metrics import verify_metrics


@dataclass(frozen=True)
class Written:
    """A report that was written, and the key that signed it."""

    summary: ReportSummary
    material: ReportMaterial
    key: Ed25519PrivateKey

    @property
    def html(self) -> str:
        return Path(self.summary.html_path).read_text()

    @property
    def markdown(self) -> str:
        return Path(self.summary.markdown_path).read_text()

    @property
    def statement(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(Path(self.summary.json_path).read_text())
        return data

    @property
    def body(self) -> dict[str, Any]:
        return body_of(self.statement)

    @property
    def ids(self) -> set[str]:
        return {gap.id for gap in self.summary.not_verified}

    def verify(self) -> dict[str, Any]:
        envelope = json.loads((self.material.layout.report / "report.dsse.json").read_text())
        return verify_report(envelope, public_pem(self.key))


def write(material: ReportMaterial, summary: str = "") -> Written:
    key = Ed25519PrivateKey.generate()
    return Written(provenance_report(material, summary=summary, private_key=key), material, key)


def complete_material(
    prepared: PreparedRun,
    *,
    not_shown: tuple[str, ...] = (),
    cost: float | None = 0.5,
    level: AssuranceLevel = AssuranceLevel.A2,
) -> ReportMaterial:
    """All steps done: smoke run, estimate, approval and verification."""
    smoke, smoke_run, smoke_layout = smoke_of(prepared, not_shown=not_shown)
    estimate = estimate_of(prepared, cost=cost)
    request, approval, key = approval_of(prepared, smoke, estimate, level=level, accepted=not_shown)
    verification = verify_metrics(
        prepared.plan, plan_digest=prepared.plan.digest, run=prepared.run, layout=prepared.layout
    )
    return ReportMaterial(
        plan_record=plan_record_of(prepared, smoke, estimate),
        run=prepared.run.model_copy(update={"verification": verification}),
        layout=prepared.layout,
        smoke_run=smoke_run,
        smoke_layout=smoke_layout,
        request=request,
        approval=approval,
        approver_key=key,
        audit_head="f" * 64,
    )
