"""The manifest of a checkpoint directory: its files with sizes and digests. Without one there is no checkpoint."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

MANIFEST = "manifest.json"
FORMAT = "forerun-checkpoint"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ManifestFile:
    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a complete checkpoint says of itself.

    Attributes:
        iteration: number of an automatically named checkpoint, or of saves so far.
        optimizer_steps: taken when it was saved.
        files: every file but the manifest and what ranks above 0 added later (each with a manifest of its own).
    """

    iteration: int
    optimizer_steps: int
    world_size: int
    strategy: str
    saved_at_s: float
    torch: str
    files: tuple[ManifestFile, ...]
    format: str = FORMAT
    schema_version: int = SCHEMA_VERSION

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


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
        raise CheckpointError(
            f"{directory} has checkpoint schema {data.get('schema_version')!r}",
            allowed=f"schema {SCHEMA_VERSION}",
            next_step="load it with the version of forerun that wrote it",
        )
    try:
        files = tuple(ManifestFile(**file) for file in data.pop("files"))
        return Manifest(**data, files=files)
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{directory / MANIFEST} is damaged: {error}", next_step="load another one") from error


def describe(path: Path) -> ManifestFile:
    """Size and digest of a file as it lies on disk."""
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    return ManifestFile(path.name, path.stat().st_size, digest)


def verify(directory: Path, files: tuple[ManifestFile, ...]) -> None:
    """Compare files with what a manifest says of them.

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
        elif describe(path).sha256 != file.sha256:
            wrong.append(f"{file.path} has other content than was saved")
    if wrong:
        raise CheckpointError(
            f"checkpoint {directory} is damaged: {'; '.join(wrong)}",
            allowed="the files exactly as they were saved",
            next_step="load another checkpoint",
        )


def is_complete(directory: Path) -> bool:
    """Whether all files are there with their sizes (their content is verified when they are loaded)."""
    try:
        manifest = read_manifest(directory)
    except CheckpointError:
        return False
    if manifest is None:
        return False
    paths = [(directory / file.path, file.size_bytes) for file in manifest.files]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def saved_rng_ranks(directory: Path) -> list[int]:
    """The ranks whose random states a checkpoint holds."""
    stems = [path.stem.removeprefix("rng.rank") for path in directory.glob("rng.rank*.json")]
    return sorted([0, *(int(stem) for stem in stems if stem.isdecimal())])
