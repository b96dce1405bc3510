"""Which policy and which prices count now: the signed ones, unless something does not fit; then why not, in words."""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Protocol

import rfc8785

from runtime.errors import ConfigurationError, ForerunError
from tools.domain.applied import AppliedDocument, AppliedState, AppliedStatement, DocumentKind
from tools.domain.approval import ApproverKey
from tools.domain.errors import InvalidInput
from tools.evidence.prices import PriceList
from tools.signatures import key_id, verify

from .documents import parse_policy, parse_prices, read_file
from .levels import SHIPPED
from .model import Policy
from .reading import read_yaml

APPLIED_TYPE = "application/vnd.forerun.applied+json"
SHIPPED_SHA256 = "ba408d16ec20317016f9df44ce4f00ddf4b1e767b7050ee344b88dd9b44ffb84"


class Holder(Protocol):
    """The part of the store that is needed here."""

    def applied(self, kind: DocumentKind) -> AppliedState: ...


@dataclass(frozen=True)
class PolicyInForce:
    """The policy that counts.

    Attributes:
        version: what stands in requests.
        source: where it comes from, in words.
        notes: what was applied and does not count, and why; it is said wherever the policy matters.
        floor: the signed policy whose file was edited. Its rows count too where they are stricter, so that editing
            the file loosens nothing.
    """

    policy: Policy
    version: str
    source: str
    text: str
    notes: tuple[str, ...] = ()
    floor: Policy | None = None


@dataclass(frozen=True)
class PricesInForce:
    """The price list that counts; None: every cost is unknown, and `notes` says why if one was applied."""

    prices: PriceList | None = None
    version: str = ""
    source: str = "no price list was applied"
    text: str = ""
    notes: tuple[str, ...] = ()


def policy_in_force(store: Holder) -> PolicyInForce:
    """The applied policy, or the shipped one."""
    return judge_policy(store.applied("policy"))


def prices_in_force(store: Holder, *, now_s: float) -> PricesInForce:
    """The applied prices, or none."""
    return judge_prices(store.applied("prices"), now_s=now_s)


def judge_policy(state: AppliedState) -> PolicyInForce:
    """policy_in_force of what the store holds."""
    shipped = shipped_policy()
    document, problems = _trusted(state, "policy")
    if document is None:
        notes = tuple(f"the applied policy does not count, the shipped default does: {p}" for p in problems)
        return PolicyInForce(shipped, SHIPPED, "shipped with forerun", shipped_text(), notes)
    read = parse_policy(document.text)
    if read.model is None:
        why = "; ".join(finding.words() for finding in read.findings)
        note = f"the applied policy does not count, the shipped default does: this forerun cannot read it: {why}"
        return PolicyInForce(shipped, SHIPPED, "shipped with forerun", shipped_text(), (note,))
    edited = file_change(document)
    if edited.edited:
        note = (
            f"the applied policy {document.statement.version} does not count, the shipped default does: "
            f"{edited.words}; where the signed one is stricter, that stays"
        )
        return PolicyInForce(shipped, SHIPPED, "shipped with forerun", shipped_text(), (note,), read.model)
    notes = (edited.words,) if edited.words else ()
    return PolicyInForce(read.model, document.statement.version, _signed_by(document), document.text, notes)


def judge_prices(state: AppliedState, *, now_s: float) -> PricesInForce:
    """prices_in_force of what the store holds."""
    document, problems = _trusted(state, "prices")
    if document is None:
        notes = tuple(f"the applied prices do not count, so every cost is unknown: {p}" for p in problems)
        return PricesInForce(notes=notes, source="the applied ones do not count" if notes else PricesInForce.source)
    read = parse_prices(document.text, now_s=now_s)
    edited = file_change(document)
    why = "; ".join(finding.words() for finding in read.findings) or (edited.words if edited.edited else "")
    if read.model is None or edited.edited:
        note = f"the applied prices {document.statement.version} do not count, so every cost is unknown: {why}"
        return PricesInForce(notes=(note,), source="the applied ones do not count")
    notes = (edited.words,) if edited.words else ()
    return PricesInForce(read.model, document.statement.version, _signed_by(document), document.text, notes)


