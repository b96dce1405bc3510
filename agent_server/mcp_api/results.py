"""Results of the tools that lead to a launch."""

from typing import TYPE_CHECKING, Any

from tools.domain.plan_state import NEXT_TOOL, PlanRecord, PlanState
from tools.domain.reports import ApiReport, CostEstimate, EnvironmentReport

from .reply import MOST, Reply, compact, finding_lines, gib, interval_or_unknown, number, range_text, utc

if TYPE_CHECKING:
    from agent_server.procedure import ApprovalRequired, Asked, Settled, WorkPage

_SHOWN_PACKAGES = ("torch", "numpy", "transformers", "datasets", "accelerate", "deepspeed", "peft", "trl", "pyarrow")


def next_step(record: PlanRecord) -> str:
    """The tool that comes next for this plan, with its argument."""
    plan_id = record.plan_id
    match record.state:
        case PlanState.VALID if record.smoke is not None:
            return (
                f"diagnose_failure(run_id={record.smoke.run_id}), then validate_inputs with base_plan_id={plan_id} "
                f"and the remedy"
            )
        case PlanState.VALID | PlanState.SMOKED | PlanState.ESTIMATED | PlanState.APPROVED | PlanState.EXPIRED:
            return f"{NEXT_TOOL[record.state]}(plan_id={plan_id}{_first_member(record)})"
        case PlanState.LAUNCHED if record.plan is not None and record.plan.sweep:
            return f"monitor_run, or launch_training(plan_id={plan_id}, member=...) for a run that has not started"
        case PlanState.DRAFTED:
            return f"answer_questions(plan_id={plan_id}), with the user's words"
        case _:
            return NEXT_TOOL[record.state]


def _first_member(record: PlanRecord) -> str:
    """The further argument of launch_training, where a sweep is approved."""
    is_sweep = record.plan is not None and bool(record.plan.sweep)
    return ", member=1" if is_sweep and record.state is PlanState.APPROVED else ""


def environment(report: EnvironmentReport) -> Reply:
    usable = [device for device in report.devices if device.usable]
    devices = [
        {
            "name": device.name,
            "kind": device.kind,
            "ordinal": device.ordinal,
            "free_gib": gib(device.memory_free_bytes),
            "total_gib": gib(device.memory_total_bytes),
            "reasons": list(device.reasons),
        }
        for device in report.devices
    ]
    paths = [
        {
            "path": path.path,
            "kind": path.kind,
            "size_bytes": path.size_bytes,
            "num_files": path.num_files,
            "free_gib": gib(path.free_bytes),
        }
        for path in report.paths
    ]
    packages = {name: report.packages[name] for name in _SHOWN_PACKAGES if name in report.packages}
    cpus = f"{report.num_cpus} CPUs ({report.cpu_source} limit)"
    memory = f"{gib(report.memory_available_bytes)} of {gib(report.memory_total_bytes)} GiB free"
    return Reply(
        f"{len(usable)} usable accelerators, {cpus}, memory {memory}; "
        f"Python {report.python_version or 'unknown'}, torch {packages.get('torch', 'not found')}.",
        "validate_inputs",
        {
            "python": report.python,
            "python_version": report.python_version,
            "packages": packages,
            "num_packages": len(report.packages),
            "platform": report.platform,
            "num_cpus": report.num_cpus,
            "memory_free_gib": gib(report.memory_available_bytes),
            "driver": report.driver_version,
            "cuda": report.cuda_version,
            "devices": [compact(device) for device in devices],
            "paths": [compact(path) for path in paths],
            "findings": finding_lines(report.findings),
        },
    )


def api(report: ApiReport) -> Reply:
    names = [
        compact(
            {
                "name": name.name,
                "found": name.found,
                "kind": name.kind,
                "signature": name.signature[:400],
                "summary": name.summary[:200],
                "nearest": list(name.nearest),
                "package": f"{name.package} {name.version or ''}".strip(),
                "reason": name.reason,
            }
        )
        for name in report.names
    ]
    missing = [name.name for name in report.names if not name.found]
    text = f"{len(names) - len(missing)} of {len(names)} names exist in {report.python}."
    if missing:
        text += f" Not found: {', '.join(missing)}."
    step = "use only what was found; for the others take one of `nearest`, or tell the user" if missing else "go on"
    return Reply(text, step, {"names": names})


