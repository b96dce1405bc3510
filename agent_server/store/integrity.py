"""Whether the database still says what the audit log says: the chain, its end, and the digest of every record."""

import hashlib
from collections.abc import Collection

from sqlalchemy import Column, Connection, select

from tools.domain.approval import Approval, AuditRecord

from . import tables
from .rows import from_body
from .verified import VerifiedLog

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


def problems(
    connection: Connection, *, only: Collection[str] | None = None, verified: VerifiedLog | None = None
) -> list[str]:
    """Everything that does not fit, in words; with `only`, records of other ids are passed over.

    Args:
        verified: what this process has verified before, and goes on from; None: everything is read.
    """
    log = VerifiedLog() if verified is None else verified
    with log.lock:
        found = log.catch_up(connection, whole=only is None)
        found += _end_problems(connection, log) + _anchor_problems(connection, log, only)
        seen = set()
        for kind, column in _RECORDS:
            query = select(column, column.table.c.body)
            for key, body in connection.execute(query if only is None else query.where(column.in_(only))):
                subject = record_subject(kind, key)
                seen.add(subject)
                found += record_problems(log, subject, body_digest(body), what=f"the {kind} {key}")
        if only is None:
            found += [gone(subject) for subject in log.digests.keys() - seen]
    return found


def record_problems(log: VerifiedLog, subject: str, digest: str, *, what: str) -> list[str]:
    """Whether a record with this digest is what the audit log says of it."""
    if subject not in log.digests:
        return [f"{what} has no audit row: it was not written by forerun, or the row was removed"]
    return [] if log.digests[subject] == digest else [f"{what} was edited after its last audit row"]


def gone(subject: str) -> str:
    """The words for a record that only the audit log knows."""
    return f"the record {subject} is in the audit log and gone from the database"


def _anchor_problems(connection: Connection, log: VerifiedLog, only: Collection[str] | None) -> list[str]:
    """Each approver signed over the end of the log at that time; a log that was rewritten before it lacks that link.

    Where the process goes on from what it has verified, the decisions before were looked at then.
    """
    query = select(tables.approvals.c.body)
    if not log.whole and only is not None:
        query = query.where(tables.approvals.c.request_id.in_(only))
    found = []
    for body in connection.execute(query).scalars():
        decision = from_body(Approval, body, what="a decision").decision
        if not decision.audit_head:
            continue  # made before decisions named it
        decided = log.first.get(record_subject("decision", decision.request_id), 0)
        if not 0 < log.places.get(decision.audit_head, 0) < decided:
            found.append(
                f"{decision.approver} signed the decision on {decision.request_id} over an audit log that ended with "
                f"{decision.audit_head[:12]}: no link before it has that hash, so rows were removed or rewritten"
            )
    return found


def _end_problems(connection: Connection, log: VerifiedLog) -> list[str]:
    found = []
    head = connection.execute(select(tables.meta.c.value).where(tables.meta.c.name == HEAD)).scalar()
    if not log.size or head != log.head:
        end = f"link {log.size}" if log.size else "nothing"
        found.append(f"the audit log ends with {end}, its recorded end is link {str(head).partition(':')[0]}")
    mode = connection.execute(select(tables.meta.c.value).where(tables.meta.c.name == MODE)).scalar()
    if log.created is not None and log.created[0] == CREATED and log.created[1].get(MODE) != mode:
        found.append(f"the store was created {log.created[1].get(MODE)} and now says {mode}")
    return found
