"""What a human sees of a plan before deciding: what runs, on what, at which cost, shown by which evidence."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime

from runtime.config.order import LaunchSpec
from runtime.config.plan import DataFile, TrainingPlan

from .domain.approval import ApprovalRequest
from .domain.plan_state import PlanRecord
from .domain.reports import CostEstimate, Interval, SmokeResult
from .text import visible

SHORT_DIGEST_CHARACTERS = 8
_NAMED_MODULES = 30
UNKNOWN = "unknown"


def short_digest(request: ApprovalRequest) -> str:
    """The first characters of request_digest, which the human types."""
    return request.digest[:SHORT_DIGEST_CHARACTERS]


def cost_words(estimate: CostEstimate, *, num_runs: int = 1) -> str:
    """The cost as it is shown and typed: an amount with two decimals, or the word `unknown`; never 0 for unknown."""
    return UNKNOWN if estimate.cost is None else f"{estimate.cost.value * num_runs:.2f}"


def whole_cost_words(request: ApprovalRequest) -> str:
    """cost_words of all that is asked for: of a sweep, all its runs together."""
    return cost_words(request.estimate, num_runs=1 if request.plan is None else request.plan.num_runs)


def shown_lines(
    record: PlanRecord,
    request: ApprovalRequest,
    *,
    spec: LaunchSpec | None,
    differences: Sequence[str],
    since_approved: tuple[str, Sequence[str]] | None = None,
) -> Iterator[str]:
    """The lines of the text, each already escaped."""
    plan = request.plan if request.plan is not None else record.plan
    yield f"APPROVAL REQUEST {request.request_id} for plan {request.plan_id}"
    yield f"Asked by: {visible(request.requester)}"
    yield f"Reason given: {visible(request.reason) or '(none)'}"
    yield f"Made {_utc(request.created_at_s)}, expires {_utc(request.expires_at_s)}"
    yield ""
    yield from _list("Changed against plan " + (record.base_plan_id or "(none before)"), differences, empty="nothing")
    if since_approved is None:
        yield "Approved before: no plan of this script"
    elif since_approved[0] != record.base_plan_id:
        title = f"Changed against plan {since_approved[0]}, the last that was approved"
        yield from _list(title, since_approved[1], empty="nothing")
    if plan is not None:
        yield from _plan_lines(plan)
        yield from _sweep_lines(plan, request)
    yield from _command_lines(spec)
    assumptions = [f"{a.question_id} = {a.value}" for a in record.answers if a.source == "assumption"]
    yield from _list("Assumed by the agent, not said by the user", assumptions, empty="nothing")
    warnings = [f"{f.level} {f.code}: {f.message}" for f in record.findings]
    yield from _list("Findings about the inputs", warnings, empty="none")
    yield from _smoke_lines(record.smoke, request)
    yield from _module_lines(record.smoke)
    yield from _estimate_lines(request)
    yield from _policy_lines(request)
    yield ""
    yield "Covered: code, declared data, arguments, environment, values of secrets, interpreter and its packages by"
    yield "  name and version, its start-up files, modules that the smoke run loaded from elsewhere, process layout,"
    yield "  seed, evaluation and ceilings: a change of one byte makes this approval void."
    yield "Not covered: content of installed packages, modules that only the full run loads from elsewhere (the report"
    yield "  names them), data that the script reads without declaring it, file times, which of several equal devices"
    yield "  it gets, anything that the script fetches over the network."
    if plan is not None and any(file.mode == "sampled" for file in plan.data):
        yield "  Nor every byte of the data files that are marked as sampled."
    yield f"Plan digest:    {request.plan_digest}"
    yield f"Request digest: {request.digest} (short: {short_digest(request)})"


def _plan_lines(plan: TrainingPlan) -> Iterator[str]:
    layout, ceilings = plan.layout, plan.ceilings
    yield f"Script: {visible(plan.code.entry)} of {visible(plan.code.origin)}"
    yield f"Arguments: {visible(shlex.join(plan.argv)) or '(none)'}"
    yield f"Arguments of the smoke run: {visible(shlex.join(plan.smoke.args)) or '(none)'}"
    yield f"Code: {len(plan.code.files)} files, sha256 {plan.code.sha256}"
    yield f"Python: {visible(plan.interpreter.executable)} ({visible(plan.interpreter.version)})"
    where = f"{layout.num_nodes} node(s), {layout.device}, by {layout.launcher}"
    yield f"Processes: {layout.num_processes} on {visible(where)}"
    yield f"Seed: {'not set' if plan.seed is None else plan.seed}"
    data = [f"{d.role} {d.path} ({_extent(d)}, {d.mode} sha256 {d.sha256[:16]})" for d in plan.data]
    yield from _list("Data", data, empty="none declared")
    yield from _list("Environment", [f"{k}={v}" for k, v in sorted(plan.environment.items())], empty="empty")
    secrets = [
        f"{n} ({'bound by a keyed hash' if n in plan.inherited_hashes else 'NOT bound'})" for n in plan.inherited
    ]
    yield from _list("Secrets passed by name", secrets, empty="none")
    settings = [f"{s.name} = {s.value} ({s.origin})" for s in plan.settings]
    yield from _list("Settings", settings, empty="none recorded")
    if plan.evaluation is None:
        yield "Evaluation: none; no metric of this run can be called verified"
    else:
        metrics = ", ".join(plan.evaluation.metrics)
        yield f"Evaluation: {visible(metrics)} on {visible(plan.evaluation.holdout)}"
    cost = "as the prices give" if ceilings.cost is None else f"{ceilings.cost:.2f} {ceilings.currency}".rstrip()
    each = " for each run" if plan.sweep else ""
    yield (
        f"Ceilings{each}: {_duration(ceilings.wall_time_s)} wall time, {ceilings.max_retries} retries, "
        f"{ceilings.disk_bytes / 2**30:.1f} GiB disk"
    )
    yield f"Ceiling of cost{' for all runs together' if plan.sweep else ''}: {visible(cost)}"


def _extent(file: DataFile) -> str:
    if file.num_files == 0:
        return f"{file.size_bytes} bytes"
    return f"{file.num_files} files, {file.size_bytes} bytes, each known by name"


def _sweep_lines(plan: TrainingPlan, request: ApprovalRequest) -> Iterator[str]:
    if not plan.sweep:
        return
    yield f"SWEEP: this ONE approval covers {plan.num_runs} runs, each of them once:"
    for number, arguments in enumerate(plan.sweep, start=1):
        yield f"  run {number}: {visible(shlex.join(arguments)) or '(no arguments)'}"
    hours = plan.ceilings.wall_time_s * plan.layout.num_processes * plan.num_runs / 3600
    yield f"  All together: cost {whole_cost_words(request)} {visible(request.estimate.currency)}".rstrip()
    yield f"  At most {hours:.3f} device hours in all"
    if request.launch_until_s is not None:
        yield f"  Once the first has started in time, the others may start until {_utc(request.launch_until_s)}"


def _command_lines(spec: LaunchSpec | None) -> Iterator[str]:
    if spec is None:
        yield "Command: could not be shown"
        return
    yield f"Command: {visible(shlex.join(spec.argv))}"
    yield f"  in {visible(spec.working_directory)}"
    if spec.script:
        yield "Batch script:"
        yield from (f"  | {visible(line)}" for line in spec.script.splitlines())


def _smoke_lines(smoke: SmokeResult | None, request: ApprovalRequest) -> Iterator[str]:
    if smoke is None:
        yield "Smoke run: NONE"
        return
    yield f"Smoke run {visible(smoke.run_id)}: {request.smoke_verdict.upper()}"
    for check in smoke.checks:
        yield f"  {check.outcome:9} {check.name}: {visible(check.detail)}"


def _module_lines(smoke: SmokeResult | None) -> Iterator[str]:
    title = "Modules loaded from outside code and packages"
    if smoke is None or smoke.outside_modules is None:
        yield f"{title}: NOT RECORDED by the smoke run, so they are not covered"
        return
    modules = [f"{m.name} {m.path} (sha256 {m.sha256[:16] or 'unknown: it is gone'})" for m in smoke.outside_modules]
    if len(modules) > _NAMED_MODULES:  # a long list must not push the rest out of sight
        modules[_NAMED_MODULES:] = [f"and {len(modules) - _NAMED_MODULES} more, all under the smoke digest"]
    yield from _list(title, modules, empty="none")


def _estimate_lines(request: ApprovalRequest) -> Iterator[str]:
    estimate, each = request.estimate, request.plan is not None and bool(request.plan.sweep)
    if each:
        yield "Estimate for EACH run of the sweep:"
    yield f"Time:   {_interval(estimate.wall_time_s, _duration)}"
    yield f"Memory: {_interval(estimate.memory_bytes, lambda b: f'{b / 2**30:.2f} GiB')}"
    cost = _interval(estimate.cost, lambda c: f"{c:.2f}")
    yield f"Cost:   {cost} {visible(estimate.currency)}".rstrip()
    if _is_above_ceiling(request):
        yield "WARNING: the estimate is above the ceiling of cost: the supervisor will stop the run there"
    yield f"Price source: {visible(estimate.price_source) or UNKNOWN}"
    hours = estimate.device_hours
    yield f"Device hours: {UNKNOWN if hours is None else f'{hours:.3f}'}"
    yield f"Method: {visible(estimate.method)}; past accuracy: {visible(estimate.past_accuracy)}"
    yield from _list("Unknown in this estimate", estimate.unknowns, empty="nothing")


def _is_above_ceiling(request: ApprovalRequest) -> bool:
    if request.plan is None or request.plan.ceilings.cost is None or request.estimate.cost is None:
        return False
    return request.estimate.cost.value * request.plan.num_runs > request.plan.ceilings.cost


def _policy_lines(request: ApprovalRequest) -> Iterator[str]:
    yield f"Policy: {visible(request.policy_version)}"
    found = request.assessment
    if found is None:
        yield "Level needed: not assessed when this was asked; it is assessed at the approval"
        return
    for note in found.notes:
        yield f"WARNING: {visible(note)}"
    cost = UNKNOWN if found.most_cost is None else f"{found.most_cost} {found.currency}"
    yield f"At most: {visible(cost)}, {visible(found.most_device_hours)} device hours"
    yield from _list(f"Level needed: {found.level.value if found.level else 'none'}, because", found.why, empty="-")


def _list(title: str, items: Sequence[str], *, empty: str) -> Iterator[str]:
    if not items:
        yield f"{visible(title)}: {empty}"
        return
    yield f"{visible(title)}:"
    yield from (f"  {visible(item)}" for item in items)


def _interval(interval: Interval | None, words: Callable[[float], str]) -> str:
    if interval is None:
        return UNKNOWN
    return f"{words(interval.value)} ({interval.level:.0f}% interval {words(interval.low)} to {words(interval.high)})"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.2f} h"


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
