"""One record with its audit row, inside a transaction that the caller holds."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from sqlalchemy import Column, Connection, func, insert, select, update

from tools.domain.approval import AuditRecord
from tools.domain.errors import StoreUnavailable

from . import tables
from .chain import link
from .integrity import HEAD, body_digest, kind_of, record_subject
from .rows import from_body, to_body
from .verified import RECORD_DIGEST


@dataclass(frozen=True)
class Entry:
    """What the audit log says of a change."""

    actor: str
    event: str
    facts: dict[str, Any] = field(default_factory=dict)


class Ledger:
    """Writes records so that each change leaves a link in the audit chain with the record's digest.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def add(
        self, connection: Connection, column: Column[str], record: BaseModel, entry: Entry, **columns: str | None
    ) -> None:
        """Insert a record whose id column is `column`; `columns` holds the id and the other columns."""
        body = to_body(record)
        connection.execute(insert(column.table).values(body=body, **columns))
        self._record(connection, column, str(columns[column.name]), body, entry)

    def change(
        self, connection: Connection, column: Column[str], record: BaseModel, entry: Entry, **columns: str | None
    ) -> None:
        """Replace the record with this id."""
        body = to_body(record)
        key = str(columns[column.name])
        connection.execute(update(column.table).where(column == key).values(body=body, **columns))
        self._record(connection, column, key, body, entry)

    def append(self, connection: Connection, entry: Entry, *, subject: str) -> AuditRecord:
        """Add a link to the chain."""
        record = link(
            self._head(connection),
            time_s=self._clock(),
            actor=entry.actor,
            event=entry.event,
            subject=subject,
            details=entry.facts,
        )
        connection.execute(
            insert(tables.audit).values(
                sequence=record.sequence, time_s=record.time_s, subject=subject, body=to_body(record)
            )
        )
        head = f"{record.sequence}:{record.hash}"
        connection.execute(update(tables.meta).where(tables.meta.c.name == HEAD).values(value=head))
        return record

    def head_hash(self, connection: Connection) -> str:
        """The hash of the last link."""
        head = self._head(connection)
        return "" if head is None else head.hash

    def lock(self, connection: Connection) -> None:
        """Wait until no other transaction writes: what is read after this stays true until the commit."""
        self._head(connection)

    def latest_time_s(self, connection: Connection) -> float:
        """The latest time in the log; it never holds nothing, since creating the store is its first link."""
        latest: float | None = connection.execute(select(func.max(tables.audit.c.time_s))).scalar()
        if latest is None:
            raise _broken("the audit log is empty")
        return latest

    def _record(self, connection: Connection, column: Column[str], key: str, body: str, entry: Entry) -> None:
        facts = entry.facts | {RECORD_DIGEST: body_digest(body)}
        subject = record_subject(kind_of(column), key)
        self.append(connection, Entry(entry.actor, entry.event, facts), subject=subject)

    def _head(self, connection: Connection) -> AuditRecord | None:
        # FOR UPDATE serialises writers where a database has no single write lock.
        head = connection.execute(
            select(tables.meta.c.value).where(tables.meta.c.name == HEAD).with_for_update()
        ).scalar()
        if head is None:
            raise _broken("the end of the audit log is not recorded")
        sequence, _, digest = head.partition(":")
        if sequence == "0":
            return None
        query = select(tables.audit.c.body).where(tables.audit.c.sequence == int(sequence))
        body = connection.execute(query).scalar()
        record = None if body is None else from_body(AuditRecord, body, what="the last audit link")
        if record is None or record.hash != digest:
            raise _broken(f"the last link of the audit log ({sequence}) was removed or edited")
        return record


def _broken(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{what}. Nothing was changed, approvals stay closed", next_step="`forerun audit verify` names the damage"
    )
