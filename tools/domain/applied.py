"""Policy and price files that an approver signed: they count as signed, never as they lie about."""

from dataclasses import dataclass
from typing import Any, Literal

from runtime.config.plan import Frozen

from .approval import ApproverKey, AssuranceLevel

DocumentKind = Literal["policy", "prices"]
KINDS: tuple[DocumentKind, ...] = ("policy", "prices")


class AppliedStatement(Frozen):
    """What is signed: which text, from which file, by whom."""

    kind: DocumentKind
    version: str
    sha256: str
    path: str
    approver: str
    key_id: str
    level: AssuranceLevel
    channel: str
    shown_digest: str
    applied_at_s: float
    nonce: str


class AppliedDocument(Frozen):
    """The statement in its DSSE envelope, with the text that it names by digest."""

    statement: AppliedStatement
    text: str
    envelope: dict[str, Any]


@dataclass(frozen=True)
class AppliedState:
    """What the store holds of one kind, and why it cannot be trusted, if so. Neither: nothing was ever applied."""

    document: AppliedDocument | None
    key: ApproverKey | None = None
    problems: tuple[str, ...] = ()
