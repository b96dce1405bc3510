"""Plans, requests and runs as lines of a list: a few fields of each record, never the whole."""

from typing import Any

from sqlalchemy import JSON, ColumnElement, Connection, Table, cast, func, select, type_coerce

from tools.domain.ports import WorkKind, WorkLine

from . import tables


def work_lines(connection: Connection, kind: WorkKind, *, limit: int) -> list[WorkLine]:
    """The newest, newest first. A request's state is its plan's, unless a newer request replaced it."""
    match kind:
        case "plans":
            return _plans(connection, limit)
        case "requests":
            return _requests(connection, limit)
        case "runs":
            return _runs(connection, limit)


def _field(connection: Connection, table: Table, *path: str) -> ColumnElement[str]:
    """A text in the record, extracted by the database."""
    body: Any = (
        type_coerce(table.c.body, JSON) if connection.dialect.name == "sqlite" else cast(_printable(table), JSON)
    )
    found: ColumnElement[str] = body[path if len(path) > 1 else path[0]].as_string()
    return found


def _printable(table: Table) -> ColumnElement[str]:
    """PostgreSQL takes no NUL out of JSON: another character stands for it in a list."""
    return func.replace(table.c.body, "\\u0000", "\\ufffd")


def _plans(connection: Connection, limit: int) -> list[WorkLine]:
    table = tables.plans
    query = select(
        table.c.plan_id,
        table.c.state,
        _field(connection, table, "created_at_s"),
        _field(connection, table, "plan_digest"),
        _field(connection, table, "plan", "code", "entry"),
        _field(connection, table, "inputs", "script"),
    )
    rows = connection.execute(query.order_by(table.c.sequence.desc()).limit(limit))
    return [
        WorkLine(plan_id, "plans", state, float(created), plan_id, digest or "", entry or script or "")
        for plan_id, state, created, digest, entry, script in rows
    ]


def _requests(connection: Connection, limit: int) -> list[WorkLine]:
    table, plans = tables.requests, tables.plans
    query = select(
        table.c.request_id,
        plans.c.state,
        _field(connection, table, "created_at_s"),
        table.c.plan_id,
        _field(connection, table, "plan_digest"),
        _field(connection, table, "reason"),
    ).join_from(table, plans, table.c.plan_id == plans.c.plan_id, isouter=True)
    rows = connection.execute(query.order_by(table.c.sequence.desc()).limit(limit))
    lines, newest = [], set()
    for request_id, state, created, plan_id, digest, reason in rows:
        word = "replaced" if plan_id in newest else state or "unknown"
        newest.add(plan_id)
        lines.append(WorkLine(request_id, "requests", word, float(created), plan_id, digest or "", reason or ""))
    return lines


def _runs(connection: Connection, limit: int) -> list[WorkLine]:
    table = tables.runs
    query = select(
        table.c.run_id,
        table.c.state,
        _field(connection, table, "created_at_s"),
        table.c.plan_id,
        _field(connection, table, "plan_digest"),
        table.c.kind,
        _field(connection, table, "member"),
        _field(connection, table, "reason"),
    )
    rows = connection.execute(query.order_by(table.c.sequence.desc()).limit(limit))
    return [
        WorkLine(
            run_id, "runs", state, float(created), plan_id, digest or "", " ".join(filter(None, (kind, part, reason)))
        )
        for run_id, state, created, plan_id, digest, kind, member, reason in rows
        for part in ("" if member is None else f"(member {member})",)
    ]
