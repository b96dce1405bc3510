"""The typed reports of the steps. Unknown is None with a reason beside it, never 0 or an empty string."""

from typing import Literal

from pydantic import Field

from runtime.config.digest import digest_json
from runtime.config.order import OutsideModule
from runtime.config.plan import Frozen, TrainingPlan

from .findings import Finding, Question


class Device(Frozen):
    """One accelerator. `ordinal` is what the framework calls it, `physical_index` what the driver does."""

    kind: str
    name: str
    ordinal: int | None
    physical_index: int | None = None
    uuid: str | None = None
    memory_total_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_kind: Literal["dedicated", "unified", "unknown"] = "unknown"
    utilisation_percent: float | None = None
    usable: bool = True
    reasons: tuple[str, ...] = Field(default=(), description="why a value is unknown or the device unusable")


class PathReport(Frozen):
    path: str
    exists: bool
    kind: Literal["file", "directory", "missing"]
    size_bytes: int | None
    num_files: int | None
    filesystem: str | None
    free_bytes: int | None


class EnvironmentReport(Frozen):
    """What the machine is. Sizes in bytes; `cpu_source` and `memory_source` say whether a cgroup limits them."""

    python: str
    python_version: str | None
    packages: dict[str, str]
    platform: str
    num_cpus: int
    cpu_source: Literal["host", "cgroup"]
    memory_total_bytes: int
    memory_available_bytes: int
    memory_source: Literal["host", "cgroup"]
    driver_version: str | None
    cuda_version: str | None
    devices: tuple[Device, ...]
    paths: tuple[PathReport, ...]
    findings: tuple[Finding, ...]


class ApiName(Frozen):
    """One symbol or command-line flag, looked up in the installed version."""

    name: str
    found: bool
    kind: str = ""
    signature: str = ""
    summary: str = ""
    nearest: tuple[str, ...] = ()
    package: str = ""
    version: str | None = None
    reason: str = ""


class ApiReport(Frozen):
    python: str
    names: tuple[ApiName, ...]


class InputReport(Frozen):
    """What validate_inputs made of its arguments. `plan` is None while errors or questions remain."""

    findings: tuple[Finding, ...]
    questions: tuple[Question, ...]
    plan: TrainingPlan | None
    differences: tuple[str, ...] = Field(default=(), description="against the base plan, in words")


class SmokeCheck(Frozen):
    """One piece of evidence of a smoke run."""

    name: Literal["ran_to_end", "steps_seen", "loss_finite", "loss_fell", "checkpoint_loads"]
    outcome: Literal["passed", "failed", "not_shown"]
    detail: str
    sources: tuple[str, ...] = Field(default=(), description="file:line in the run directory")


class SmokeResult(Frozen):
    """Verdict: failed if any check failed, else not_shown if any was not shown, else passed."""

    run_id: str
    plan_digest: str
    verdict: Literal["passed", "failed", "not_shown"]
    checks: tuple[SmokeCheck, ...]
    losses: tuple[float, ...] = Field(default=(), description="the first losses, at most 100, finite ones only")
    num_steps: int | None = None
    step_time_s: float | None = Field(default=None, description="median after warm-up")
    peak_memory_bytes: int | None = None
    outside_modules: tuple[OutsideModule, ...] | None = Field(
        default=None, description="loaded from neither the snapshot nor the installed packages; None: not recorded"
    )

    @property
    def digest(self) -> str:
        """What the approval request binds."""
        later = {"outside_modules"} if self.outside_modules is None else None  # older results keep their digest
        return digest_json(self.model_dump(mode="json", exclude=later))


class Interval(Frozen):
    """A value with its interval; `level` is the coverage asked for, in percent."""

    value: float
    low: float
    high: float
    level: float = 95.0


class CostEstimate(Frozen):
    """Time in seconds, memory in bytes, cost in `currency`. None means unknown and `unknowns` says why."""

    plan_digest: str
    wall_time_s: Interval | None
    memory_bytes: Interval | None
    cost: Interval | None
    currency: str = ""
    price_source: str = ""
    device_hours: float | None = None
    num_steps: int | None = None
    method: str
    unknowns: tuple[str, ...] = ()
    past_accuracy: str = Field(
        description="how earlier estimates compared with what was then measured, in words and numbers"
    )


class RunProgress(Frozen):
    """A run as it is now."""

    run_id: str
    kind: str
    state: str
    reason: str = ""
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    metrics: dict[str, float | str] = Field(default_factory=dict)
    elapsed_s: float | None = None
    remaining_s: float | None = None
    spent_device_hours: float | None = None
    spent_cost: float | None = Field(default=None, description="None: no price is known")
    currency: str = ""
    alerts: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()


class LogPage(Frozen):
    """Lines of a log with control characters made visible; `cursor` continues after them without repeats or gaps."""

    run_id: str
    lines: tuple[str, ...]
    cursor: str
    at_end: bool
    note: str = ""


class Remedy(Frozen):
    """A change of plan that may help. `changes_results` means that the human is asked first."""

    action: str
    settings: dict[str, str] = Field(default_factory=dict)
    changes_results: bool


class Diagnosis(Frozen):
    run_id: str
    cause: str = Field(description="stable code; 'unknown' if nothing fits")
    explanation: str
    rank: int | None
    evidence: tuple[str, ...] = Field(description="'file:line: text'")
    consequences: tuple[str, ...] = ()
    remedies: tuple[Remedy, ...] = ()


class MetricValue(Frozen):
    """One metric recomputed by the server. `n` rows were scored; the baseline is scored on the same rows."""

    name: str
    value: float
    interval: Interval
    n: int
    method: str


class BaselineComparison(Frozen):
    baseline: str
    metric: str
    value: float
    interval: Interval
    difference: Interval = Field(description="model minus baseline, paired on the same rows")
    test: str
    p_value: float
    p_value_adjusted: float = Field(description="Holm over all comparisons of this verification")
    conclusion: str


class Verification(Frozen):
    """What the server itself computed from the predictions file and the hold-out file that the plan fixed."""

    run_id: str
    plan_digest: str
    verdict: Literal["verified", "not_verified"]
    reason: str
    n: int | None = None
    predictions_sha256: str | None = None
    predictions_file: str = ""
    holdout_sha256: str | None = None
    metrics: tuple[MetricValue, ...] = ()
    comparisons: tuple[BaselineComparison, ...] = ()
    leakage: tuple[Finding, ...] = ()
    unverified: tuple[str, ...] = ()


class Claim(Frozen):
    """One statement of the report and where it comes from."""

    id: str
    text: str
    evidence: tuple[str, ...] = Field(description="'file:line sha256:...', relative to the run directory")
    verified_by: Literal["server", "script", "supervisor", "human"]


class NotVerified(Frozen):
    id: str
    reason: str


class ReportSummary(Frozen):
    """What provenance_report gives back; the full report lies at `path`."""

    run_id: str
    json_path: str
    html_path: str
    markdown_path: str
    sha256: str
    num_claims: int
    not_verified: tuple[NotVerified, ...]
    unsupported_claims: tuple[str, ...] = ()
    signed_by: str = ""
