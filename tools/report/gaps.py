"""What is NOT verified, each by a stable id and with its reason. This section is never empty and never missing."""

import re
import textwrap
from collections.abc import Iterator

from runtime.config.plan import TrainingPlan

from ..domain.reports import NotVerified, Verification
from ..verify_metrics import ONE_SEED
from .facts import Facts, file_name, masked_value
from .material import FULL_KINDS, ReportMaterial

_ID = re.compile(r"(?P<id>[a-z][a-z0-9_]*(?::[^:\n]{1,120})?): (?P<reason>.+)", re.DOTALL)


def find_gaps(material: ReportMaterial, facts: Facts) -> tuple[NotVerified, ...]:
    """Every skipped step, unmeasured quantity and assumption; of two reasons for one id the first stands."""
    found: dict[str, NotVerified] = {}
    for gap in (
        *_steps(material, facts),
        *_smoke(material),
        *_verification(material, facts),
        *_plan(material),
        *_quantities(material, facts),
        *_integrity(material, facts),
        *facts.unreadable,
    ):
        found.setdefault(gap.id, gap)
    return tuple(found.values())


def _gap(identifier: str, reason: str) -> NotVerified:
    return NotVerified(id=identifier, reason=reason)


def _steps(material: ReportMaterial, facts: Facts) -> Iterator[NotVerified]:
    record, run = material.plan_record, material.run
    if material.environment is None:
        yield _gap("environment_not_inspected", "no report of inspect_environment was handed over with this run")
    if record.smoke is None:
        yield _gap("step:smoke_test", "no smoke run of this plan is recorded")
    elif record.smoke.plan_digest != run.plan_digest:
        yield _gap("step:smoke_test", "the smoke run on record belongs to another plan than the one that ran")
    if record.estimate is None:
        yield _gap("step:estimate_cost", "time, memory and cost were not estimated before the run")
    elif record.estimate.plan_digest != run.plan_digest:
        yield _gap("step:estimate_cost", "the estimate on record belongs to another plan than the one that ran")
    if run.kind in FULL_KINDS:
        approval = material.approval
        if material.request is None:
            yield _gap("step:request_approval", _nobody_asked(material))
        elif approval is None:
            yield _gap("step:request_approval", "a human was asked, no decision is recorded")
        elif approval.decision.decision != "approve":
            yield _gap("step:request_approval", "the decision on record is a refusal")
    verification = material.verification
    if verification is None:
        yield _gap("step:verify_metrics", "the server did not score this run: every metric is the script's own word")
    elif (verification.run_id, verification.plan_digest) != (run.run_id, run.plan_digest):
        yield _gap("step:verify_metrics", "the verification on record is of another run or plan")
    if run.ended and run.state.value != "succeeded" and material.diagnosis is None:
        yield _gap("step:diagnose_failure", f"the run is {run.state.value} and no diagnosis was handed over")
    if not run.ended:
        yield _gap("run_end", f"the run is {run.state.value}; files and figures are those of an unfinished run")
    elif run.result is None:
        yield _gap("run_end", f"the run left no result; duration from: {facts.spell.source}")


def _nobody_asked(material: ReportMaterial) -> str:
    if material.free_launch is None:
        return "no human was asked before the run"
    return f"no human was asked: the free tier of policy {material.free_launch.policy_version} covered the launch"


def _smoke(material: ReportMaterial) -> Iterator[NotVerified]:
    smoke, approval = material.plan_record.smoke, material.approval
    for check in smoke.checks if smoke else ():
        if check.outcome == "passed":
            continue
        accepted = approval is not None and check.name in approval.decision.accepted_not_shown
        word = "accepted as missing by the approver" if accepted else check.outcome
        yield _gap(f"smoke:{check.name}", f"{word}: {check.detail}")


def _verification(material: ReportMaterial, facts: Facts) -> Iterator[NotVerified]:
    verification, plan = material.verification, material.plan_record.plan
    yield from _said_by(verification)
    scored = {metric.name for metric in verification.metrics} if verification else set()
    if facts.predictions_changed:
        yield _gap("predictions_changed", facts.predictions_changed)
    if verification is not None and verification.verdict != "verified":
        yield _gap("verification", verification.reason)
    if plan is not None and plan.evaluation is not None:
        for name in plan.evaluation.metrics:
            if name not in scored:
                yield _gap(f"metric:{name}", "named in the plan's evaluation and not scored by the server")
        if verification is None:
            for name in plan.evaluation.baselines:
                yield _gap(f"baseline:{name}", "named in the plan's evaluation, not computed without verification")
    elif plan is not None:
        yield _gap("evaluation", "the plan fixed no hold-out file, so nothing can be scored independently")
    for series in facts.series:
        if series.name not in scored:
            source = f"{series.last.file}:{series.last.line}"
            yield _gap(f"metric:{series.name}", f"reported by the script ({source}), not recomputed by the server")
    yield _gap("seed_variance", ONE_SEED)
    yield _gap("near_duplicates", "similar rows in training and hold-out data were not searched")


