"""What this process has verified of the audit log, so that a launch reads the new links and not all of them.

The memory of a process cannot be edited through the database: a launch that goes on from it does not believe what old
rows say by now. The whole log is read by a process at first, again whenever it has doubled, always while it is short,
and by `forerun audit verify`; so N launches read about 2N links and not N x N.
"""

import hashlib
import json
import threading
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, func, select

from tools.domain.approval import AuditRecord

from . import tables
from .chain import GENESIS, seal
from .rows import from_body

RECORD_DIGEST = "record_sha256"
ALWAYS_WHOLE = 2000  # links that are read in some 20 ms
_GROWTH = 2


class VerifiedLog:
    """Hold `lock` while the attributes are used.

    Attributes:
        digests: subject -> digest of its record, as the last link that carries one says.
        places: hash of a link -> its sequence.
        first: subject -> sequence of its first link.
        created: event and details of the first link.
        whole: whether the last look read everything.
    """

    def __init__(self, *, always_whole: int = ALWAYS_WHOLE) -> None:
        self.lock = threading.RLock()
        self._always_whole = always_whole
        self._read_whole_at = 0
        self._forget()

    def catch_up(self, connection: Connection, *, whole: bool) -> list[str]:
        """Verify what is new, or everything; every broken link in words."""
        count, newest = connection.execute(select(func.count(), func.max(tables.audit.c.sequence))).one()
        newest = newest or 0
        small = newest <= self._always_whole or newest >= _GROWTH * self._read_whole_at
        if not (whole or small or count != newest or newest < self.size) and self._goes_on(connection):
            self.whole = False
            if not self._read(connection, since=self.size):
                return []
        self._forget()
        problems = self._read(connection, since=0)
        self._read_whole_at = 0 if problems else self.size
        return problems

    @property
    def head(self) -> str:
        """Sequence and hash of the last link, as the store records them."""
        return f"{self.size}:{self._hash}" if self.size else ""

    def _forget(self) -> None:
        self.digests: dict[str, str] = {}
        self.places: dict[str, int] = {}
        self.first: dict[str, int] = {}
        self.created: tuple[str, dict[str, Any]] | None = None
        self.size = 0
        self.whole = True
        self._hash = GENESIS
        self._read_whole_at = 0

    def _goes_on(self, connection: Connection) -> bool:
        """Whether the last link that was verified is still there: a transaction of ours may have been rolled back."""
        body = connection.execute(select(tables.audit.c.body).where(tables.audit.c.sequence == self.size)).scalar()
        return body is not None and self._hash_of(body) == self._hash

    @staticmethod
    def _hash_of(body: str) -> str | None:
        try:
            data = json.loads(body)
        except ValueError:
            return None
        return str(data.get("hash")) if isinstance(data, dict) else None

    def _read(self, connection: Connection, *, since: int) -> list[str]:
        columns = (tables.audit.c.sequence, tables.audit.c.time_s, tables.audit.c.subject, tables.audit.c.body)
        query = select(*columns).where(tables.audit.c.sequence > since).order_by(tables.audit.c.sequence)
        return self._take(connection.execute(query))

    def _take(self, rows: Iterable[Any]) -> list[str]:
        """The first broken link of the chain, and each column that does not say what its link says."""
        broken, edited = "", []
        for sequence, time_s, subject, body in rows:
            data = _sealed(body)
            fits = data is not None
            if data is None:
                record = from_body(AuditRecord, body, what="an audit link")
                data = record.model_dump(mode="json")
                fits = record.hash == seal(record)
            number, event, own = data["sequence"], data["event"], data["hash"]
            if not broken:
                broken = self._break(number, event, data["previous"]) or (
                    "" if fits else f"link {number} ({event} of {data['subject']}) was edited: its hash does not fit"
                )
            if (number, data["time_s"], data["subject"]) != (sequence, time_s, subject):
                what = "time" if data["time_s"] != time_s else "subject" if data["subject"] != subject else "number"
                edited.append(f"the {what} of link {sequence} was edited")
            if self.created is None:
                self.created = (event, data["details"])
            self.first.setdefault(data["subject"], number)
            self.places[own] = number
            if RECORD_DIGEST in data["details"]:
                self.digests[data["subject"]] = data["details"][RECORD_DIGEST]
            self.size, self._hash = number, own
        return [*([broken] if broken else []), *edited]

    def _break(self, number: int, event: str, previous: str) -> str:
        expected = self.size + 1
        if number != expected:
            return f"link {expected} is missing: link {number} ({event}) follows link {self.size}"
        if previous != self._hash:
            return f"link {number} ({event}) does not name the hash of link {self.size}"
        return ""


def _sealed(body: str) -> dict[str, Any] | None:
    """The link, if its text is the canonical one and its hash covers the rest of it; None: to be looked at closely."""
    try:
        data = json.loads(body)
        own = data["hash"]
        rest = body.replace(f'"hash":"{own}",', "", 1)
    except (ValueError, KeyError, TypeError):
        return None
    if len(rest) == len(body) or hashlib.sha256(rest.encode()).hexdigest() != own:
        return None
    complete = data.keys() == AuditRecord.model_fields.keys() and isinstance(data["details"], dict)
    return data if complete else None