def settled(found: "Settled") -> Reply:
    record = found.record
    plan = record.plan
    questions = [
        compact({"id": q.id, "text": q.text, "allowed": list(q.allowed), "proposal": q.proposal})
        for q in record.questions
    ]
    text = f"Plan {record.plan_id} is {record.state.value}" + (
        " (the same inputs as before)." if found.repeated else "."
    )
    if questions:
        text += " Open questions: " + " ".join(f"[{q.id}] {q.text}" for q in record.questions)
    data: dict[str, Any] = {
        "plan_id": record.plan_id,
        "state": record.state.value,
        "plan_digest": record.plan_digest,
        "questions": questions,
        "findings": finding_lines(record.findings),
        "differences": list(found.differences[:MOST]),
        "assumptions": [f"{a.question_id}={a.value}" for a in record.answers if a.source == "assumption"],
    }
    if plan is not None:
        data |= {
            "script": plan.code.entry,
            "args": " ".join(plan.argv),
            "sweep": [f"{n}: {' '.join(member)}" for n, member in enumerate(plan.sweep, start=1)],
            "smoke_args": " ".join(plan.smoke.args),
            "processes": f"{plan.layout.num_processes} on {plan.layout.device}",
            "data": [f"{d.role}={d.path} ({d.size_bytes} bytes, {d.mode} sha256 {d.sha256[:12]})" for d in plan.data],
            "details": f"forerun://plans/{record.plan_id}",
        }
    return Reply(text, next_step(record), data)


def approval_required(found: "ApprovalRequired") -> Reply:
    record = found.record
    data: dict[str, Any] = {"status": "approval_required", "plan_id": record.plan_id, "state": record.state.value}
    data |= {"request_id": found.request_id, "missing": list(found.missing)}
    return Reply(f"Approval required, nothing was started: {'; '.join(found.missing)}.", next_step(record), data)


def estimate(found: CostEstimate, record: PlanRecord) -> Reply:
    time_ = f"{range_text(found.wall_time_s)} s" if found.wall_time_s else "unknown time"
    memory = f"{range_text(found.memory_bytes, 2**30)} GiB" if found.memory_bytes else "unknown memory"
    cost = f"{range_text(found.cost)} {found.currency}" if found.cost else "unknown cost"
    return Reply(
        f"Estimate for {record.plan_id}: {time_}, {memory}, {cost}. {found.past_accuracy}",
        next_step(record),
        {
            "plan_id": record.plan_id,
            "wall_time_s": interval_or_unknown(found.wall_time_s),
            "memory_bytes": interval_or_unknown(found.memory_bytes),
            "cost": interval_or_unknown(found.cost),
            "currency": found.currency,
            "price_source": found.price_source,
            "device_hours": number(found.device_hours),
            "num_steps": found.num_steps,
            **_all_runs(found, record),
            "method": found.method,
            "unknown": list(found.unknowns),
        },
    )


def _all_runs(found: CostEstimate, record: PlanRecord) -> dict[str, Any]:
    """Of a sweep: the estimate is of each run, so the sum is said as well."""
    if record.plan is None or not record.plan.sweep:
        return {}
    cost = "unknown" if found.cost is None else f"{found.cost.value * record.plan.num_runs:.2f} {found.currency}"
    return {"estimate_is_of": "each run", "num_runs": record.plan.num_runs, "cost_of_all_runs": cost}


def asked(found: "Asked", *, plan: PlanRecord) -> Reply:
    request = found.request
    again = " (asked before; the request is still open)" if found.repeated else ""
    expires = utc(request.expires_at_s)
    assessed = request.assessment
    needs: dict[str, Any] = {}
    if assessed is not None:
        needs = {"needs": assessed.level.value if assessed.level else "none", "why": list(assessed.why[:MOST])}
        if assessed.notes:
            needs["not_counted"] = list(assessed.notes[:MOST])
    return Reply(
        f"A human must decide {request.request_id}{again}, until {expires}. "
        f"Show them this command verbatim: {found.command}",
        "end the turn now (a background shell may run wait_command); once they decided "
        f"launch_training(plan_id={plan.plan_id}{', member=1' if plan.plan and plan.plan.sweep else ''})",
        {
            "status": "approval_required",
            "request_id": request.request_id,
            "plan_id": plan.plan_id,
            "command": found.command,
            "wait_command": found.wait_command,
            "expires": expires,
        }
        | ({} if found.changes is None else {"changed_against_base": list(found.changes[:MOST])})
        | needs,
    )


def validating(plan_id: str) -> Reply:
    return Reply(
        f"Still validating {plan_id} (large data or code).",
        f"monitor_run(id={plan_id}, wait_s=25)",
        {"id": plan_id, "plan_id": plan_id, "state": "validating", "next_poll_s": 5},
    )


def work(page: "WorkPage") -> Reply:
    items = [
        compact(
            {
                "id": item.id,
                "state": item.state,
                "plan_id": item.plan_id if item.plan_id != item.id else "",
                "plan_digest": item.plan_digest[:12],
                "detail": item.detail[:120],
            }
        )
        for item in page.items
    ]
    step = f"list_work(cursor={page.cursor}) goes on" if page.cursor else "monitor_run(id) says what is next for an id"
    text = "\n".join([f"{len(items)} entries, newest first.", *(f"{i['id']} {i['state']}" for i in items)])
    return Reply(text, step, {"items": items, "cursor": page.cursor})