def _said_by(verification: Verification | None) -> Iterator[NotVerified]:
    for number, text in enumerate(verification.unverified if verification else ()):
        match = _ID.fullmatch(text)
        if text == ONE_SEED:
            yield _gap("seed_variance", text)
        elif match:
            yield _gap(match["id"], match["reason"])
        else:
            yield _gap(f"verification:{number}", text)


def _plan(material: ReportMaterial) -> Iterator[NotVerified]:
    record, plan = material.plan_record, material.plan_record.plan
    for answer in record.answers:
        if answer.source == "assumption":
            yield _gap(f"assumption:{answer.question_id}", _assumed(answer.question_id, answer.value))
    if plan is None:
        yield _gap("plan", "no complete plan is on record")
        return
    for setting in plan.settings:
        if setting.origin == "assumption":
            yield _gap(f"assumption:{setting.name}", _assumed(setting.name, setting.value))
    for file in plan.data:
        if file.mode == "sampled":
            what = "the file" if file.num_files == 0 else "its files above 64 MiB"
            reason = f"its digest covers samples of {what}, not every byte"
            yield _gap(f"data_sampled:{file_name(file.path)}", reason)
    if plan.seed is None:
        yield _gap("seed", "no seed was fixed; the run cannot be repeated exactly")
    said = {setting.name for setting in plan.settings if setting.origin in ("user", "argument")}
    if not said & {"licence", "license", "data_licence", "data_license"}:
        yield _gap("licence", "nobody stated under which licence the data may be used")
    if "personal_data" not in said:
        yield _gap("personal_data", "nobody stated whether the data holds personal data")
    if record.base_plan_id and material.differences is None:
        yield _gap("code_difference", f"the differences from {record.base_plan_id} were not handed over")
    if plan.inherited:
        names = ", ".join(plan.inherited)
        unbound = ", ".join(name for name in plan.inherited if name not in plan.inherited_hashes)
        bound = f"; of {unbound} not even a keyed hash" if unbound else "; a keyed hash of each is in the plan"
        yield _gap("inherited_values", f"values of {names} were passed by name and are not on record{bound}")


def _quantities(material: ReportMaterial, facts: Facts) -> Iterator[NotVerified]:
    plan, estimate, run = material.plan_record.plan, material.plan_record.estimate, material.run
    yield _gap("energy", "the energy that was used was not measured")
    if facts.price_per_hour is None:
        yield _gap("cost", "no price is known, so the cost is unknown (not zero)")
    elif facts.account.total_cost is None:
        yield _gap("cost", "a run of unknown duration leaves the total cost unknown")
    for text in estimate.unknowns if estimate else ():
        topic, _, reason = text.partition(":")
        yield _gap(f"estimate:{_slug(topic)}", reason.strip() or text)
    if run.result is not None and run.result.peak_memory_bytes is None:
        yield _gap("memory", "the peak memory of the job was not measured")
    yield from _devices(material, plan)
    yield _gap("determinism", "whether the framework used deterministic algorithms was not recorded")
    yield from _modules(material, facts)


def _modules(material: ReportMaterial, facts: Facts) -> Iterator[NotVerified]:
    smoke = material.plan_record.smoke
    if facts.outside_modules is None:
        yield _gap("loaded_modules", "modules loaded from outside the snapshot and site-packages were not recorded")
    elif material.run.kind in FULL_KINDS and (smoke is None or smoke.outside_modules is None):
        reason = "the smoke run recorded no modules from outside the snapshot: there was nothing to compare with"
        yield _gap("loaded_modules", reason)


def _devices(material: ReportMaterial, plan: TrainingPlan | None) -> Iterator[NotVerified]:
    environment = material.environment
    if plan is None or plan.layout.device == "cpu":
        yield _gap("gpu", "the run used the CPU alone; nothing is shown for GPUs")
        return
    devices = environment.devices if environment else ()
    if not devices or any(device.uuid is None or device.memory_total_bytes is None for device in devices):
        yield _gap("gpu", "UUID and memory of the devices are not on record")
    yield _gap("gpu_memory", "the peak memory on the devices was not recorded")
    if environment is not None and environment.driver_version is None:
        yield _gap("driver", "the driver version is not known")


def _integrity(material: ReportMaterial, facts: Facts) -> Iterator[NotVerified]:
    if facts.signature_problems:
        yield _gap("approval_signature", "; ".join(facts.signature_problems))
    if not material.audit_head:
        yield _gap("audit_chain", "the head of the audit log was not handed over")
    inventory = facts.inventory
    if inventory.unlisted:
        yield _gap("files_unlisted", f"{inventory.unlisted} more files of the run are not listed")
    for text in inventory.unreadable:
        yield _gap(f"digest:{text.partition(': ')[0]}", f"the file could not be read: {text}")
    for entry in inventory.files:
        if entry.sha256 is None:
            yield _gap(f"digest:{entry.root}:{entry.path}", "too large to be hashed for the report")
    if not material.layout.root.is_dir():
        yield _gap("run_directory", "the run directory is gone; nothing in it could be checked")


def _assumed(name: str, value: str) -> str:
    return f"assumed to be {masked_value(name, value)!r}; no user said so"


def _slug(text: str) -> str:
    words = re.sub(r"[^a-z0-9]+", " ", text.lower())
    return textwrap.shorten(words, 40, placeholder="").replace(" ", "_") or "other"
