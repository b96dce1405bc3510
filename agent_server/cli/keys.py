"""`forerun keys`: enrolling, listing and removing the keys of those who may approve."""

import time
from collections.abc import Sequence

from agent_server.approvals.keys import MIN_PASSPHRASE_CHARACTERS, enroll, private_path
from agent_server.settings import Settings
from tools.domain.approval import ApproverKey
from tools.domain.errors import InvalidInput, NotFound

from .opening import opened_store, user_name
from .output import ago, table
from .terminal import Terminal


def enroll_key(settings: Settings, name: str) -> None:
    """Ask for a passphrase twice, make the pair, and say loudly what that means.

    Raises:
        Refused: no terminal of a human's.
    """
    with opened_store(settings) as store:
        terminal = Terminal(store.mode)
        known = store.keys()
        active = [key for key in known if key.removed_at_s is None]
        if active:
            others = ", ".join(f"{k.approver} ({k.key_id[:8]})" for k in active)
            terminal.say(
                f"*** ANOTHER KEY *** This store knows already: {others}. From now on {name!r} can approve too; "
                "approval texts, reports and the audit log say so.",
                style="bold red",
            )
        else:
            terminal.say(
                f"*** THE FIRST KEY of {settings.state_dir} ***\nUntil now nobody could approve anything here. From "
                f"now on {name!r} can. If you did not mean to do this, press Ctrl-C.",
                style="bold red",
            )
        key = enroll(store, settings.keys_dir, approver=name, passphrase=_new_passphrase(terminal), now_s=time.time())
    path = private_path(settings.keys_dir, key.key_id)
    terminal.say(
        f"Enrolled {key.approver}, level {key.level.value}, key {key.key_id[:8]}. The private key lies encrypted in "
        f"{path}; the audit log shows the enrolment.",
        style="bold green",
    )


def list_keys(settings: Settings) -> None:
    """Every key, and whether its private half is on this machine."""
    now_s = time.time()
    with opened_store(settings) as store:
        keys = store.keys()
    rows = [
        (
            key.key_id[:8],
            key.approver,
            key.level.value,
            f"{ago(now_s - key.enrolled_at_s)} ago",
            "active" if key.removed_at_s is None else f"removed {ago(now_s - key.removed_at_s)} ago",
            "here" if private_path(settings.keys_dir, key.key_id).is_file() else "elsewhere",
        )
        for key in keys
    ]
    columns = ("key", "approver", "level", "enrolled", "state", "private half")
    table("Approvers", columns, rows, empty="No key is enrolled: nobody can approve. `forerun keys enroll --name NAME`")


def remove_key(settings: Settings, prefix: str) -> None:
    """Have the key's short id typed, and mark it as removed.

    Raises:
        Refused: no terminal of a human's.
        NotFound, InvalidInput: no active key, or several, begin with `prefix`.
    """
    with opened_store(settings) as store:
        terminal = Terminal(store.mode)
        key = _active_key(store.keys(), prefix)
        terminal.say(
            f"Removing the key of {key.approver}, {key.key_id[:8]}: what it approved launches no more, and a policy or "
            "prices that it signed count no more until they are applied again."
        )
        terminal.require("Type the key's 8 characters to remove it: ", key.key_id[:8])
        store.remove_key(key.key_id, actor=user_name())
    terminal.say(f"Removed. The encrypted file {private_path(settings.keys_dir, key.key_id)} may be deleted.")


def _active_key(keys: Sequence[ApproverKey], prefix: str) -> ApproverKey:
    found = [key for key in keys if key.removed_at_s is None and key.key_id.startswith(prefix)]
    if not found:
        raise NotFound(f"no active key begins with {prefix!r}", next_step="`forerun keys list` shows the keys")
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} keys begin with {prefix!r}", allowed=", ".join(k.key_id[:8] for k in found))
    return found[0]


def _new_passphrase(terminal: Terminal) -> str:
    while True:
        first = terminal.ask_secret("Passphrase: ")
        if len(first) < MIN_PASSPHRASE_CHARACTERS:
            terminal.wrong_answer(f"a passphrase has at least {MIN_PASSPHRASE_CHARACTERS} characters")
        elif terminal.ask_secret("Passphrase again: ") != first:
            terminal.wrong_answer("the two differ")
        else:
            return first
