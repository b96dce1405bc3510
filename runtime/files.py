"""Writing files so that a reader sees the old content or the new, never half of one."""

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write to a temporary name in the same directory, fsync, rename, fsync the directory.

    Raises:
        OSError: the disk is full or the directory is not writable; then `path` is as it was and nothing is left over.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fchmod(handle.fileno(), mode)
            os.fsync(handle.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    fsync_directory(path.parent)


def write_json_atomic(path: Path, data: Any, *, mode: int = 0o644) -> None:
    """write_atomic for strict, indented JSON."""
    write_atomic(path, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode(), mode=mode)


def fsync_directory(path: Path) -> None:
    """Make a rename in this directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
