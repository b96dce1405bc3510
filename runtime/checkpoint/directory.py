"""A checkpoint directory that appears whole or not at all."""

import contextlib
import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError
from .disk import Disk
from .manifest import MANIFEST, OtherSchemaError, is_complete, read_manifest

_OF_A_CHECKPOINT = re.compile(
    r"\.?(state|own)\.rank\d+\.\w+(\.\w+)*|\.?manifest\.json(\.\w+)*|(rng\.rank\d+|[a-z]+(_\d+)?)\.pt|rng\.rank\d+\.json"
)
_REMAINS = re.compile(r"\..+\.tmp-([0-9a-f]+|deleted)", re.DOTALL)


class Replacement:
    """A temporary directory beside `target`, which takes its place at commit().

    Until then, and after abandon(), `target` is as it was. If the process is killed between the two renames, the
    former checkpoint lies under previous_path(target), where find_checkpoint looks.

    Attributes:
        note: what was removed because a killed save had left it, in words; empty if nothing was.

    Raises:
        CheckpointError: `target` holds files of something else.
        OSError: the directory cannot be made.
    """

    def __init__(self, target: Path, *, disk: Disk) -> None:
        self.target = target = followed(target)
        self._disk = disk
        self.note = _refuse_foreign(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target, disk=disk)
        self.directory = target.parent / f".{target.name}.tmp-{secrets.token_hex(4)}"
        disk.make_directory(self.directory)
        self._lock: int | None = _lock(self.directory)

    def commit(self) -> None:
        """Make every name in the directory safe, and give it its name."""
        _carry_over(self.target, self.directory)
        self._disk.fsync_directory(self.directory)
        _swap(self.directory, self.target, disk=self._disk)
        self._unlock()

    def abandon(self) -> None:
        """Remove the temporary directory."""
        self._disk.remove_tree(self.directory)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def replacing(target: Path, *, disk: Disk | None = None) -> Iterator[Path]:
    """A Replacement's directory; committed when the block ends without an exception, else abandoned."""
    replacement = Replacement(target, disk=disk or Disk())
    try:
        yield replacement.directory
        replacement.commit()
    except BaseException:
        replacement.abandon()
        raise


def followed(target: Path) -> Path:
    """Where a link leads, also one to nothing: the link stays, and what it names is replaced."""
    return Path(os.path.realpath(target)) if target.is_symlink() else target


def previous_path(target: Path) -> Path:
    target = followed(target)
    return target.parent / f".{target.name}.previous"


def sweep(target: Path, *, disk: Disk) -> None:
    """Remove what killed saves left; a former checkpoint that was put aside is brought back first.

    Left-overs of other automatically named checkpoints go too. What a process that lives is writing stays.
    """
    previous = previous_path(target)
    if is_complete(previous) and not is_complete(target):
        if os.path.lexists(target):
            disk.remove_tree(target)
        disk.rename(previous, target)
    disk.remove_tree(previous)
    for leftover in target.parent.glob(f".{glob.escape(target.name)}.tmp-*"):
        if _REMAINS.fullmatch(leftover.name) and not _is_held(leftover):
            disk.remove_tree(leftover)
    for leftover in target.parent.glob(".checkpoint_[0-9]*.tmp-*"):
        if _REMAINS.fullmatch(leftover.name) and (lock := _lock(leftover)) is not None:
            disk.remove_tree(leftover)
            os.close(lock)


def remove(directory: Path, *, disk: Disk) -> None:
    """Delete a checkpoint so that no half of it is ever found."""
    doomed = directory.parent / f".{directory.name}.tmp-deleted"
    disk.remove_tree(doomed)
    disk.rename(directory, doomed)
    disk.remove_tree(doomed)


def set_aside(directory: Path, *, disk: Disk) -> Path:
    """Give a directory in the way another name; returns it."""
    other = directory.parent / f"{directory.name}.set-aside-{secrets.token_hex(3)}"
    disk.rename(directory, other)
    return other


