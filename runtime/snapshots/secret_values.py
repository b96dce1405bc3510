"""Values of secret variables, bound to a plan by a keyed hash: a changed value is noticed, none is stored.

The key lies in the server's state directory, readable by its owner alone: without it the hashes in a plan tell nothing,
not even whether a guess is right.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from ..config.plan import TrainingPlan
from ..errors import ConfigurationError

_KEY_BYTES = 32


def load_key(path: Path, *, create: bool = False) -> bytes:
    """The key at `path`; of two processes that make one at once the first wins.

    Raises:
        ConfigurationError: there is none, it is no key, or others may read it.
    """
    try:
        if create and not path.exists():
            _create(path)
        key, mode = path.read_bytes(), path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(
            f"the key of secret values {path} cannot be read: {error.strerror}",
            next_step="put it back, or make a new plan",
        ) from error
    if mode & 0o077:
        raise ConfigurationError(
            f"the key of secret values {path} is open to others", allowed="mode 0600", next_step=f"chmod 600 {path}"
        )
    if len(key) != _KEY_BYTES:
        raise ConfigurationError(f"{path} is no key of {_KEY_BYTES} bytes", next_step="move it away; make a new plan")
    return key


def keyed_hash(key: bytes, name: str, value: str) -> str:
    """HMAC-SHA-256 (hex) of a variable and its value."""
    return hmac.new(key, f"{name}\0{value}".encode(errors="surrogateescape"), hashlib.sha256).hexdigest()


def secret_drift(plan: TrainingPlan, environment: Mapping[str, str], key_file: Path | None) -> list[str]:
    """How the secret variables differ from those of the plan, a line a variable, never with a value."""
    if not plan.inherited_hashes:
        return []
    try:
        if key_file is None:
            raise ConfigurationError("the key of secret values is not named")
        key = load_key(key_file)
    except ConfigurationError as error:
        return [f"secrets {', '.join(plan.inherited_hashes)} cannot be compared with the plan: {error.what}"]
    lines = []
    for name, planned in plan.inherited_hashes.items():
        if name not in environment:
            lines.append(f"secret variable {name} is not set where the server runs")
        elif not hmac.compare_digest(keyed_hash(key, name, environment[name]), planned):
            lines.append(f"the value of secret variable {name} is another one than when the plan was made")
    return lines


def _create(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(secrets.token_bytes(_KEY_BYTES))
            handle.flush()
            os.fsync(handle.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)  # unlike a rename it never replaces a key that is there
    finally:
        os.unlink(temporary)
