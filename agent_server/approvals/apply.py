"""Applying a policy or prices: signed and stored here alone. Only human doors (cli, web) import this module."""

import hashlib
import secrets
from collections.abc import Callable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tools.domain.applied import AppliedDocument, AppliedStatement
from tools.domain.approval import ApproverKey
from tools.domain.errors import InvalidInput
from tools.domain.ports import Store
from tools.evidence.prices import PriceList
from tools.signatures import sign

from .policy import require_level_for_mode
from .policy.documents import Document
from .policy.in_force import APPLIED_TYPE, policy_in_force, prices_in_force, statement_payload
from .policy.model import Policy


def apply(
    store: Store,
    document: Document,
    *,
    shown: str,
    channel: str,
    key: ApproverKey,
    private_key: Ed25519PrivateKey,
    clock: Callable[[], float],
) -> AppliedDocument:
    """Sign the text that was shown, and let it count from now on.

    Raises:
        Refused: a key that does not count here.
        InvalidInput: amounts in another currency than the other document's.
    """
    require_level_for_mode(key.level, mode=store.mode)
    now_s = max(clock(), store.latest_time_s())
    clash = currency_clash(store, document.content, now_s=now_s)
    if clash:
        raise InvalidInput(clash, next_step="see 'Changing the currency' in docs/policy.md")
    statement = AppliedStatement(
        kind=document.kind,
        version=document.version,
        sha256=document.sha256,
        path=str(document.path),
        approver=key.approver,
        key_id=key.key_id,
        level=key.level,
        channel=channel,
        shown_digest=hashlib.sha256(shown.encode()).hexdigest(),
        applied_at_s=now_s,
        nonce=secrets.token_hex(16),
    )
    envelope = sign(statement_payload(statement), APPLIED_TYPE, private_key)
    applied = AppliedDocument(statement=statement, text=document.text, envelope=envelope)
    store.apply_document(applied)
    return applied


def currency_clash(store: Store, content: Policy | PriceList, *, now_s: float) -> str:
    """Why these amounts cannot be compared with the other document's; empty if they can."""
    if isinstance(content, Policy):
        prices = prices_in_force(store, now_s=now_s).prices
        if content.currency is None or prices is None or prices.currency == content.currency:
            return ""
        return f"the policy counts in {content.currency}, the applied prices are in {prices.currency}"
    policy = policy_in_force(store).policy
    if policy.currency in (None, content.currency):
        return ""
    return f"the prices are in {content.currency}, the applied policy counts in {policy.currency}"