def listing(path: Path) -> str:
    """What lies at a path, in words."""
    if not path.is_dir():
        return "a file"
    names = sorted(item.name for item in path.iterdir())
    return (", ".join(names[:5]) + (", ..." if len(names) > 5 else "")) or "nothing"


def is_partial(path: Path) -> bool:
    """Whether a directory is no checkpoint, but holds nothing other than files of one (or nothing)."""
    try:
        if read_manifest(path) is not None:
            return False
    except OtherSchemaError:
        return False
    except CheckpointError:
        pass
    return path.is_dir() and all(_OF_A_CHECKPOINT.fullmatch(item.name) for item in path.iterdir())


def is_own_name(name: str) -> bool:
    """Whether a checkpoint may have written a file of this name."""
    return _OF_A_CHECKPOINT.fullmatch(name) is not None


def _refuse_foreign(target: Path) -> str:
    if not os.path.lexists(target):
        return ""
    if Path.cwd().resolve().is_relative_to(target.resolve()):
        raise CheckpointError(
            f"checkpoint {str(target)!r} would replace the directory that the process works in, or one above it",
            allowed="a directory for the checkpoint alone",
            next_step="give it a name, such as checkpoints/last",
        )
    try:
        if target.is_dir() and read_manifest(target) is not None:
            return "" if is_complete(target) else f"{target} held an incomplete checkpoint, which was replaced"
    except OtherSchemaError as error:
        raise CheckpointError(
            f"{error.what}: another version of forerun wrote it, and it is not replaced",
            allowed="a new path, an empty directory, or a checkpoint of this version",
            next_step="choose another directory, or remove this one",
        ) from error
    except CheckpointError:
        pass  # a damaged one; it is looked at below
    if is_partial(target):
        return f"{target} held an unfinished checkpoint ({listing(target)}), which was replaced" if _any(target) else ""
    raise CheckpointError(
        f"{target} is no checkpoint: it holds {listing(target)}" if target.is_dir() else f"{target} is a file",
        allowed="a new path, an empty directory, or a checkpoint that save_state wrote",
        next_step="choose another directory, or remove this one",
    )


def _any(directory: Path) -> bool:
    return next(directory.iterdir(), None) is not None


def _lock(directory: Path) -> int | None:
    """Hold a directory while this process lives; None if another one does, or the file system knows no locks."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _is_held(directory: Path) -> bool:
    """Whether a process that lives writes into it; where the file system knows no locks, nobody is known to."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _carry_over(target: Path, temporary: Path) -> None:
    """Keep what the user put beside the checkpoint's own files."""
    try:
        manifest = read_manifest(target)
    except CheckpointError:
        return
    if manifest is None:
        return
    own = {MANIFEST, *(file.path for file in manifest.files)}
    for item in target.iterdir():
        if item.name in own or is_own_name(item.name) or (temporary / item.name).exists():
            continue
        if item.is_dir():
            shutil.copytree(item, temporary / item.name)
        else:
            shutil.copy2(item, temporary / item.name)


def _swap(temporary: Path, target: Path, *, disk: Disk) -> None:
    """Put `temporary` in the place of `target`, or leave both as they are."""
    previous = previous_path(target)
    was_there = os.path.lexists(target)
    if was_there:
        disk.rename(target, previous)
    try:
        disk.rename(temporary, target)
        disk.fsync_directory(target.parent)
    except BaseException:
        if not os.path.lexists(temporary):
            os.replace(target, temporary)
        if was_there:
            os.replace(previous, target)
        raise
    with contextlib.suppress(OSError):
        disk.remove_tree(previous)


def unwritable(target: Path, error: OSError, *, needed_bytes: int) -> CheckpointError:
    """Why a checkpoint could not be written, and how much room it needs."""
    reason = f"checkpoint {target} could not be written: {error.strerror or error}"
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return CheckpointError(reason, next_step="look at the directory; what was there before is intact")
    return CheckpointError(
        f"{reason}; it needs {needed_bytes} bytes",
        allowed="as much room on the disk, and no lower limit on the size of files (ulimit -f)",
        next_step="make room or choose another directory; what was there before is intact",
    )
