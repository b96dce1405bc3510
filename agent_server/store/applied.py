"""The applied policy and prices as rows: read with every sign of tampering, replaced only under a known key."""

from sqlalchemy import Connection, select

from agent_server.approvals.policy.in_force import document_problems, key_problems
from tools.domain.applied import AppliedDocument, AppliedState, DocumentKind
from tools.domain.approval import AuditRecord
from tools.domain.errors import Refused, StoreUnavailable

from . import tables
from .chain import seal
from .find import find_key
from .integrity import body_digest, record_subject
from .ledger import Entry, Ledger
from .rows import from_body, maybe_body
from .verified import RECORD_DIGEST

_COLUMN = tables.applied.c.kind


def applied_state(connection: Connection, kind: DocumentKind) -> AppliedState:
    """The row, its key, and why it cannot be trusted, if so."""
    body = maybe_body(connection, _COLUMN, kind)
    last = _last_link(connection, record_subject("applied", kind))
    if last is None:
        return AppliedState(None, problems=() if body is None else ("its row has no audit row",))
    if body is None:
        return AppliedState(None, problems=("its row is gone from the database",))
    problems = [] if last.hash == seal(last) else ["its audit row was edited"]
    if last.details.get(RECORD_DIGEST) != body_digest(body):
        problems.append("its row was edited after its last audit row")
    try:
        document = from_body(AppliedDocument, body, what=f"the applied {kind}")
    except StoreUnavailable:
        return AppliedState(None, problems=(*problems, "its row is damaged"))
    return AppliedState(document, find_key(connection, document.statement.key_id), tuple(problems))


def apply_document(connection: Connection, ledger: Ledger, document: AppliedDocument) -> None:
    """Insert or replace the row of this kind.

    Raises:
        Refused: no enrolled key signed it.
    """
    statement = document.statement
    key = find_key(connection, statement.key_id)
    problems = [*document_problems(document, key, kind=statement.kind), *key_problems(key)]
    if problems:
        raise Refused(f"the {statement.kind} cannot be applied: {'; '.join(problems)}", next_step="apply it again")
    entry = Entry(
        statement.approver,
        f"{statement.kind}_applied",
        {
            "version": statement.version,
            "sha256": statement.sha256,
            "path": statement.path,
            "key_id": statement.key_id,
            "shown_digest": statement.shown_digest,
            "text": document.text,
        },
    )
    known = maybe_body(connection, _COLUMN, statement.kind) is not None
    write = ledger.change if known else ledger.add
    write(connection, _COLUMN, document, entry, kind=statement.kind)


def _last_link(connection: Connection, subject: str) -> AuditRecord | None:
    """The newest audit row that carries the record's digest."""
    query = (
        select(tables.audit.c.body).where(tables.audit.c.subject == subject).order_by(tables.audit.c.sequence.desc())
    )
    for body in connection.execute(query).scalars():
        record = from_body(AuditRecord, body, what="an audit link")
        if RECORD_DIGEST in record.details:
            return record
    return None
