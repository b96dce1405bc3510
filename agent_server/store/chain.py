"""The hash chain of the audit log: how a link is made, and how a broken one is found."""

from collections.abc import Sequence
from typing import Any

from runtime.config.digest import digest_json
from tools.domain.approval import AuditRecord

GENESIS = "0" * 64


def link(
    previous: AuditRecord | None, *, time_s: float, actor: str, event: str, subject: str, details: dict[str, Any]
) -> AuditRecord:
    """The record that follows `previous`; its hash covers every other field."""
    unsealed = AuditRecord(
        sequence=1 if previous is None else previous.sequence + 1,
        time_s=time_s,
        actor=actor,
        event=event,
        subject=subject,
        details=details,
        previous=GENESIS if previous is None else previous.hash,
        hash="",
    )
    return unsealed.model_copy(update={"hash": seal(unsealed)})


def seal(record: AuditRecord) -> str:
    """SHA-256 over the RFC 8785 form of all fields but the hash."""
    return digest_json(record.model_dump(mode="json", exclude={"hash"}))


def first_break(records: Sequence[AuditRecord]) -> str | None:
    """The first broken link in words; None if every record follows from the one before it."""
    previous_hash, expected = GENESIS, 1
    for record in records:
        if record.sequence != expected:
            return f"link {expected} is missing: link {record.sequence} ({record.event}) follows link {expected - 1}"
        if record.previous != previous_hash:
            return f"link {record.sequence} ({record.event}) does not name the hash of link {expected - 1}"
        if record.hash != seal(record):
            return f"link {record.sequence} ({record.event} of {record.subject}) was edited: its hash does not fit"
        previous_hash, expected = record.hash, expected + 1
    return None
