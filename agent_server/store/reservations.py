"""Reservations in the budgets: made with the approval, taken by the run, settled with its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from agent_server.approvals.policy.budgets import budget_refusals, has_budgets
from agent_server.approvals.policy.check import Rules, settled, share_id, shares
from tools.domain.approval import ApprovalRequest
from tools.domain.budget import Reservation
from tools.domain.errors import Refused
from tools.domain.run_state import RunRecord

from . import integrity, tables
from .ledger import Entry, Ledger
from .rows import from_body, maybe_body
from .verified import VerifiedLog

_COLUMN = tables.reservations.c.reservation_id
_SERVER = "server"


@dataclass(frozen=True)
class Memory:
    """What a store keeps between transactions; none of it is believed against the database's verified log."""

    log: VerifiedLog
    reservations: "KnownReservations"

    @classmethod
    def fresh(cls) -> "Memory":
        return cls(VerifiedLog(), KnownReservations())


class KnownReservations:
    """Every reservation as the database has it now; a row whose text is the same as before is not parsed again."""

    def __init__(self) -> None:
        self._parsed: dict[str, tuple[str, Reservation, str]] = {}

    def all(self, connection: Connection) -> list[Reservation]:
        """In no order that matters."""
        return [reservation for reservation, _ in self.with_digests(connection)]

    def with_digests(self, connection: Connection) -> list[tuple[Reservation, str]]:
        """Each with the digest of its row."""
        found = {}
        for key, body in connection.execute(select(_COLUMN, tables.reservations.c.body)):
            known = self._parsed.get(key)
            if known is None or known[0] != body:
                known = (body, from_body(Reservation, body, what="a reservation"), integrity.body_digest(body))
            found[key] = known
        self._parsed = found
        return [(reservation, digest) for _, reservation, digest in found.values()]


def find_reservation(connection: Connection, reservation_id: str) -> Reservation | None:
    body = maybe_body(connection, _COLUMN, reservation_id)
    return None if body is None else from_body(Reservation, body, what=f"the reservation {reservation_id}")


def reservation_of_run(connection: Connection, run_id: str) -> Reservation | None:
    body = maybe_body(connection, tables.reservations.c.run_id, run_id)
    return None if body is None else from_body(Reservation, body, what=f"the reservation of {run_id}")


def reserve(
    connection: Connection,
    ledger: Ledger,
    new: Reservation,
    *,
    rules: Rules,
    actor: str,
    now_s: float,
    memory: Memory,
    num_runs: int = 1,
) -> None:
    """Insert the reservation, of a sweep one for each run, if every budget holds all of it.

    The caller has the write lock, so no other can come between.

    Raises:
        Refused: a budget does not hold it, or the records of the budgets were edited.
    """
    ledger.lock(connection)
    reasons = []
    if has_budgets(rules.policy):
        known = memory.reservations.with_digests(connection)
        reasons = budget_refusals(rules.policy, [held for held, _ in known], new, now_s=now_s)
        reasons = reasons or _tampering(connection, known, memory.log)
    if reasons:
        raise Refused(
            f"plan {new.plan_id} may not be approved: {'; '.join(reasons)}",
            next_step="wait for runs to end, make the plan smaller, or apply a policy with a larger budget",
        )
    for share in shares(new, num_runs):
        ledger.add(
            connection,
            _COLUMN,
            share,
            Entry(actor, "reserved", _facts(share)),
            reservation_id=share.reservation_id,
            run_id=share.run_id,
        )


def take(connection: Connection, ledger: Ledger, held: Reservation, run: RunRecord, *, actor: str) -> None:
    """From now on the reservation is this run's, and no longer expires."""
    _change(connection, ledger, held.model_copy(update={"run_id": run.run_id}), actor=actor, event="reservation_taken")


def extend(connection: Connection, ledger: Ledger, request: ApprovalRequest, *, actor: str) -> None:
    """The first run of a sweep starts: what is reserved for the others is kept for as long as they may start."""
    for member in range(1, request.plan.num_runs + 1 if request.plan else 1):
        held = find_reservation(connection, share_id(request.request_id, member))
        if held is not None and held.run_id is None and request.launch_until_s is not None:
            longer = held.model_copy(update={"expires_at_s": request.launch_until_s})
            _change(connection, ledger, longer, actor=actor, event="reservation_kept")


def settle(connection: Connection, ledger: Ledger, run: RunRecord, *, elapsed_s: float | None, now_s: float) -> None:
    """Replace what was reserved for an ended run by what it used; doing it again changes nothing."""
    held = reservation_of_run(connection, run.run_id) if run.ended else None
    if held is None:
        return
    if run.result is not None:
        done = settled(held, elapsed_s=run.result.elapsed_s, basis="measured by the supervisor", now_s=now_s)
    elif held.settled and elapsed_s is None:
        return
    else:
        basis = "nobody saw the run end" if elapsed_s is None else run.reason
        done = settled(held, elapsed_s=elapsed_s, basis=basis, now_s=now_s)
    if done.model_copy(update={"settled_at_s": held.settled_at_s}) != held:
        _change(connection, ledger, done, actor=_SERVER, event="settled")


def _change(connection: Connection, ledger: Ledger, new: Reservation, *, actor: str, event: str) -> None:
    entry = Entry(actor, event, _facts(new))
    ledger.change(connection, _COLUMN, new, entry, reservation_id=new.reservation_id, run_id=new.run_id)


def _tampering(connection: Connection, known: Sequence[tuple[Reservation, str]], log: VerifiedLog) -> list[str]:
    """Whether a reservation was edited or taken away since it was written."""
    with log.lock:
        problems = integrity.problems(connection, only=(), verified=log)
        subjects = {integrity.record_subject("reservation", held.reservation_id): digest for held, digest in known}
        for subject, digest in subjects.items():
            problems += integrity.record_problems(log, subject, digest, what=f"the {subject.replace(':', ' ')}")
        prefix = integrity.record_subject("reservation", "")
        lost = [subject for subject in log.digests if subject.startswith(prefix) and subject not in subjects]
    return [*problems, *map(integrity.gone, sorted(lost))]


def _facts(reservation: Reservation) -> dict[str, Any]:
    names = ("run_id", "cost", "currency", "device_hours", "actual_cost", "actual_device_hours", "basis")
    return {name: value for name in names if (value := getattr(reservation, name)) not in (None, "")}
