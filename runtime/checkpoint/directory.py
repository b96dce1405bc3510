"""A checkpoint directory that appears whole or not at all, and finding the newest one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError
from ..files import fsync_directory
from .manifest import MANIFEST, is_complete, read_manifest, verify


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A temporary directory beside `target`, which takes its place when the block ends without an exception.

    Until then, and after an exception, `target` is as it was. If the process is killed between the two renames, the
    former checkpoint lies under previous_path(target), where find_checkpoint looks.

    Raises:
        CheckpointError: `target` holds files of something else.
    """
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    _sweep(target)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.tmp-"))
    try:
        temporary.chmod(0o755)
        yield temporary
        _carry_over(target, temporary)
        for path in temporary.iterdir():
            _fsync_file(path)
        fsync_directory(temporary)
        _swap(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def previous_path(target: Path) -> Path:
    return target.parent / f".{target.name}.previous"


def find_checkpoint(path: Path) -> Path:
    """The complete checkpoint that `path` names: itself, the one that a killed save put aside, or the newest in it.

    Raises:
        CheckpointError: there is none, or files of the one at `path` are missing.
    """
    for candidate in (path, previous_path(path)):
        if is_complete(candidate):
            return candidate
    damaged = read_manifest(path)
    if damaged is not None:
        verify(path, damaged.files)
    newest = newest_checkpoint(path)
    if newest is not None:
        return newest
    seen = "does not exist" if not path.exists() else f"holds {_listing(path)}"
    raise CheckpointError(
        f"no complete checkpoint at {path}: it {seen}",
        allowed=f"a directory with a {MANIFEST} whose files are all there, or a directory of such",
        next_step="give the path of a checkpoint that save_state wrote",
    )


def newest_checkpoint(root: Path) -> Path | None:
    """The complete checkpoint below `root` with the highest iteration."""
    found = []
    for directory in _directories(root):
        manifest = read_manifest(directory) if is_complete(directory) else None
        if manifest is not None:
            found.append((manifest.iteration, manifest.saved_at_s, directory))
    return max(found)[2] if found else None


def prune(root: Path, *, keep: int) -> list[Path]:
    """Delete the oldest automatically named checkpoints, all but `keep`; returns what was deleted."""
    named = [d for d in _directories(root) if d.name.startswith("checkpoint_") and is_complete(d)]
    named.sort(key=lambda directory: manifest.iteration if (manifest := read_manifest(directory)) else -1)
    surplus = named[: max(0, len(named) - keep)]
    for directory in surplus:
        doomed = directory.parent / f".{directory.name}.tmp-deleted"
        os.replace(directory, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
    return surplus


def _directories(root: Path) -> list[Path]:
    try:
        return [path for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _refuse_foreign(target: Path) -> None:
    if not os.path.lexists(target):
        return
    if target.is_dir() and (read_manifest(target) is not None or not any(target.iterdir())):
        return
    raise CheckpointError(
        f"{target} is no checkpoint: it holds {_listing(target)}",
        allowed="a new path, an empty directory, or a checkpoint that save_state wrote",
        next_step="choose another directory, or remove this one",
    )


def _listing(path: Path) -> str:
    if not path.is_dir():
        return "a file"
    names = sorted(item.name for item in path.iterdir())
    return (", ".join(names[:5]) + (", ..." if len(names) > 5 else "")) or "nothing"


def _sweep(target: Path) -> None:
    """Remove what killed saves left; a former checkpoint that was put aside is brought back first."""
    previous = previous_path(target)
    if is_complete(previous) and not target.exists():
        os.replace(previous, target)
    shutil.rmtree(previous, ignore_errors=True)
    for leftover in target.parent.glob(f".{target.name}.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _carry_over(target: Path, temporary: Path) -> None:
    """Keep what the user put beside the checkpoint's own files."""
    manifest = read_manifest(target)
    if manifest is None:
        return
    own = {MANIFEST, *(file.path for file in manifest.files)}
    for item in target.iterdir():
        if item.name in own or item.name.startswith("rng.rank") or (temporary / item.name).exists():
            continue
        if item.is_dir():
            shutil.copytree(item, temporary / item.name)
        else:
            shutil.copy2(item, temporary / item.name)


def _swap(temporary: Path, target: Path) -> None:
    if not target.exists():
        os.replace(temporary, target)
        fsync_directory(target.parent)
        return
    previous = previous_path(target)
    os.replace(target, previous)
    try:
        os.replace(temporary, target)
    except BaseException:
        os.replace(previous, target)
        raise
    fsync_directory(target.parent)
    shutil.rmtree(previous, ignore_errors=True)


def _fsync_file(path: Path) -> None:
    if path.is_file():
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
