"""`forerun approvals`, `approve` and `refuse`: a human reads, types what was read, and signs."""

import time
from collections.abc import Sequence

from agent_server.approvals.decide import Verdict, decide, record_shown
from agent_server.approvals.policy.budgets import budget_lines
from agent_server.approvals.policy.check import check_request, reservation, rules_of
from agent_server.procedure.comparing import against_base, since_approved
from agent_server.settings import Settings
from runtime.config.order import LaunchSpec
from runtime.errors import ForerunError
from runtime.launchers.registry import get_launcher
from runtime.layout import RunLayout
from tools.domain.approval import ApprovalRequest, ApproverKey, AssuranceLevel
from tools.domain.errors import Refused, WrongStep
from tools.domain.ids import require_id
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.ports import Store
from tools.request_approval import missing_evidence, request_refusals, shown_text, store_refusals
from tools.shown_plan import SHORT_DIGEST_CHARACTERS, short_digest, whole_cost_words
from tools.text import visible

from .approver import LEVEL_WORDS, choose_key, unlock
from .opening import opened_store
from .output import ago, say, table
from .terminal import Terminal

_NEW_KEY_S = 24 * 3600.0


def list_requests(settings: Settings, *, limit: int = 50) -> None:
    """Every request with what became of it."""
    with opened_store(settings) as store:
        now_s = max(time.time(), store.latest_time_s())
        rows = [
            (r.request_id, r.plan_id, _outcome(store, r, now_s=now_s), _cost(r), ago(now_s - r.created_at_s), r.reason)
            for r in store.requests(limit=limit)
        ]
        simulated = store.mode == "simulated"
    if simulated:
        say(LEVEL_WORDS[AssuranceLevel.SIMULATED], style="bold magenta")
    columns = ("request", "plan", "state", "cost", "age", "reason")
    table("Approval requests", columns, rows, empty="No agent has asked for an approval.")


def approve(settings: Settings, request_id: str, *, key_prefix: str) -> None:
    """Show the request, have its cost and digest typed, and sign.

    Raises:
        Refused: no terminal, no key, an expired or changed request; nothing is decided then.
        NothingDecided: three wrong answers, or the human left.
    """
    require_id(request_id, "req")
    with opened_store(settings) as store:
        terminal = Terminal(store.mode)
        request, record = _open_request(store, request_id)
        key = choose_key(store, settings.keys_dir, key_prefix)
        shown = _show(terminal, store, settings, request, record, key)
        accepted = _have_it_typed(terminal, request, record)
        private_key = unlock(terminal, settings.keys_dir, key)
        verdict = Verdict("approve", shown, "terminal", request.digest, accepted_not_shown=accepted)
        decide(store, request_id, verdict, key=key, private_key=private_key, clock=time.time)
    left = ago(request.expires_at_s - time.time())
    terminal.say(
        f"{request_id} is approved by {key.approver}, level {key.level.value}: plan {request.plan_id} may launch "
        f"{_how_often(request)} in the next {left}.",
        style="bold green",
    )


def _how_often(request: ApprovalRequest) -> str:
    num_runs = request.plan.num_runs if request.plan else 1
    return "once" if num_runs == 1 else f"each of its {num_runs} runs once, the first of them"


def refuse(settings: Settings, request_id: str, *, key_prefix: str) -> None:
    """Show the request, ask for the reason, and sign the refusal.

    Raises:
        Refused: no terminal, no key, or the request is not open.
    """
    require_id(request_id, "req")
    with opened_store(settings) as store:
        terminal = Terminal(store.mode)
        request, record = _requested(store, request_id)
        key = choose_key(store, settings.keys_dir, key_prefix)
        shown = _show(terminal, store, settings, request, record, key)
        while not (note := terminal.ask("Reason for refusing: ")):
            terminal.wrong_answer("the agent and the report need a reason")
        private_key = unlock(terminal, settings.keys_dir, key)
        verdict = Verdict("refuse", shown, "terminal", request.digest, note=note)
        decide(store, request_id, verdict, key=key, private_key=private_key, clock=time.time)
    terminal.say(f"{request_id} is refused by {key.approver}; plan {request.plan_id} will not launch.", style="bold")


def _requested(store: Store, request_id: str) -> tuple[ApprovalRequest, PlanRecord]:
    request = store.request(request_id)
    record = store.plan(request.plan_id)
    if record.state is not PlanState.REQUESTED or store.approval(request_id) is not None:
        raise WrongStep(
            f"request {request_id} is not open: its plan is {record.state.value}",
            next_step="`forerun approvals` shows the open ones",
        )
    return request, record


