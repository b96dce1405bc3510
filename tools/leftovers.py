"""What a server that was killed left half prepared: found by the mark of the process that was at it, and removed."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from runtime.config.order import Lease
from runtime.files import write_json_atomic
from runtime.layout import RunLayout
from runtime.procfs import alive, boot_id, start_ticks

PREPARING = ".preparing.json"
_UNMARKED_S = 60.0  # between making a directory and marking it lie microseconds
_ELSEWHERE_S = 86_400.0  # another machine's process cannot be looked at
_COPY_S = 3600.0


def mark_preparing(directory: Path) -> None:
    """Say that this process is preparing the run directory."""
    own = Lease(pid=os.getpid(), start_ticks=start_ticks(os.getpid()) or 0, boot_id=boot_id())
    write_json_atomic(directory / PREPARING, own.model_dump(mode="json"))


def mark_prepared(directory: Path) -> None:
    """The store knows the run: from now on its directory is nobody's leftover."""
    with contextlib.suppress(OSError):
        (directory / PREPARING).unlink(missing_ok=True)


def abandoned_runs(runs: Path, *, known: Callable[[str], bool], now_s: float) -> Iterator[Path]:
    """Run directories that no process prepares any more, and that no run of the store has.

    Args:
        known: whether the store has a run with this id; asked after the process was seen dead.
    """
    for path in _entries(runs, "run-"):
        layout = RunLayout(path)
        if layout.claim.exists() or not _is_over(path, now_s):
            continue
        if not known(path.name):
            yield path


def abandoned_copies(snapshots: Path, *, now_s: float) -> Iterator[Path]:
    """Copies of code that were begun an hour ago or earlier and never got their name."""
    for path in _entries(snapshots, "."):
        if path.is_dir() and _age_s(path, now_s) > _COPY_S:
            yield path


def _is_over(path: Path, now_s: float) -> bool:
    try:
        owner = Lease.model_validate_json((path / PREPARING).read_bytes())
    except (OSError, ValidationError):
        return _age_s(path, now_s) > _UNMARKED_S
    if owner.boot_id != boot_id():
        return _age_s(path, now_s) > _ELSEWHERE_S
    return not alive(owner.pid, owner.start_ticks)


def _age_s(path: Path, now_s: float) -> float:
    try:
        return now_s - path.stat().st_mtime
    except OSError:
        return 0.0


def _entries(folder: Path, beginning: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.startswith(beginning))
    except OSError:
        return []
