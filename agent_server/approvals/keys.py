"""Keys: an approver's private key lies encrypted in their own directory, the store holds the public half alone."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from runtime.files import fsync_directory
from tools.domain.approval import ApproverKey, AssuranceLevel
from tools.domain.errors import InvalidInput, NotFound, Refused
from tools.domain.ports import Store
from tools.signatures import key_id, public_pem

MIN_PASSPHRASE_CHARACTERS = 8
MAX_NAME_CHARACTERS = 64


def enroll(store: Store, keys_dir: Path, *, approver: str, passphrase: str, now_s: float) -> ApproverKey:
    """Make a key pair, keep the private half encrypted in `keys_dir` and the public half in the store.

    The level follows from the store: `simulated` in a simulated one, else A2.

    Raises:
        InvalidInput: the name is empty or too long, or the passphrase too short.
        Refused: the directory is open to others.
    """
    if not approver.strip() or len(approver) > MAX_NAME_CHARACTERS or not approver.isprintable():
        raise InvalidInput(f"approver name {approver!r}", allowed=f"1 to {MAX_NAME_CHARACTERS} printable characters")
    if len(passphrase) < MIN_PASSPHRASE_CHARACTERS:
        raise InvalidInput("the passphrase is too short", allowed=f"at least {MIN_PASSPHRASE_CHARACTERS} characters")
    private = Ed25519PrivateKey.generate()
    pem = public_pem(private)
    level = AssuranceLevel.SIMULATED if store.mode == "simulated" else AssuranceLevel.A2
    key = ApproverKey(key_id=key_id(pem), approver=approver, public_pem=pem, level=level, enrolled_at_s=now_s)
    path = private_path(keys_dir, key.key_id)
    _write_private(path, private, passphrase)
    try:
        store.add_key(key)
    except BaseException:
        path.unlink(missing_ok=True)  # a key that nobody enrolled is of no use
        raise
    return key


def private_path(keys_dir: Path, identifier: str) -> Path:
    """Where the private half of this key lies, if it is of this machine."""
    return keys_dir / f"{identifier}.pem"


def usable_keys(store: Store, keys_dir: Path) -> Sequence[ApproverKey]:
    """The enrolled keys, not removed, whose private half lies in `keys_dir`."""
    keys = store.keys()
    return [k for k in keys if k.removed_at_s is None and private_path(keys_dir, k.key_id).is_file()]


def load_private_key(keys_dir: Path, key: ApproverKey, *, passphrase: str) -> Ed25519PrivateKey:
    """Decrypt the private half.

    Raises:
        NotFound: it is not on this machine.
        Refused: its file is open to others, or holds another key.
        InvalidInput: the passphrase is wrong.
    """
    path = private_path(keys_dir, key.key_id)
    try:
        content, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise NotFound(f"the private key {path} cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise Refused(
            f"the private key {path} has mode {stat.S_IMODE(mode):04o}: others can reach it",
            allowed="mode 0600",
            next_step="remove this key and enroll a new one, or `chmod 600` if you are sure that nobody read it",
        )
    try:
        private = load_pem_private_key(content, passphrase.encode())
    except (ValueError, TypeError) as error:
        raise InvalidInput("the passphrase is wrong, or the key file is damaged") from error
    if not isinstance(private, Ed25519PrivateKey) or key_id(public_pem(private)) != key.key_id:
        raise Refused(f"{path} holds another key than the one that was enrolled", next_step="enroll a new key")
    return private


def _write_private(path: Path, private: Ed25519PrivateKey, passphrase: str) -> None:
    """Under a temporary name first, linked into place: no reader sees half a key, no writer replaces one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.parent.stat().st_mode & 0o022:
        raise Refused(f"{path.parent} is writable by others", next_step=f"chmod 700 {path.parent}")
    content = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase.encode()))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink()
    fsync_directory(path.parent)
