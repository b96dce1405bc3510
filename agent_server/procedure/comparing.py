"""What a plan changes: against the plan that it was made from, and against the last one that a human approved."""

from pathlib import Path

from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.ports import Store
from tools.plan_difference import differences

_SEARCHED = 50
_PAGE = 100
_ASKED = frozenset({PlanState.REQUESTED, PlanState.APPROVED, PlanState.LAUNCHED})
_APPROVED = frozenset({PlanState.APPROVED, PlanState.LAUNCHED})


def against_base(store: Store, record: PlanRecord) -> tuple[str, ...] | None:
    """A line a difference; None if it was made from no plan, or one of the two is not settled."""
    base = store.plan(record.base_plan_id) if record.base_plan_id else None
    if base is None or base.plan is None or record.plan is None:
        return None
    return differences(base.plan, record.plan)


def since_approved(store: Store, record: PlanRecord) -> tuple[str, tuple[str, ...]] | None:
    """The last plan of the same script that a human approved, and what differs; None if there is none.

    A launch in the free tier was approved by nobody, and plans made since, however many, hide none that was.
    """
    before: str | None = None
    while record.plan is not None:
        page = store.plans(limit=_PAGE, before=before)
        for other in page:
            if other.plan is not None and _is_like(other, record, _APPROVED) and _was_approved(store, other):
                return other.plan_id, differences(other.plan, record.plan)
        if len(page) < _PAGE:
            break
        before = page[-1].plan_id
    return None


def in_words(store: Store, record: PlanRecord) -> list[str]:
    """For a refusal: what differs from the base plan first, then from the last plan that was put before a human."""
    lines = []
    changes = against_base(store, record)
    if changes is not None:
        lines.append(f"against plan {record.base_plan_id}, which it was made from, it differs in: {_listed(changes)}")
    other = _newest(store, record, _ASKED)
    if other is None or other.plan_id == record.base_plan_id or other.plan is None or record.plan is None:
        return lines
    changes = differences(other.plan, record.plan) or ("nothing: it is the same plan under another id",)
    return [*lines, f"against plan {other.plan_id} ({other.state.value}) it differs in: {'; '.join(changes)}"]


def _listed(changes: tuple[str, ...]) -> str:
    return "; ".join(changes) or "nothing"


def _newest(store: Store, record: PlanRecord, states: frozenset[PlanState]) -> PlanRecord | None:
    if record.plan is None:
        return None
    return next((other for other in store.plans(limit=_SEARCHED) if _is_like(other, record, states)), None)


def _is_like(other: PlanRecord, record: PlanRecord, states: frozenset[PlanState]) -> bool:
    """Whether it is another plan of the same script, in one of these states."""
    return other.plan_id != record.plan_id and other.state in states and _script(other) == _script(record)


def _was_approved(store: Store, record: PlanRecord) -> bool:
    request = store.request_for_plan(record.plan_id)
    approval = store.approval(request.request_id) if request else None
    return approval is not None and approval.decision.decision == "approve"


def _script(record: PlanRecord) -> Path | None:
    return Path(record.plan.code.origin) / record.plan.code.entry if record.plan else None
