"""What a checkpoint says of itself, and whether its files are still those that were saved; needs no torch."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .manifest import (
    MANIFEST,
    Manifest,
    ManifestFile,
    describe,
    digest,
    is_complete,
    read_manifest,
    read_own_manifest,
    saved_rng_ranks,
)
from .selection import complete_checkpoints, find_checkpoint


@dataclass(frozen=True)
class TensorFacts:
    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Inspection:
    """One checkpoint.

    Attributes:
        parts: name -> what was saved, such as an optimizer's class; empty where nobody said.
        rng_ranks: the ranks whose random states are there.
        missing: files that the manifest names and that are gone or have another size.
    """

    directory: Path
    manifest: Manifest
    parts: dict[str, str]
    tensors: tuple[TensorFacts, ...]
    rng_ranks: tuple[int, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class FileCheck:
    """One file compared with its manifest. `problem` is empty if it fits; `sha256` says whether that was compared."""

    path: str
    size_bytes: int
    problem: str
    sha256: bool


def inspect(path: Path) -> Inspection:
    """The checkpoint that `path` names: itself, or the newest in it.

    Raises:
        CheckpointError: there is none, or its manifest or index is damaged.
    """
    directory = path if read_manifest(path) is not None else find_checkpoint(root_of(path))
    manifest = read_manifest(directory)
    assert manifest is not None, "one of the two has found it"
    missing = [file.path for file in manifest.files if not _has(directory, file)]
    parts: dict[str, str] = {}
    tensors: dict[str, TensorFacts] = {}
    for file in manifest.files:
        if file.path.startswith("state.") and file.path.endswith(".json") and file.path not in missing:
            _read_index(directory / file.path, parts, tensors)
    ranks = tuple(saved_rng_ranks(directory))
    return Inspection(directory, manifest, parts, tuple(tensors.values()), ranks, tuple(missing))


def list_checkpoints(path: Path) -> list[tuple[Path, Manifest]]:
    """Complete checkpoints below `path`, or below its folder `checkpoints`, oldest first."""
    return sorted(
        complete_checkpoints(root_of(path)),
        key=lambda pair: (pair[1].iteration, pair[1].optimizer_steps, pair[1].saved_at_s),
    )


def root_of(path: Path) -> Path:
    """The directory in which checkpoints lie: of a project or a run, its folder `checkpoints`."""
    inner = path / "checkpoints"
    return inner if inner.is_dir() and not (path / MANIFEST).exists() and not complete_checkpoints(path) else path


def targets(path: Path) -> list[Path]:
    """What a command on `path` is about: that checkpoint, or all below it.

    Raises:
        CheckpointError: there is none.
    """
    if (path / MANIFEST).exists() and read_manifest(path) is not None:
        return [path]
    root = root_of(path)
    return _with_manifest(root) or [find_checkpoint(root)]


def check_files(directory: Path) -> Iterator[FileCheck]:
    """Compare every file of a checkpoint, those that ranks added later too, with CRC-32 and SHA-256.

    Raises:
        CheckpointError: the manifest itself is damaged, or there is none.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise CheckpointError(f"{directory} is no checkpoint", allowed=f"a directory with a {MANIFEST} of ours")
    files = {file.path: file for file in manifest.files}
    for rank in range(manifest.world_size):
        for file in read_own_manifest(directory, manifest, rank) or ():
            files.setdefault(file.path, file)
    for file in files.values():
        yield FileCheck(file.path, file.size_bytes, _problem(directory, file), file.sha256 is not None)


def _problem(directory: Path, file: ManifestFile) -> str:
    path = directory / file.path
    try:
        size = path.stat().st_size
        if size != file.size_bytes:
            return f"has {size} bytes, not {file.size_bytes}"
        if describe(path).crc32 != file.crc32:
            return "has other content than was saved (CRC-32)"
        if file.sha256 is not None and digest(path) != file.sha256:
            return "has other content than was saved (SHA-256)"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return ""


def _has(directory: Path, file: ManifestFile) -> bool:
    path = directory / file.path
    return path.is_file() and path.stat().st_size == file.size_bytes


def _with_manifest(root: Path) -> list[Path]:
    try:
        names = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [path for path in names if (path / MANIFEST).is_file() and (is_complete(path) or _is_ours(path))]


def _is_ours(path: Path) -> bool:
    try:
        return read_manifest(path) is not None
    except CheckpointError:
        return True  # of ours, and damaged: that is to be said


def _read_index(path: Path, parts: dict[str, str], tensors: dict[str, TensorFacts]) -> None:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        parts.update((str(name), str(part["kind"])) for name, part in content["parts"].items())
        for name, entry in content["tensors"].items():
            tensors[str(name)] = TensorFacts(str(name), str(entry["dtype"]), tuple(int(n) for n in entry["shape"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no index of a checkpoint: {error!r}", next_step="verify it") from error
