"""list_work: what there is, newest first."""

from dataclasses import dataclass

from tools.domain.errors import InvalidInput
from tools.domain.ports import WorkKind, WorkLine

from .workplace import Workplace

KINDS: tuple[WorkKind, ...] = ("plans", "requests", "runs")
_PAGE = 10
_SCANNED = 200


@dataclass(frozen=True)
class WorkPage:
    items: tuple[WorkLine, ...]
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
    wanted = [name for name in KINDS if kind in ("", name)]
    items = [line for name in wanted for line in place.store.work(name, limit=_SCANNED)]
    items.sort(key=lambda item: (item.created_at_s, item.id), reverse=True)
    items = [item for item in items if state in ("", item.state)]
    start = _position(items, cursor)
    page = items[start : start + _PAGE]
    more = start + _PAGE < len(items)
    return WorkPage(tuple(page), page[-1].id if more else "")


def _position(items: list[WorkLine], cursor: str) -> int:
    if not cursor:
        return 0
    for position, item in enumerate(items, start=1):
        if item.id == cursor:
            return position
    raise InvalidInput(
        f"cursor {cursor!r}", allowed="the cursor of an earlier page", next_step="list_work without cursor"
    )
