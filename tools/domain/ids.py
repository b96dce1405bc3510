"""Identifiers: a kind and ten random characters that nobody can misread."""

import re
import secrets
from typing import Literal

from .errors import InvalidInput

IdKind = Literal["plan", "req", "run"]
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford base32: no i, l, o, u


def new_id(kind: IdKind) -> str:
    """A fresh identifier such as `run-4k2m9x0c7e`."""
    return f"{kind}-" + "".join(secrets.choice(_ALPHABET) for _ in range(10))


def require_id(text: str, kind: IdKind) -> str:
    """`text` if it has the form of an id of this kind.

    Raises:
        InvalidInput: it has not.
    """
    if re.fullmatch(rf"{kind}-[{_ALPHABET}]{{10}}", text):
        return text
    raise InvalidInput(
        f"{text!r} is not a {kind} id",
        allowed=f"'{kind}-' and ten characters",
        next_step=f"list_work or `forerun {'approvals' if kind == 'req' else 'runs'}` shows the ids",
    )
