"""Policy and price files of tests, and an approver who applies them without a terminal."""

from collections.abc import Callable
from pathlib import Path

from agent_server.approvals.apply import apply
from agent_server.approvals.policy.assess import assess
from agent_server.approvals.policy.check import facts_of, rules_of
from agent_server.approvals.policy.device_use import NOT_LOOKED_AT, DeviceUse
from agent_server.approvals.policy.documents import read_document
from agent_server.store.sql import SqlStore
from tests.fakes.approvals import Human, estimated_record
from tools.domain.applied import AppliedDocument, DocumentKind
from tools.domain.approval import ApprovalRequest
from tools.domain.plan_state import PlanRecord
from tools.request_approval import build_request

PRICES = """\
currency: EUR
source: contract 17
as_of: 2026-01-01
prices:
  - {amount: 2.50, per: device_hour, device: cuda}
  - {amount: 36.00, per: node_hour}
"""


def policy_text(**changes: str) -> str:
    """The shipped policy under another name and in EUR, with blocks replaced: `budgets="{day: ...}"`.

    A change of `launches_cost` and the like replaces that table of `launches`.
    """
    blocks = {
        "cost": "[{needs: A2}]",
        "device_hours": "[{needs: A2}]",
        "devices": "{free: A2, in_use: A2}",
        "personal_data": "{absent: A2, present: A2}",
        "irreversible": "{none_seen: A2, signs: A2, words: [push_to_hub]}",
    }
    tables = {name: changes.pop(f"launches_{name}", text) for name, text in blocks.items()}
    rest = {
        "format": "1",
        "version": "lab-1",
        "currency": "EUR",
        "requests": "{expire_after_s: 3600}",
        "smoke_runs": "{max_wall_time_s: 3600, max_device_hours: 16}",
        "free_tier": "null",
        "budgets": "{day: null, project: null, requester: null}",
        **changes,
    }
    lines = [f"{name}: {text}" for name, text in rest.items()]
    return "\n".join([*lines, "launches:", *(f"  {name}: {text}" for name, text in tables.items())]) + "\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def apply_file(
    human: Human, kind: DocumentKind, path: Path, *, clock: Callable[[], float] | None = None
) -> AppliedDocument:
    """As `forerun policy apply` does, without the terminal."""
    clock = clock or human.clock
    document = read_document(kind, path, now_s=clock())
    return apply(
        human.store,
        document,
        shown=document.text,
        channel="terminal",
        key=human.key,
        private_key=human.private,
        clock=clock,
    )


def ask_by_policy(
    store: SqlStore, clock: Callable[[], float], record: PlanRecord | None = None, *, use: DeviceUse = NOT_LOOKED_AT
) -> ApprovalRequest:
    """A stored plan with an open request, as request_approval makes it under what counts now."""
    record = record or estimated_record()
    store.add_plan(record)
    rules = rules_of(store, now_s=clock())
    request = build_request(
        record,
        reason="",
        store=store.identity,
        policy_version=rules.policy.version,
        now_s=clock(),
        ttl_s=rules.policy.policy.requests.expire_after_s,
        assessment=assess(rules.policy, facts_of(record, rules.prices, use)),
    )
    store.add_request(request, plan=record)
    return request
