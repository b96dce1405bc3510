"""Between two attempts of a job: what the failed one left is put aside, and the checkpoint to go on from is found."""

import contextlib
import os
from pathlib import Path

from ..checkpoint.directory import previous_path
from ..checkpoint.manifest import Manifest, is_complete, read_manifest, saved_rng_ranks, verify
from ..errors import CheckpointError
from ..layout import RunLayout
from ..records import read_events


def put_aside(layout: RunLayout, attempt: int) -> None:
    """Keep what the engine and the ranks said of their failures, where the next attempt does not find it."""
    folder = layout.attempt(attempt)
    folder.mkdir(parents=True, exist_ok=True)
    for path in (layout.failures, *layout.other_failures(), *sorted(layout.logs.glob("rank*.error.json"))):
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, folder / path.name)


def mark_logs(layout: RunLayout, line: str) -> None:
    """Append a line to the engine's log and to every rank's stderr; stdout stays the script's alone."""
    for path in (layout.engine_log, *sorted(layout.logs.glob("rank*.stderr.log"))):
        with contextlib.suppress(OSError), path.open("r+b") as handle:
            size = handle.seek(0, os.SEEK_END)
            torn = size > 0 and handle.seek(size - 1) >= 0 and handle.read(1) != b"\n"
            handle.write((b"\n" if torn else b"") + line.encode() + b"\n")


def last_checkpoint(layout: RunLayout) -> Path | None:
    """The checkpoint from which the job can go on: intact, of all ranks if any is, and of those the furthest.

    Looked at are the run's checkpoints and every directory of which the job said that it saved there. None: there is
    no such checkpoint, the job begins anew.
    """
    found = [(directory, manifest) for directory in _directories(layout) if (manifest := _manifest(directory))]
    ordered = sorted(found, key=lambda pair: _worth(*pair), reverse=True)
    for directory, manifest in ordered:
        with contextlib.suppress(CheckpointError, OSError):
            verify(directory, manifest.files)
            return directory
    return None


def saved_since(layout: RunLayout, time_s: float) -> list[str]:
    """In words, the checkpoint that ranks saved since then because they were told to make room; empty if none."""
    with contextlib.suppress(OSError):
        events = [e for e in read_events(layout.events) if e.event == "preempted" and e.time_s >= time_s]
        return [f"saved first: {event.details.get('path')}" for event in events[-1:]]
    return []


def _worth(directory: Path, manifest: Manifest) -> tuple[bool, int, float]:
    of_all_ranks = len(saved_rng_ranks(directory)) == manifest.world_size
    return of_all_ranks, manifest.optimizer_steps, manifest.saved_at_s


def _directories(layout: RunLayout) -> list[Path]:
    paths = []
    with contextlib.suppress(OSError):
        paths = [path for path in layout.checkpoints.iterdir() if not path.name.startswith(".")]
    paths += [previous_path(path) for path in paths]
    for event in _events(layout):
        if isinstance(path := event.get("path"), str) and os.path.isabs(path) and "\0" not in path:
            paths += [Path(path), previous_path(Path(path))]
    return list(dict.fromkeys(paths))


def _events(layout: RunLayout) -> list[dict[str, object]]:
    try:
        return [event.details for event in read_events(layout.events) if event.event == "checkpoint_saved"]
    except OSError:
        return []


def _manifest(directory: Path) -> Manifest | None:
    """Of a complete checkpoint; the job wrote it, so its numbers may be none."""
    try:
        manifest = read_manifest(directory) if is_complete(directory) else None
    except (CheckpointError, OSError):
        return None
    if manifest is None or not isinstance(manifest.optimizer_steps, int):
        return None
    return manifest if isinstance(manifest.saved_at_s, float) else None
