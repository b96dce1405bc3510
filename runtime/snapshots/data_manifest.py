"""Declared data as content: size and digest of each file, kept beside the plan, and compared again before a run."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from ..config.digest import digest_entries, digest_file
from ..config.plan import DataFile, DataRole
from ..errors import ConfigurationError, ForerunError
from ..files import write_atomic

DataMode = Literal["full", "sampled"]
FULL_LIMIT_BYTES = 4 * 2**30
FOLDER = "data"  # in the snapshot store, where manifests lie by digest
_SAMPLE_BYTES = 2**20
_NUM_SAMPLES = 64
_NAMED_FILES = 20


class ManifestEntry(NamedTuple):
    """One file of a declared directory; `path` is relative to it."""

    path: str
    size_bytes: int
    sha256: str
    mode: DataMode


def describe_data(role: DataRole, path: Path) -> tuple[DataFile, tuple[ManifestEntry, ...]]:
    """What the plan says of a data file or directory, and the directory's files (none for a file).

    A file, or a directory in all, of more than 4 GiB is sampled: of each file above 64 MiB its size and 64 evenly
    spaced pieces of 1 MiB count, the first and the last bytes among them.

    Raises:
        OSError: it cannot be read.
        ConfigurationError: it is neither a file nor a directory.
    """
    if not path.is_dir():
        size, digest, mode = data_digest(path)
        return DataFile(role=role, path=str(path), size_bytes=size, sha256=digest, mode=mode), ()
    entries, mode = _entries(path, None)
    file = DataFile(
        role=role,
        path=str(path),
        size_bytes=sum(entry.size_bytes for entry in entries),
        sha256=manifest_digest(entries),
        mode=mode,
        num_files=len(entries),
    )
    return file, entries


def data_digest(path: Path, *, mode: DataMode | None = None) -> tuple[int, str, DataMode]:
    """Size in bytes, SHA-256 and whether it covers every byte of a data file or of a directory's files.

    Args:
        mode: how to digest; None chooses by size.

    Raises:
        OSError: it cannot be read.
        ConfigurationError: it is neither a file nor a directory.
    """
    if path.is_dir():
        entries, chosen = _entries(path, mode)
        return sum(entry.size_bytes for entry in entries), manifest_digest(entries), chosen
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise ConfigurationError(f"{path} is no regular file", allowed="a file or a directory of files")
    size = status.st_size
    wanted: DataMode = mode or ("full" if size <= FULL_LIMIT_BYTES else "sampled")
    return size, digest_file(path) if wanted == "full" else _sampled_digest(path, size), wanted


def manifest_digest(entries: Sequence[ManifestEntry]) -> str:
    """What the plan carries of a directory."""
    return digest_entries((entry.path, entry.sha256, False) for entry in entries)


def store_manifest(folder: Path, entries: Sequence[ManifestEntry]) -> Path:
    """Write the manifest to `folder`/<digest>.jsonl, a file a line."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    target = folder / f"{manifest_digest(entries)}.jsonl"
    write_atomic(target, "".join(json.dumps(entry) + "\n" for entry in entries).encode())
    return target


def read_manifest(folder: Path, digest: str) -> tuple[ManifestEntry, ...] | None:
    """The manifest with this digest; None if it is not there, or says something else."""
    try:
        lines = (folder / f"{digest}.jsonl").read_text().splitlines()
        entries = tuple(ManifestEntry(*json.loads(line)) for line in lines)
        return entries if manifest_digest(entries) == digest else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def data_drift(data: Sequence[DataFile], *, manifests: Path | None = None) -> list[str]:
    """How the declared data differ from the plan, a line a file.

    Args:
        manifests: where the manifests of directories lie; without them a directory is named as a whole.
    """
    return [line for file in data for line in _drift(file, manifests)]


def _drift(file: DataFile, manifests: Path | None) -> list[str]:
    path, name = Path(file.path), f"data {file.role} {file.path}"
    try:
        if file.num_files and not path.is_dir():
            return [f"{name}: {'no directory any more' if path.exists() else 'missing'}"]
        before = read_manifest(manifests, file.sha256) if manifests and file.num_files else None
        if before is not None:
            after, _ = _entries(path, file.mode)
            return _file_lines(name, before, after)
        size, digest, _ = data_digest(path, mode=file.mode)
    except (OSError, ForerunError) as error:
        return [f"{name}: {why(error)}"]
    if size != file.size_bytes:
        return [f"{name}: size {file.size_bytes} -> {size} bytes"]
    if digest != file.sha256:
        return [f"{name}: content changed ({file.sha256[:12]} -> {digest[:12]})"]
    return []


def _file_lines(name: str, before: Sequence[ManifestEntry], after: Sequence[ManifestEntry]) -> list[str]:
    """Each file of a directory that was changed, added, removed or renamed."""
    was, now = ({entry.path: entry for entry in entries} for entries in (before, after))
    gone = {path: was[path] for path in sorted(was.keys() - now.keys())}
    new = {path: now[path] for path in sorted(now.keys() - was.keys())}
    lines = []
    for path in sorted(was.keys() & now.keys()):
        old, changed = was[path], now[path]
        if old.sha256 != changed.sha256:
            sizes = f"{old.size_bytes} -> {changed.size_bytes} bytes, {old.sha256[:12]} -> {changed.sha256[:12]}"
            lines.append(f"{path} changed ({sizes})")
    for path, entry in list(new.items()):
        origin = next((old for old, left in gone.items() if left.sha256 == entry.sha256), None)
        if origin is not None:
            lines.append(f"{origin} renamed to {path}")
            del gone[origin], new[path]
    lines += [f"{path} removed" for path in gone] + [f"{path} added" for path in new]
    shown = lines[:_NAMED_FILES]
    if len(lines) > _NAMED_FILES:
        shown.append(f"and {len(lines) - _NAMED_FILES} more files differ")
    return [f"{name}: {line}" for line in shown]


def _entries(folder: Path, mode: DataMode | None) -> tuple[tuple[ManifestEntry, ...], DataMode]:
    found = sorted(_files(folder))
    sizes = [path.stat().st_size for _, path in found]
    chosen: DataMode = mode or ("full" if sum(sizes) <= FULL_LIMIT_BYTES else "sampled")
    entries = []
    for (relative, path), size in zip(found, sizes, strict=True):
        part: DataMode = chosen if size > _SAMPLE_BYTES * _NUM_SAMPLES else "full"
        entries.append(ManifestEntry(relative, size, data_digest(path, mode=part)[1], part))
    return tuple(entries), chosen


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """(relative POSIX path, path) of every file, links followed; a directory that holds itself counts once."""
    seen = set()
    for root, names, files in os.walk(folder, followlinks=True):
        status = os.stat(root)
        if (status.st_dev, status.st_ino) in seen:
            names.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        names.sort()
        for name in files:
            path = Path(root) / name
            if path.is_file():
                yield path.relative_to(folder).as_posix(), path


def _sampled_digest(path: Path, size: int) -> str:
    digest = hashlib.sha256(str(size).encode())
    last = max(0, size - _SAMPLE_BYTES)
    with path.open("rb") as handle:
        for index in range(_NUM_SAMPLES):
            handle.seek(last * index // (_NUM_SAMPLES - 1))
            digest.update(handle.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def why(error: Exception) -> str:
    """Why a file cannot be compared, in a few words."""
    if isinstance(error, FileNotFoundError):
        return "missing"
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror})"
    return str(error)
