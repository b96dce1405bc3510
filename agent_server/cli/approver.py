"""The human who signs in a terminal: which of their keys, and the passphrase that opens it."""

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent_server.approvals.keys import load_private_key, usable_keys
from tools.domain.approval import ApproverKey, AssuranceLevel
from tools.domain.errors import InvalidInput, NotFound, Refused
from tools.domain.ports import Store

from .terminal import Terminal

LEVEL_WORDS = {
    AssuranceLevel.SIMULATED: "SIMULATED: a rehearsal in a state directory of its own; it counts nowhere else",
    AssuranceLevel.A2: "A2: a terminal and a passphrase on this account; not tamper-proof against this account",
    AssuranceLevel.A3: "A3: a passkey, or an account of its own",
    AssuranceLevel.A4: "A4: an authenticated human who did not ask for it",
}


def choose_key(store: Store, keys_dir: Path, prefix: str) -> ApproverKey:
    """The one enrolled key whose private half lies here and whose id begins with `prefix`.

    Raises:
        InvalidInput, NotFound, Refused: several, none by that prefix, none at all.
    """
    keys = [key for key in usable_keys(store, keys_dir) if key.key_id.startswith(prefix)]
    if len(keys) == 1:
        return keys[0]
    if keys:
        names = ", ".join(f"{key.key_id[:8]} ({key.approver})" for key in keys)
        raise InvalidInput(f"{len(keys)} keys fit", allowed=names, next_step="name one with --key")
    if prefix:
        raise NotFound(f"no usable key begins with {prefix!r}", next_step="`forerun keys list` shows the keys")
    raise Refused(
        f"no enrolled key lies in {keys_dir}, so nobody can approve here", next_step="`forerun keys enroll --name NAME`"
    )


def unlock(terminal: Terminal, keys_dir: Path, key: ApproverKey) -> Ed25519PrivateKey:
    """Ask for the passphrase until it opens the key; wrong ones count against the terminal's budget."""
    while True:
        try:
            return load_private_key(keys_dir, key, passphrase=terminal.ask_secret("Passphrase: "))
        except InvalidInput as error:
            terminal.wrong_answer(error.what)