def _open_request(store: Store, request_id: str) -> tuple[ApprovalRequest, PlanRecord]:
    request, record = _requested(store, request_id)
    now_s = max(time.time(), store.latest_time_s())
    reasons = request_refusals(record, request, now_s=now_s)
    reasons += check_request(record, request, rules_of(store, now_s=now_s)).reasons
    reasons += store_refusals(request, identity=store.identity)
    if reasons:
        raise Refused(
            f"request {request_id} cannot be approved: {'; '.join(reasons)}", next_step="ask for a new request"
        )
    return request, record


def _show(
    terminal: Terminal,
    store: Store,
    settings: Settings,
    request: ApprovalRequest,
    record: PlanRecord,
    key: ApproverKey,
) -> str:
    text = f"Level: {LEVEL_WORDS[key.level]}\nApprover: {key.approver} ({key.key_id[:8]})\n" + shown_text(
        record,
        request,
        spec=_command(settings, record),
        differences=against_base(store, record) or (),
        since_approved=since_approved(store, record),
    )
    text = "\n".join([*_key_lines(store.keys(), key, now_s=time.time()), text])
    text += "".join(f"Budget of {visible(line)}\n" for line in _budgets(store, request, record))
    record_shown(store, request.request_id, approver=key.approver, text=text, channel="terminal")
    style = "bold magenta" if key.level is AssuranceLevel.SIMULATED else "bold yellow"
    terminal.say(f"*** {LEVEL_WORDS[key.level]} ***", style=style)
    terminal.say_how_long(terminal.say(text))
    return text


def _key_lines(keys: Sequence[ApproverKey], used: ApproverKey, *, now_s: float) -> list[str]:
    """Who else can approve here, and since when: a key that nobody of the house enrolled must not stay unseen."""
    lines = []
    for key in keys:
        if key.removed_at_s is not None:
            continue
        age = f"{key.approver} ({key.key_id[:8]}), enrolled {ago(now_s - key.enrolled_at_s)} ago"
        new = now_s - key.enrolled_at_s < _NEW_KEY_S
        if new or key.key_id != used.key_id:
            lines.append(f"{'*** NEW KEY ***' if new else 'Another key'} can approve here: {age}")
    if any("NEW KEY" in line for line in lines):
        lines.append("If nobody of yours enrolled it, approve nothing: `forerun keys remove`, `forerun audit verify`")
    return lines


def _have_it_typed(terminal: Terminal, request: ApprovalRequest, record: PlanRecord) -> tuple[str, ...]:
    """The evidence that the human accepts as missing, after everything was typed as it is shown."""
    terminal.require('Cost, as shown (the amount alone, or the word "unknown"): ', whole_cost_words(request))
    terminal.require(f"Request digest, first {SHORT_DIGEST_CHARACTERS} characters: ", short_digest(request))
    missing = missing_evidence(record.smoke)
    for name in missing:
        terminal.say(f"The smoke run did not show {name}.", style="bold red")
        terminal.require(f"To accept that it is missing, type its name ({name}): ", name)
    return missing


def _budgets(store: Store, request: ApprovalRequest, record: PlanRecord) -> list[str]:
    """How full the budgets are, and what this launch adds."""
    now_s = max(time.time(), store.latest_time_s())
    rules = rules_of(store, now_s=now_s)
    new = reservation(record, rules, reservation_id=request.request_id, now_s=now_s, expires_at_s=request.expires_at_s)
    return budget_lines(rules.policy, store.reservations(), new, now_s=now_s)


def _command(settings: Settings, record: PlanRecord) -> LaunchSpec | None:
    """The command as it will be rendered, with a placeholder for the run's id; None is shown as such."""
    if record.plan is None:
        return None
    layout = RunLayout(settings.runs_dir / "RUN")
    try:
        return get_launcher(record.plan.layout.launcher).render(record.plan, layout, run_id="RUN", kind="full")
    except ForerunError:
        return None


def _outcome(store: Store, request: ApprovalRequest, *, now_s: float) -> str:
    approval = store.approval(request.request_id)
    if approval is None:
        left = request.expires_at_s - now_s
        return f"open, expires in {ago(left)}" if left > 0 else "expired"
    decision = approval.decision
    word = "refused" if decision.decision == "refuse" else "approved"
    words = f"{word} by {decision.approver} ({decision.level.value})"
    if approval.used_for:
        num_runs = request.plan.num_runs if request.plan else len(approval.used_for)
        return f"{words}, {len(approval.used_for)} of {num_runs} runs started"
    if approval.used_by:
        return f"{words}, used by {approval.used_by}"
    return f"{words}, expired" if word == "approved" and now_s >= request.expires_at_s else words


def _cost(request: ApprovalRequest) -> str:
    return f"{whole_cost_words(request)} {request.estimate.currency}".strip()
