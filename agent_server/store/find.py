"""One record by its id, within a transaction that the caller holds."""

from sqlalchemy import Column, Connection, select

from tools.domain.approval import Approval, ApprovalRequest, ApproverKey
from tools.domain.errors import NotFound
from tools.domain.plan_state import PlanRecord
from tools.domain.ports import StoreMode
from tools.domain.run_state import RunRecord

from . import tables
from .integrity import MODE
from .rows import from_body, maybe_body, one_body

IDS_HINT = "list_work or `forerun runs` shows the ids"


def find_plan(connection: Connection, plan_id: str) -> PlanRecord:
    body = one_body(connection, tables.plans.c.plan_id, plan_id, what="plan", hint=IDS_HINT)
    return from_body(PlanRecord, body, what=f"plan {plan_id}")


def find_request(connection: Connection, request_id: str) -> ApprovalRequest:
    hint = "`forerun approvals` shows the open ones"
    body = one_body(connection, tables.requests.c.request_id, request_id, what="approval request", hint=hint)
    return from_body(ApprovalRequest, body, what=f"request {request_id}")


def find_approval(connection: Connection, request_id: str) -> Approval | None:
    body = maybe_body(connection, tables.approvals.c.request_id, request_id)
    return None if body is None else from_body(Approval, body, what=f"the decision on {request_id}")


def find_run(connection: Connection, run_id: str) -> RunRecord:
    body = one_body(connection, tables.runs.c.run_id, run_id, what="run", hint=IDS_HINT)
    return from_body(RunRecord, body, what=f"run {run_id}")


def find_key(connection: Connection, key_id: str) -> ApproverKey | None:
    body = maybe_body(connection, tables.keys.c.key_id, key_id)
    return None if body is None else from_body(ApproverKey, body, what=f"key {key_id[:8]}")


def store_mode(connection: Connection) -> StoreMode:
    value = connection.execute(select(tables.meta.c.value).where(tables.meta.c.name == MODE)).scalar()
    return "simulated" if value == "simulated" else "normal"


def sequence_of(connection: Connection, column: Column[str], key: str | None, *, what: str) -> int | None:
    if key is None:
        return None
    sequence: int | None = connection.execute(select(column.table.c.sequence).where(column == key)).scalar()
    if sequence is None:
        raise NotFound(f"there is no {what} {key!r} to continue after", next_step=IDS_HINT)
    return sequence