@dataclass(frozen=True)
class FileChange:
    """How the file that was applied looks now. A file that is gone contradicts nothing: the signed text counts."""

    edited: bool
    words: str = ""


def file_change(document: AppliedDocument) -> FileChange:
    """Whether the file still says what was signed."""
    path = Path(document.statement.path)
    try:
        if not path.exists():
            return FileChange(False, f"the file {path} is gone; the text that was signed counts")
    except OSError as error:  # a directory on the way that cannot be entered
        return FileChange(True, f"its file cannot be looked at: {error.strerror}")
    try:
        same = hashlib.sha256(read_file(path)).hexdigest() == document.statement.sha256
    except InvalidInput as error:
        return FileChange(True, f"its file cannot be compared: {error.what}")
    command = f"forerun {document.statement.kind} apply {path}"
    return FileChange(False) if same else FileChange(True, f"{path} was edited since; `{command}` makes the edit count")


def statement_payload(statement: AppliedStatement) -> bytes:
    """The bytes that are signed."""
    return rfc8785.dumps(statement.model_dump(mode="json"))


@lru_cache(maxsize=1)
def shipped_policy() -> Policy:
    """The default of this package.

    Raises:
        ConfigurationError: the packaged file is not the one that was released.
    """
    text = shipped_text()
    read = read_yaml(text, Policy)
    if hashlib.sha256(text.encode()).hexdigest() != SHIPPED_SHA256 or read.model is None:
        raise ConfigurationError(
            "the policy that is shipped inside the package was edited",
            allowed="the released one",
            next_step="install forerun again; a policy of your own is applied with `forerun policy apply FILE`",
        )
    return read.model


def shipped_text() -> str:
    """The packaged file."""
    return files("agent_server.approvals.policy").joinpath("default.yaml").read_text(encoding="utf-8")


def _trusted(state: AppliedState, kind: DocumentKind) -> tuple[AppliedDocument | None, tuple[str, ...]]:
    """The document if its row, signature and key are in order."""
    document = state.document
    problems = list(state.problems)
    if document is not None:
        problems += document_problems(document, state.key, kind=kind)
        problems += key_problems(state.key)
    return (None, tuple(problems)) if problems else (document, ())


def document_problems(document: AppliedDocument, key: ApproverKey | None, *, kind: DocumentKind) -> list[str]:
    """Why this is not a document that the key's owner signed for this use; removal of the key is no such reason."""
    statement = document.statement
    if key is None or key.key_id != statement.key_id:
        return [f"the key {statement.key_id[:8]} that signed it is not enrolled"]
    problems = []
    if statement.kind != kind or hashlib.sha256(document.text.encode()).hexdigest() != statement.sha256:
        problems.append("its row was edited: the text is not the one that was signed")
    if key.approver != statement.approver or key.level is not statement.level:
        problems.append("its row was edited: the key is another approver's or has another level")
    try:
        if key_id(key.public_pem) != key.key_id:
            problems.append(f"the public key of {key.approver} was exchanged")
        elif verify(document.envelope, APPLIED_TYPE, key.public_pem) != statement_payload(statement):
            problems.append("its row was edited: the signature is of another statement")
    except (ForerunError, ValueError) as error:
        problems.append(f"its signature is not valid: {error}")
    return problems


def key_problems(key: ApproverKey | None) -> list[str]:
    """Why this key's documents count no longer."""
    if key is None or key.removed_at_s is None:
        return []
    return [f"the key of {key.approver} ({key.key_id[:8]}) that signed it was removed: apply it again"]


def _signed_by(document: AppliedDocument) -> str:
    statement = document.statement
    return f"{statement.path}, signed by {statement.approver} ({statement.key_id[:8]}, {statement.level.value})"
