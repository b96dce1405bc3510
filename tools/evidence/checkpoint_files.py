"""Checkpoints that a script itself wrote into its run directory, found by name and time."""

import os
from collections.abc import Iterator
from pathlib import Path

from runtime.layout import RunLayout

_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".distcp")
_BESIDE_A_MODEL = ("training_args", "scheduler", "optimizer", "rng_state", "scaler")
_MARKS_OF_A_DIRECTORY = (".metadata", "manifest.json", "trainer_state.json")
_CLOCK_GRAIN_S = 2.0


def newest_checkpoint(layout: RunLayout, *, since_s: float) -> Path | None:
    """The newest checkpoint below checkpoints/ or work/ that was written after `since_s` (seconds since the epoch).

    A directory that is one checkpoint as a whole (Trainer's, torch.distributed.checkpoint's, ours) stands for its
    files. Links are not followed: what they lead to was there before the run.
    """
    found: list[tuple[float, str, Path]] = []
    for path in _files(layout):
        written_s = path.lstat().st_mtime
        if written_s >= since_s - _CLOCK_GRAIN_S:
            whole = _whole(path)
            found.append((written_s, str(whole), whole))
    return max(found)[2] if found else None


def _files(layout: RunLayout) -> Iterator[Path]:
    for top in (layout.checkpoints, layout.work):
        for directory, _, names in os.walk(top):
            for name in names:
                path = Path(directory) / name
                if name.endswith(_SUFFIXES) and not name.startswith(_BESIDE_A_MODEL) and not path.is_symlink():
                    yield path


def _whole(path: Path) -> Path:
    return path.parent if any((path.parent / mark).exists() for mark in _MARKS_OF_A_DIRECTORY) else path
