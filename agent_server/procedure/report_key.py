"""The server's own signing key for reports: made at the first use, readable by its owner alone."""

import contextlib
import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from runtime.errors import ConfigurationError


def load_report_key(path: Path) -> Ed25519PrivateKey:
    """The key at `path`, made if there is none; of two servers that make one at once the first wins.

    Raises:
        ConfigurationError: the file is not an Ed25519 key, or others may read it.
    """
    if not path.exists():
        _create(path)
    if path.stat().st_mode & 0o077:
        raise ConfigurationError(
            f"report key {path} is readable by others", allowed="mode 0600", next_step=f"chmod 600 {path}"
        )
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path} is no unencrypted private key", allowed="PEM, PKCS 8", next_step="move it away; a new one is made"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigurationError(f"{path} holds a {type(key).__name__}", allowed="an Ed25519 key")
    return key


def _create(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(pem)
            handle.flush()
            os.fsync(handle.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename it never replaces a key that is there
    finally:
        os.unlink(temporary)
