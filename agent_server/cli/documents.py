"""Checking and applying policy and price files: what both have in common, and the human who signs them."""

import difflib
import time
from collections.abc import Sequence
from pathlib import Path

from agent_server.approvals.apply import apply, currency_clash
from agent_server.approvals.decide import record_shown
from agent_server.approvals.policy.documents import Document, read_document
from agent_server.approvals.policy.in_force import policy_in_force, prices_in_force
from agent_server.settings import Settings
from tools.domain.applied import DocumentKind
from tools.domain.approval import ApproverKey
from tools.domain.errors import InvalidInput
from tools.domain.ports import Store

from .approver import LEVEL_WORDS, choose_key, unlock
from .opening import opened_store
from .output import say
from .terminal import Terminal

SHORT_DIGEST_CHARACTERS = 8


def check_document(settings: Settings, kind: DocumentKind, path: Path) -> None:
    """Say what the file would change.

    Raises:
        InvalidInput: with every finding, or because its currency is not the other file's.
    """
    document = read_document(kind, path, now_s=time.time())
    with opened_store(settings) as store:
        _require_one_currency(store, document)
        changes = _changes(_text_in_force(store, kind), document)
    say(f"{path}: {kind} {document.version}, nothing wrong found. sha256 {document.sha256}", style="green")
    for warning in document.warnings:
        say(f"warning: {warning}", style="yellow")
    for line in changes:
        say(line)
    say(f"It does not count before `forerun {kind} apply {path}`.")


def apply_document(settings: Settings, kind: DocumentKind, path: Path, *, key_prefix: str) -> None:
    """Show the file, have its digest typed, and sign it.

    Raises:
        InvalidInput: the file is wrong; nothing is changed.
        Refused: no terminal, no key.
        NothingDecided: wrong answers, or the human left.
    """
    document = read_document(kind, path, now_s=time.time())
    with opened_store(settings) as store:
        _require_one_currency(store, document)
        terminal = Terminal(store.mode)
        key = choose_key(store, settings.keys_dir, key_prefix)
        shown = _shown_text(store, document, key)
        record_shown(store, f"applied:{kind}", approver=key.approver, text=shown, channel="terminal")
        terminal.say_how_long(terminal.say(shown))
        for warning in document.warnings:
            terminal.say(f"Warning: {warning}", style="bold yellow")
        prompt = f"Digest of the file, first {SHORT_DIGEST_CHARACTERS} characters: "
        terminal.require(prompt, document.sha256[:SHORT_DIGEST_CHARACTERS])
        private_key = unlock(terminal, settings.keys_dir, key)
        apply(store, document, shown=shown, channel="terminal", key=key, private_key=private_key, clock=time.time)
    terminal.say(
        f"{kind} {document.version} counts from now on, signed by {key.approver}, level {key.level.value}. Requests "
        "that were made before are refused at launch.",
        style="bold green",
    )


def _require_one_currency(store: Store, document: Document) -> None:
    clash = currency_clash(store, document.content, now_s=max(time.time(), store.latest_time_s()))
    if clash:
        raise InvalidInput(
            f"{document.path}: 1 finding, nothing was changed: currency: {clash}",
            allowed="one currency in both",
            next_step="see 'Changing the currency' in docs/policy.md",
        )


def _shown_text(store: Store, document: Document, key: ApproverKey) -> str:
    kind = document.kind
    lines = [
        f"Level: {LEVEL_WORDS[key.level]}",
        f"Approver: {key.approver} ({key.key_id[:8]})",
        f"APPLYING {kind.upper()} {document.version} from {document.path}",
        "",
        "The whole file:",
        *(f"  {line}" for line in document.text.splitlines()),
        "",
        *_changes(_text_in_force(store, kind), document),
        *(f"Warning: {warning}" for warning in document.warnings),
        f"Digest: {document.sha256} (short: {document.sha256[:SHORT_DIGEST_CHARACTERS]})",
    ]
    return "\n".join(lines) + "\n"


def _text_in_force(store: Store, kind: DocumentKind) -> str:
    if kind == "policy":
        return policy_in_force(store).text
    return prices_in_force(store, now_s=max(time.time(), store.latest_time_s())).text


def _changes(before: str, document: Document) -> Sequence[str]:
    """The difference from what counts now, line by line."""
    if before == document.text:
        return ("Changed against what counts now: nothing",)
    pair = (before.splitlines(), document.text.splitlines())
    lines = list(difflib.unified_diff(*pair, "counts now", str(document.path), lineterm="", n=1))
    return ("Changed against what counts now:", *lines)
