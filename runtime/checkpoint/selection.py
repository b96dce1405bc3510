"""Which checkpoint: the one that a path names, the newest, and those that a limit lets go."""

import re
from pathlib import Path

from ..errors import CheckpointError
from .directory import listing, previous_path, remove
from .disk import Disk
from .manifest import MANIFEST, Manifest, is_complete, read_manifest, verify

AUTOMATIC = "checkpoint_"
_PUT_ASIDE = re.compile(r"\.(.+)\.previous")
NUMBERED = re.compile(r"checkpoint_\d+")


def find_checkpoint(path: Path) -> Path:
    """The complete checkpoint that `path` names: itself, the one that a killed save put aside, or the newest in it.

    Raises:
        CheckpointError: there is none, or files of the one at `path` are missing.
    """
    for candidate in (path, previous_path(path)):
        if is_complete(candidate):
            return candidate
    broken = read_manifest(path)
    if broken is not None:
        verify(path, broken.files)
    newest = newest_checkpoint(path)
    if newest is not None:
        return newest
    seen = "does not exist" if not path.exists() else f"holds {listing(path)}"
    raise CheckpointError(
        f"no complete checkpoint at {path}: it {seen}",
        allowed=f"a directory with a {MANIFEST} whose files are all there, or a directory of such",
        next_step="give the path of a checkpoint that save_state wrote",
    )


def newest_checkpoint(root: Path) -> Path | None:
    """The complete checkpoint below `root` that its manifest says was saved last."""
    found = [(age(manifest), directory) for directory, manifest in complete_checkpoints(root)]
    return max(found)[1] if found else None


def complete_checkpoints(root: Path) -> list[tuple[Path, Manifest]]:
    """Of each directory below `root`; one that a killed save put aside stands for its name."""
    try:
        names = {path.name for path in root.iterdir() if path.is_dir()}
    except (FileNotFoundError, NotADirectoryError):
        return []
    put_aside = {match[1] for name in names if (match := _PUT_ASIDE.fullmatch(name))}
    found = []
    for name in sorted({name for name in names if not name.startswith(".")} | put_aside):
        for directory in (root / name, previous_path(root / name)):
            manifest = read_manifest(directory) if is_complete(directory) else None
            if manifest is not None:
                found.append((directory, manifest))
                break
    return found


def surplus(root: Path, *, keep: int) -> list[Path]:
    """The oldest complete checkpoints with automatic names, all but `keep`.

    Raises:
        CheckpointError: `keep` is below 1.
    """
    if keep < 1:
        raise CheckpointError(f"keep {keep} checkpoints", allowed="at least 1", next_step="keep the newest")
    named = [(age(m), d) for d, m in complete_checkpoints(root) if NUMBERED.fullmatch(d.name)]
    return [directory for _, directory in sorted(named)[: max(0, len(named) - keep)]]


def prune(root: Path, *, keep: int, disk: Disk | None = None) -> list[Path]:
    """Delete the surplus; returns what was deleted."""
    doomed = surplus(root, keep=keep)
    for directory in doomed:
        remove(directory, disk=disk or Disk())
    return doomed


def age(manifest: Manifest) -> tuple[int, int, float]:
    return manifest.iteration, manifest.optimizer_steps, manifest.saved_at_s
