"""Digests of plans, files and trees: SHA-256, over RFC 8785 JSON where the thing is data."""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rfc8785
from pydantic import BaseModel


def digest_json(data: Any) -> str:
    """SHA-256 (hex) of the RFC 8785 form of a JSON value."""
    return hashlib.sha256(rfc8785.dumps(data)).hexdigest()


def digest_model(model: BaseModel) -> str:
    """digest_json of a pydantic model in its JSON form."""
    return digest_json(model.model_dump(mode="json"))


def digest_file(path: Path) -> str:
    """SHA-256 (hex) of a file's content, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def digest_entries(entries: Iterable[tuple[str, str, bool]]) -> str:
    """Digest of a tree from its (relative POSIX path, file digest, executable) entries, in any order."""
    return digest_json([[path, digest, executable] for path, digest, executable in sorted(entries)])


def is_executable(path: Path) -> bool:
    return os.access(path, os.X_OK)
