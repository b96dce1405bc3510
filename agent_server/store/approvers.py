"""What approvers bring: their keys, the policy and prices that they signed, and the budgets that follow."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from agent_server.approvals.policy import require_level_for_mode
from tools.domain.applied import AppliedDocument, AppliedState, DocumentKind
from tools.domain.approval import ApproverKey
from tools.domain.budget import Reservation
from tools.domain.errors import Conflict

from . import reservations, tables
from .applied import applied_state, apply_document
from .audited import AuditRecords
from .find import store_mode
from .ledger import Entry
from .rows import from_body, maybe_body, one_body


class ApproverRecords(AuditRecords):
    """The part of SqlStore that deals with approvers."""

    def _now_s(self, connection: Connection) -> float:
        """Never earlier than the newest audit row: a clock set back revives nothing."""
        return max(self._clock(), self._ledger.latest_time_s(connection))

    # Policy, prices and budgets

    def reservations(self) -> Sequence[Reservation]:
        with self._database.read() as connection:
            return self._memory.reservations.all(connection)

    def reservation_of(self, run_id: str) -> Reservation | None:
        with self._database.read() as connection:
            return reservations.reservation_of_run(connection, run_id)

    def applied(self, kind: DocumentKind) -> AppliedState:
        with self._database.read() as connection:
            return applied_state(connection, kind)

    def apply_document(self, document: AppliedDocument) -> None:
        with self._database.write() as connection:
            require_level_for_mode(document.statement.level, mode=store_mode(connection))
            apply_document(connection, self._ledger, document)

    # Keys

    def keys(self) -> Sequence[ApproverKey]:
        with self._database.read() as connection:
            bodies = connection.execute(select(tables.keys.c.body).order_by(tables.keys.c.sequence)).scalars()
            return [from_body(ApproverKey, body, what="a key") for body in bodies]

    def add_key(self, key: ApproverKey) -> None:
        with self._database.write() as connection:
            require_level_for_mode(key.level, mode=store_mode(connection))
            if maybe_body(connection, tables.keys.c.key_id, key.key_id) is not None:
                raise Conflict(f"key {key.key_id[:8]} is known already", next_step="enroll a new one")
            entry = Entry(key.approver, "key_enrolled", {"approver": key.approver, "level": key.level.value})
            self._ledger.add(connection, tables.keys.c.key_id, key, entry, key_id=key.key_id)

    def remove_key(self, key_id: str, *, actor: str) -> ApproverKey:
        with self._database.write() as connection:
            hint = "`forerun keys list` shows the keys"
            body = one_body(connection, tables.keys.c.key_id, key_id, what="key", hint=hint)
            key = from_body(ApproverKey, body, what=f"key {key_id[:8]}")
            if key.removed_at_s is not None:
                return key
            removed = key.model_copy(update={"removed_at_s": self._clock()})
            entry = Entry(actor, "key_removed", {"approver": key.approver})
            self._ledger.change(connection, tables.keys.c.key_id, removed, entry, key_id=key_id)
            return removed
