"""list_work: what there is, newest first."""

from dataclasses import dataclass
from typing import Literal

from tools.domain.approval import ApprovalRequest
from tools.domain.errors import InvalidInput
from tools.domain.plan_state import PlanRecord
from tools.domain.run_state import RunRecord

from .workplace import Workplace

Kind = Literal["plans", "requests", "runs"]
KINDS: tuple[Kind, ...] = ("plans", "requests", "runs")
_PAGE = 10
_SCANNED = 200


@dataclass(frozen=True)
class Item:
    """One line of the list."""

    id: str
    kind: Kind
    state: str
    created_at_s: float
    plan_id: str
    plan_digest: str
    detail: str


@dataclass(frozen=True)
class WorkPage:
    items: tuple[Item, ...]
    cursor: str


def list_work(place: Workplace, *, kind: str, state: str, cursor: str) -> WorkPage:
    """A page of plans, requests and runs; `cursor` is the last id that was shown.

    Raises:
        InvalidInput: no such kind, or a cursor that this list never gave.
    """
    if kind not in ("", *KINDS):
        raise InvalidInput(
            f"kind {kind!r}", allowed=f"{', '.join(KINDS)}, or empty for all", next_step="list_work again"
        )
    place.reconciler.reconcile_all()
    items: list[Item] = []
    if kind in ("", "runs"):
        items += [_run(run) for run in place.store.runs(limit=_SCANNED)]
    if kind in ("", "requests"):
        states = {plan.plan_id: plan.state.value for plan in place.store.plans(limit=_SCANNED)}
        items += [_request(place, request, states) for request in place.store.requests(limit=_SCANNED)]
    if kind in ("", "plans"):
        items += [_plan(plan) for plan in place.store.plans(limit=_SCANNED)]
    items.sort(key=lambda item: (item.created_at_s, item.id), reverse=True)
    items = [item for item in items if state in ("", item.state)]
    start = _position(items, cursor)
    page = items[start : start + _PAGE]
    more = start + _PAGE < len(items)
    return WorkPage(tuple(page), page[-1].id if more else "")


def _position(items: list[Item], cursor: str) -> int:
    if not cursor:
        return 0
    for position, item in enumerate(items, start=1):
        if item.id == cursor:
            return position
    raise InvalidInput(
        f"cursor {cursor!r}", allowed="the cursor of an earlier page", next_step="list_work without cursor"
    )


def _plan(plan: PlanRecord) -> Item:
    script = plan.plan.code.entry if plan.plan else str(plan.inputs.get("script", ""))
    return Item(
        plan.plan_id, "plans", plan.state.value, plan.created_at_s, plan.plan_id, plan.plan_digest or "", script
    )


def _request(place: Workplace, request: ApprovalRequest, states: dict[str, str]) -> Item:
    newest = place.store.request_for_plan(request.plan_id)
    state = states.get(request.plan_id, "unknown") if newest == request else "replaced"
    return Item(
        request.request_id,
        "requests",
        state,
        request.created_at_s,
        request.plan_id,
        request.plan_digest,
        request.reason,
    )


def _run(run: RunRecord) -> Item:
    return Item(
        run.run_id,
        "runs",
        run.state.value,
        run.created_at_s,
        run.plan_id,
        run.plan_digest,
        f"{run.kind} {run.reason}".strip(),
    )
