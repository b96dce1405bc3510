"""AuditRecords: the audit log of a store, and what every other part of it rests on."""

from collections.abc import Callable, Sequence

from sqlalchemy import select

from tools.domain.approval import AuditRecord

from . import integrity, tables
from .engine import Database
from .ledger import Entry, Ledger
from .reservations import Memory
from .rows import from_body


class AuditRecords:
    """The part of SqlStore that keeps the audit log.

    Args:
        clock: seconds since the epoch.
    """

    def __init__(self, database: Database, *, clock: Callable[[], float]) -> None:
        self._database = database
        self._clock = clock
        self._ledger = Ledger(clock)
        self._memory = Memory.fresh()

    def audit_log(self) -> Sequence[AuditRecord]:
        with self._database.read() as connection:
            return integrity.load_log(connection)

    def audit_head(self) -> str:
        with self._database.read() as connection:
            return self._ledger.head_hash(connection)

    def audit_of(self, subject: str) -> Sequence[AuditRecord]:
        query = select(tables.audit.c.body).where(tables.audit.c.subject == subject).order_by(tables.audit.c.sequence)
        with self._database.read() as connection:
            return [from_body(AuditRecord, body, what="an audit link") for body in connection.execute(query).scalars()]

    def append_audit(self, *, actor: str, event: str, subject: str, details: dict[str, object]) -> AuditRecord:
        with self._database.write() as connection:
            return self._ledger.append(connection, Entry(actor, event, dict(details)), subject=subject)

    def latest_time_s(self) -> float:
        with self._database.read() as connection:
            return self._ledger.latest_time_s(connection)

    def problems(self) -> Sequence[str]:
        """Where the database contradicts its audit log, in words; empty if nowhere."""
        with self._database.read() as connection:
            return integrity.problems(connection)
