"""The user's code as content: listed, stored under its digest, copied read-only into a run, compared again later."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..config.digest import digest_entries, digest_file
from ..config.plan import CodeFile, CodeSnapshot, TrainingPlan
from ..errors import ConfigurationError, ForerunError, LaunchError
from ..files import fsync_directory
from .code_listing import list_code
from .data_manifest import data_drift, why


def collect(
    script: Path, *, data_paths: Sequence[Path], max_bytes: int = 100 * 2**20
) -> tuple[CodeSnapshot, list[str]]:
    """List and digest the code that belongs to a script: its git work tree, or else its directory.

    Args:
        script: the entry; a regular file.
        data_paths: declared data files and directories, left out of the code.
        max_bytes: the most that may be copied.

    Returns:
        The snapshot, and notes on what was left out.

    Raises:
        ConfigurationError: no such script, too much code, an LFS pointer, an uninitialised submodule, an unreadable
            file or a name that is not UTF-8.
    """
    script = script.absolute()
    if not script.is_file():
        raise ConfigurationError(f"script {script} is no file", next_step="give the path of a Python script")
    script = script.parent.resolve() / script.name
    listing = list_code(script, data_paths=[path.resolve() for path in data_paths], max_bytes=max_bytes)
    files = []
    for relative, source in sorted(listing.files.items()):
        try:
            files.append(_code_file(relative, source))
        except OSError as error:
            raise ConfigurationError(f"code file {source} cannot be read: {error.strerror}") from error
    return _snapshot(listing.root, script.relative_to(listing.root).as_posix(), files), listing.notes


def store(snapshot: CodeSnapshot, store_dir: Path) -> Path:
    """Copy the code from its origin to `store_dir`/<digest>, atomically; what is there already is checked and kept.

    Raises:
        LaunchError: a file has changed since it was collected.
    """
    target = store_dir / snapshot.sha256
    if target.exists():
        if not code_drift(snapshot, target):
            return target
        _discard(target)
    store_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _copy(snapshot, Path(snapshot.origin), target)


def materialise(snapshot: CodeSnapshot, store_dir: Path, target: Path) -> None:
    """Copy the stored code to `target`, read-only and verified; a verified copy that is there already is kept.

    Raises:
        LaunchError: the store lacks or has altered a file, or `target` holds something else.
    """
    if target.exists():
        drift = code_drift(snapshot, target)
        if drift:
            raise LaunchError(f"{target} holds other code: {'; '.join(drift[:5])}", next_step="use a new run directory")
        return
    _copy(snapshot, store_dir / snapshot.sha256, target)


def code_drift(snapshot: CodeSnapshot, tree: Path) -> list[str]:
    """How a copied tree differs from the snapshot, a line a file; nothing may be there beside the plan's files."""
    if not tree.is_dir():
        return [f"code directory {tree} is missing"]
    planned = {file.path: file for file in snapshot.files}
    lines, found = [], set()
    for relative, path in _walk(tree):
        found.add(relative)
        if relative not in planned:
            lines.append(f"code {relative}: not part of the plan")
        elif path.is_symlink() or not path.is_file():
            lines.append(f"code {relative}: no longer a regular file")
        else:
            lines += _file_drift(planned[relative], path)
    lines += [f"code {path}: missing" for path in planned if path not in found]
    return sorted(lines)


def origin_drift(plan: TrainingPlan, *, manifests: Path | None = None) -> list[str]:
    """How the working tree and the data differ from the plan now, a line a file; `manifests` as in data_drift."""
    try:
        now, _ = collect(
            Path(plan.code.origin) / plan.code.entry,
            data_paths=[Path(file.path) for file in plan.data],
        )
    except ForerunError as error:
        return [f"code {plan.code.entry}: {why(error)}", *data_drift(plan.data, manifests=manifests)]
    before, after = ({file.path: file for file in code.files} for code in (plan.code, now))
    lines = [f"code {path}: missing" for path in before if path not in after]
    lines += [f"code {path}: not part of the plan" for path in after if path not in before]
    for path in before.keys() & after.keys():
        lines += _compare(before[path], after[path])
    if now.origin != plan.code.origin:
        lines.append(f"code: the tree now begins at {now.origin}, not at {plan.code.origin}")
    return sorted(lines) + data_drift(plan.data, manifests=manifests)


def _code_file(relative: str, path: Path) -> CodeFile:
    status = path.stat()
    return CodeFile(
        path=relative,
        sha256=digest_file(path),
        size_bytes=status.st_size,
        executable=bool(status.st_mode & 0o100),
    )


def _snapshot(root: Path, entry: str, files: Sequence[CodeFile]) -> CodeSnapshot:
    digest = digest_entries((file.path, file.sha256, file.executable) for file in files)
    return CodeSnapshot(origin=str(root), entry=entry, sha256=digest, files=tuple(files))


def _copy(snapshot: CodeSnapshot, source: Path, target: Path) -> Path:
    """Copy into a temporary sibling, check every byte, make it read-only, rename."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name[:12]}."))
    try:
        for file in snapshot.files:
            copy = temporary / file.path
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(source / file.path, copy)
            except OSError as error:
                raise LaunchError(f"code {file.path} cannot be copied: {error}") from error
            copy.chmod(0o555 if file.executable else 0o444)
        drift = [line for file in snapshot.files for line in _file_drift(file, temporary / file.path)]
        if drift:
            raise LaunchError(
                f"the code has changed since it was looked at: {'; '.join(drift[:5])}",
                next_step="make a new plan from the code as it is now",
            )
        for directory in _directories(temporary):
            directory.chmod(0o555)
        try:
            temporary.rename(target)
        except OSError as error:
            if code_drift(snapshot, target):  # somebody else put a copy there meanwhile: it must be the same
                raise LaunchError(f"{target} cannot be made: {error}") from error
        else:
            fsync_directory(target.parent)
    finally:
        if temporary.exists():
            _discard(temporary)
    return target


def _discard(tree: Path) -> None:
    for directory in _directories(tree):
        with contextlib.suppress(OSError):
            directory.chmod(0o755)
    shutil.rmtree(tree, ignore_errors=True)


def _directories(tree: Path) -> list[Path]:
    return [Path(folder) for folder, _, _ in os.walk(tree)]


def _walk(tree: Path) -> Iterator[tuple[str, Path]]:
    """(relative POSIX path, path) of everything that is no directory; a link to one counts as a file."""
    for folder, names, files in os.walk(tree):
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        for name in sorted(files + links):
            path = Path(folder) / name
            yield path.relative_to(tree).as_posix(), path


def _file_drift(file: CodeFile, path: Path) -> list[str]:
    try:
        now = _code_file(file.path, path)
    except OSError as error:
        return [f"code {file.path}: {why(error)}"]
    return _compare(file, now)


def _compare(before: CodeFile, after: CodeFile) -> list[str]:
    if before.sha256 != after.sha256:
        return [
            f"code {before.path}: content changed, {before.size_bytes} -> {after.size_bytes} bytes"
            f" ({before.sha256[:12]} -> {after.sha256[:12]})"
        ]
    if before.executable != after.executable:
        return [f"code {before.path}: {'no longer' if before.executable else 'now'} executable"]
    return []
