"""The end of the procedure: verification on held-out data, and the signed report."""

from runtime.config.order import RunKind
from runtime.config.plan import MOST_SWEEP_RUNS
from tools.diagnose_failure import diagnose
from tools.domain.errors import Conflict, NotFound, WrongStep
from tools.domain.ports import Store
from tools.domain.reports import ReportSummary, Verification
from tools.domain.run_state import RunRecord, RunState
from tools.launch_training import read_environment
from tools.report.material import FreeLaunch

from .comparing import against_base
from .report_key import load_report_key
from .spending import prices_per_hour
from .workplace import Workplace, layout_of

_PAST_PLANS = 50
_PAST_RUNS = MOST_SWEEP_RUNS + 50  # of one plan


def verify(place: Workplace, run_id: str) -> Verification:
    """Score the run's predictions on the hold-out that the plan fixed; kept with the run.

    Raises:
        WrongStep: no full run, or it did not succeed.
    """
    from tools.verify_metrics import verify_metrics  # deferred: loads scikit-learn and SciPy

    run = place.run(run_id)
    if run.kind == "smoke":
        raise WrongStep(
            f"run {run_id} is a smoke run; its metrics say nothing of the task",
            allowed="a full run that succeeded",
            next_step="launch_training once a human approved",
        )
    if run.state is not RunState.SUCCEEDED:
        raise WrongStep(
            f"run {run_id} is {run.state.value}",
            allowed="a full run that succeeded",
            next_step="diagnose_failure" if run.ended else f"monitor_run(id={run_id}, wait_s=25)",
        )
    if run.verification is not None and run.verification.verdict == "verified":
        return run.verification
    plan = place.store.plan(run.plan_id).plan
    if plan is None:
        raise WrongStep(f"plan {run.plan_id} has no settled inputs", next_step="answer_questions")
    verification = verify_metrics(plan, plan_digest=run.plan_digest, run=run, layout=layout_of(run))
    _keep(place.store, run, verification=verification)
    return verification


def report(place: Workplace, run_id: str, summary: str) -> ReportSummary:
    """Write and sign the report; it may be asked for at any time and lists what is missing."""
    from tools.provenance_report import ReportMaterial, provenance_report  # deferred: loads templates and crypto

    run = place.run(run_id)
    record = place.store.plan(run.plan_id)
    smoke_run = _run_or_none(place.store, record.smoke.run_id) if record.smoke else None
    request = place.store.request(run.request_id) if run.request_id else place.store.request_for_plan(run.plan_id)
    approval = place.store.approval(request.request_id) if request else None
    keys = place.store.keys()
    past = _earlier_runs(place, run)
    currency = record.estimate.currency if record.estimate else ""
    material = ReportMaterial(
        plan_record=record,
        run=run,
        layout=layout_of(run),
        smoke_run=smoke_run,
        smoke_layout=layout_of(smoke_run) if smoke_run else None,
        request=request,
        approval=approval,
        approver_key=next((k for k in keys if approval and k.key_id == approval.decision.key_id), None),
        enrolled_keys=keys,
        audit_head=place.store.audit_head(),
        free_launch=_free_launch(place.store, run),
        environment=read_environment(layout_of(run)),
        past_runs=past,
        prices_per_hour=prices_per_hour(place.store, past, currency=currency, now_s=place.now_s()),
        diagnosis=diagnose(run, layout_of(run)) if run.ended and run.state is not RunState.SUCCEEDED else None,
        differences=against_base(place.store, record),
        created_at_s=place.now_s(),
    )
    written = provenance_report(material, summary=summary, private_key=load_report_key(place.settings.report_key))
    _keep(place.store, run, report=written)
    return written


def _free_launch(store: Store, run: RunRecord) -> FreeLaunch | None:
    """The launch without an approval that this run came from, if it did."""
    for link in store.audit_of(run.plan_id):
        if link.event == "launched_without_approval" and link.details.get("run_id") == run.run_id:
            return FreeLaunch(str(link.details.get("policy", "")), link.time_s)
    return None


def _keep(store: Store, run: RunRecord, **fields: Verification | ReportSummary) -> None:
    for _ in range(5):
        current = store.run(run.run_id)
        try:
            store.save_run(current.model_copy(update=fields), expect=current.state)
        except Conflict:
            continue
        return
    raise Conflict(f"run {run.run_id} keeps changing", next_step="call again")


def _run_or_none(store: Store, run_id: str) -> RunRecord | None:
    try:
        return store.run(run_id)
    except NotFound:
        return None


def _earlier_runs(place: Workplace, run: RunRecord) -> list[RunRecord]:
    """Earlier attempts at this plan and the plans it was made from: what failed before belongs to the report."""
    kinds: tuple[RunKind, ...] = ("smoke", "full", "rerun")
    seen, plan_id = [], run.plan_id
    for _ in range(_PAST_PLANS):
        found = place.store.runs(limit=_PAST_RUNS, plan_id=plan_id)
        seen += [place.reconciler.reconcile(r) for r in found if r.run_id != run.run_id and r.kind in kinds]
        base = place.store.plan(plan_id).base_plan_id
        if base is None:
            break
        plan_id = base
    return seen
