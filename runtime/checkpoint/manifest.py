"""The manifest of a checkpoint directory: its files with sizes and sums. Without one there is no checkpoint."""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .crc import CHUNK_BYTES, crc32, join_sums, split_sums
from .disk import Disk

MANIFEST = "manifest.json"
FORMAT = "forerun-checkpoint"
SCHEMA_VERSION = 2
_OWN = re.compile(r"own\.rank(\d+)\.(?:json|safetensors|manifest\.json)")


@dataclass(frozen=True)
class ManifestFile:
    """One file.

    Attributes:
        path: its name in the directory.
        crc32: of each MiB of it, eight hexadecimal digits each.
        sha256: None until it has been computed (complete_digests).
    """

    path: str
    size_bytes: int
    crc32: str
    sha256: str | None = None


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint says of itself.

    Attributes:
        save_id: of this one save; what other ranks add later names it too.
        iteration: number of an automatically named checkpoint, or of saves so far.
        optimizer_steps: taken when it was saved.
        replicated: rank 0 wrote the whole state, and the others add their own later, each with a manifest of its own.
        needed_own: parts that each rank has for itself and cannot go on without (an open accumulation window).
        plan_digest: of the plan that the run follows; None outside of one.
        files: every file but the manifest and what ranks added later.
    """

    save_id: str
    iteration: int
    optimizer_steps: int
    world_size: int
    strategy: str
    replicated: bool
    saved_at_s: float
    needed_own: tuple[str, ...]
    plan_digest: str | None
    versions: dict[str, str | None]
    files: tuple[ManifestFile, ...]
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def as_json(self) -> bytes:
        return as_json(self.as_dict())


def as_json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=1, allow_nan=False) + "\n").encode()


class OtherSchemaError(CheckpointError):
    """A checkpoint that another version of forerun wrote: nothing that this one may judge or replace."""


def own_stem(rank: int) -> str:
    """Of the files with what a rank has for itself."""
    return f"own.rank{rank}"


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest of a directory; None if it is not a checkpoint of ours.

    Raises:
        CheckpointError: it is one of another schema version, or the manifest is damaged.
    """
    try:
        data = json.loads((directory / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise CheckpointError(f"{directory / MANIFEST} is no JSON", next_step="load another checkpoint") from error
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        return None
    if data.get("schema_version") != SCHEMA_VERSION:
        raise OtherSchemaError(
            f"{directory} has checkpoint schema {data.get('schema_version')!r}",
            allowed=f"schema {SCHEMA_VERSION}",
            next_step="load it with the version of forerun that wrote it",
        )
    try:
        return Manifest(**{**data, "files": _files(data["files"]), "needed_own": tuple(data["needed_own"])})
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{directory / MANIFEST} is damaged: {error}", next_step="load another one") from error


def read_own_manifest(directory: Path, manifest: Manifest, rank: int) -> tuple[ManifestFile, ...] | None:
    """The files that this rank has for itself; None if it has none of this save.

    Raises:
        CheckpointError: the rank's manifest is damaged.
    """
    stem = own_stem(rank)
    listed = tuple(file for file in manifest.files if file.path.startswith(f"{stem}."))
    if listed:
        return listed
    path = directory / f"{stem}.{MANIFEST}"
    try:
        data = json.loads(path.read_bytes())
        if data["save_id"] != manifest.save_id:
            return None  # the rank had not got as far when the job ended
        return _files(data["files"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r}", next_step="load another checkpoint") from error


def saved_rng_ranks(directory: Path) -> list[int]:
    """The ranks of which a checkpoint holds what they have for themselves, such as their random states."""
    manifest = read_manifest(directory)
    if manifest is None:
        return []
    found = {int(match[1]) for path in directory.iterdir() if (match := _OWN.fullmatch(path.name))}
    return sorted(rank for rank in found if _has_own(directory, manifest, rank))


def _has_own(directory: Path, manifest: Manifest, rank: int) -> bool:
    try:
        return read_own_manifest(directory, manifest, rank) is not None
    except (CheckpointError, OSError):
        return False


def describe(path: Path) -> ManifestFile:
    """Size and sums of a file as it lies on disk."""
    sums, size = [], 0
    with path.open("rb") as handle:
        while chunk := handle.read(CHUNK_BYTES):
            sums.append(crc32(chunk))
            size += len(chunk)
    return ManifestFile(path.name, size, join_sums(sums))


def describe_bytes(name: str, content: bytes) -> ManifestFile:
    """The same of a file with this content."""
    chunks = [content[at : at + CHUNK_BYTES] for at in range(0, len(content), CHUNK_BYTES)]
    return ManifestFile(name, len(content), join_sums([crc32(chunk) for chunk in chunks]))


def verify(directory: Path, files: Iterable[ManifestFile], *, sha256: bool = False) -> None:
    """Compare files with what a manifest says of them.

    Args:
        sha256: compare the SHA-256 too, of files that have one.

    Raises:
        CheckpointError: files are missing or differ; all of them are named.
    """
    wrong = []
    for file in files:
        path = directory / file.path
        if not path.is_file():
            wrong.append(f"{file.path} is missing")
        elif path.stat().st_size != file.size_bytes:
            wrong.append(f"{file.path} has {path.stat().st_size} bytes, not {file.size_bytes}")
        elif describe(path).crc32 != file.crc32:
            wrong.append(f"{file.path} has other content than was saved (CRC-32)")
        elif sha256 and file.sha256 is not None and digest(path) != file.sha256:
            wrong.append(f"{file.path} has other content than was saved (SHA-256)")
    if wrong:
        raise damaged(directory, wrong)


def damaged(directory: Path, wrong: list[str]) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {directory} is damaged: {'; '.join(wrong)}",
        allowed="the files exactly as they were saved",
        next_step="load another checkpoint",
    )


def is_complete(directory: Path) -> bool:
    """Whether all files are there with their sizes (their content is verified when they are loaded)."""
    try:
        manifest = read_manifest(directory)
        if manifest is None:
            return False
        paths = [(directory / file.path, file.size_bytes) for file in manifest.files]
        return all(path.is_file() and path.stat().st_size == size for path, size in paths)
    except (CheckpointError, OSError):
        return False


def is_of_another_version(directory: Path) -> bool:
    """Whether another version of forerun wrote a checkpoint there."""
    try:
        read_manifest(directory)
    except OtherSchemaError:
        return True
    except (CheckpointError, OSError):
        pass
    return False


def complete_digests(directory: Path, *, disk: Disk | None = None) -> Manifest:
    """Compute the SHA-256 digests that are missing, and write them into the manifest.

    Raises:
        CheckpointError: there is no checkpoint, or a file is not what the manifest says.
    """
    manifest = read_manifest(directory)
    if manifest is None:
        raise CheckpointError(f"{directory} is no checkpoint", allowed=f"a directory with a {MANIFEST}")
    if all(file.sha256 is not None for file in manifest.files):
        return manifest
    verify(directory, [file for file in manifest.files if file.sha256 is None])
    digests = {file.path: file.sha256 or digest(directory / file.path) for file in manifest.files}
    return write_digests(directory, manifest, digests, disk=disk or Disk())


def write_digests(directory: Path, manifest: Manifest, digests: dict[str, str], *, disk: Disk) -> Manifest:
    completed = replace(
        manifest, files=tuple(replace(file, sha256=digests.get(file.path, file.sha256)) for file in manifest.files)
    )
    current = read_manifest(directory)
    if current is not None and current.save_id == manifest.save_id:  # else somebody has saved there meanwhile
        disk.replace_file(directory / MANIFEST, completed.as_json())
    return completed


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _files(entries: list[dict[str, Any]]) -> tuple[ManifestFile, ...]:
    files = tuple(ManifestFile(**entry) for entry in entries)
    for file in files:
        if not isinstance(file.path, str) or Path(file.path).is_absolute() or ".." in Path(file.path).parts:
            raise ValueError(f"it names a file outside of the checkpoint: {file.path!r}")
        if len(split_sums(file.crc32)) != -(-file.size_bytes // CHUNK_BYTES):
            raise ValueError(f"{file.path} has {file.size_bytes} bytes, and {len(file.crc32) // 8} sums")
    return files
