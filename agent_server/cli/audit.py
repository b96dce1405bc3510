"""`forerun audit verify`: does the database still say what happened?"""

from datetime import UTC, datetime

from agent_server.approvals.policy.in_force import document_problems
from agent_server.settings import Settings
from tools.domain.applied import KINDS
from tools.domain.ports import Store
from tools.request_approval import signature_problems

from .opening import opened_store
from .output import fail, say

_KEY_EVENTS = ("key_enrolled", "key_removed")


def verify(settings: Settings) -> int:
    """Print every problem, the first broken link first; the exit code is 1 if there is one."""
    with opened_store(settings) as store:
        problems = [*store.problems(), *_signatures(store)]
        log = store.audit_log()
    for problem in problems:
        fail(problem)
    if problems:
        return 1
    for link in log:
        if link.event in _KEY_EVENTS:
            when = datetime.fromtimestamp(link.time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            say(f"link {link.sequence}, {when}: {link.event} {link.subject[:8]} by {link.actor}")
    say(f"{len(log)} link{'s' * (len(log) != 1)}, every record and every signature fit. Head: {log[-1].hash}")
    return 0


def _signatures(store: Store) -> list[str]:
    enrolled = store.keys()
    keys = {key.key_id: key for key in enrolled}
    found = []
    for request in store.requests(limit=1_000_000):
        approval = store.approval(request.request_id)
        if approval is not None:
            key = keys.get(approval.decision.key_id)
            found += [f"decision on {request.request_id}: {p}" for p in signature_problems(approval, key)]
            if approval.decision.request_digest != request.digest:
                found.append(f"decision on {request.request_id}: the request was edited since")
    for kind in KINDS:
        document = store.applied(kind).document
        if document is not None:
            key = keys.get(document.statement.key_id)
            found += [f"applied {kind}: {p}" for p in document_problems(document, key, kind=kind)]
    return found
