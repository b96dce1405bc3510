"""Whether the database still says what the audit log says: the chain, its end, and the digest of every record."""

import hashlib
from collections.abc import Collection

from sqlalchemy import Column, Connection, select

from tools.domain.approval import Approval, AuditRecord

from . import tables
from .chain import first_break
from .rows import from_body

RECORD_DIGEST = "record_sha256"
HEAD = "audit_head"
MODE = "mode"
CREATED = "store_created"

_RECORDS: tuple[tuple[str, Column[str]], ...] = (
    ("plan", tables.plans.c.plan_id),
    ("request", tables.requests.c.request_id),
    ("decision", tables.approvals.c.request_id),
    ("run", tables.runs.c.run_id),
    ("measured cost of run", tables.actuals.c.run_id),
    ("key", tables.keys.c.key_id),
    ("applied", tables.applied.c.kind),
    ("reservation", tables.reservations.c.reservation_id),
)
_PREFIXES = {
    "decision": "decision:",
    "measured cost of run": "actual:",
    "applied": "applied:",
    "reservation": "reservation:",
}


def kind_of(column: Column[str]) -> str:
    """What the records are whose id is in this column."""
    return next(kind for kind, known in _RECORDS if known is column)


def body_digest(body: str) -> str:
    """SHA-256 (hex) of a record's canonical JSON, as its audit row carries it."""
    return hashlib.sha256(body.encode()).hexdigest()


def record_subject(kind: str, key: str) -> str:
    """How the audit log names a record; records that share an id are kept apart."""
    return _PREFIXES.get(kind, "") + key


def load_log(connection: Connection) -> list[AuditRecord]:
    """The whole audit log in order."""
    bodies = connection.execute(select(tables.audit.c.body).order_by(tables.audit.c.sequence)).scalars()
    return [from_body(AuditRecord, body, what="an audit link") for body in bodies]


def problems(connection: Connection, *, only: Collection[str] | None = None) -> list[str]:
    """Everything that does not fit, in words; with `only`, records of other ids are passed over."""
    log = load_log(connection)
    found = _chain_problems(connection, log) + _anchor_problems(connection, log)
    last = {r.subject: r.details[RECORD_DIGEST] for r in log if RECORD_DIGEST in r.details}
    seen = set()
    for kind, column in _RECORDS:
        query = select(column, column.table.c.body)
        for key, body in connection.execute(query if only is None else query.where(column.in_(only))):
            subject = record_subject(kind, key)
            seen.add(subject)
            if subject not in last:
                found.append(
                    f"the {kind} {key} has no audit row: it was not written by forerun, or the row was removed"
                )
            elif last[subject] != body_digest(body):
                found.append(f"the {kind} {key} was edited after its last audit row")
    if only is None:
        found.extend(
            f"the record {subject} is in the audit log and gone from the database" for subject in last.keys() - seen
        )
    return found


def _anchor_problems(connection: Connection, log: list[AuditRecord]) -> list[str]:
    """Each approver signed over the end of the log at that time; a log that was rewritten before it lacks that link."""
    places = {record.hash: record.sequence for record in log}
    own = {record.subject: record.sequence for record in reversed(log)}
    found = []
    for body in connection.execute(select(tables.approvals.c.body)).scalars():
        decision = from_body(Approval, body, what="a decision").decision
        if not decision.audit_head:
            continue  # made before decisions named it
        decided = own.get(record_subject("decision", decision.request_id), 0)
        if not 0 < places.get(decision.audit_head, 0) < decided:
            found.append(
                f"{decision.approver} signed the decision on {decision.request_id} over an audit log that ended with "
                f"{decision.audit_head[:12]}: no link before it has that hash, so rows were removed or rewritten"
            )
    return found


def _chain_problems(connection: Connection, log: list[AuditRecord]) -> list[str]:
    found = []
    broken = first_break(log)
    if broken:
        found.append(broken)
    head = connection.execute(select(tables.meta.c.value).where(tables.meta.c.name == HEAD)).scalar()
    if not log or head != f"{log[-1].sequence}:{log[-1].hash}":
        end = f"link {log[-1].sequence}" if log else "nothing"
        found.append(f"the audit log ends with {end}, its recorded end is link {str(head).partition(':')[0]}")
    mode = connection.execute(select(tables.meta.c.value).where(tables.meta.c.name == MODE)).scalar()
    if log and log[0].event == CREATED and log[0].details.get(MODE) != mode:
        found.append(f"the store was created {log[0].details.get(MODE)} and now says {mode}")
    times = connection.execute(select(tables.audit.c.sequence, tables.audit.c.time_s))
    by_sequence = {r.sequence: r.time_s for r in log}
    found.extend(f"the time of link {n} was edited" for n, time_s in times if by_sequence.get(n) != time_s)
    return found
