"""Which files lie in the run directories, with their digests: what every claim of the report points at."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from runtime.config.digest import digest_file
from runtime.layout import RunLayout

from ..text import redact

MAX_FILES = 20_000
MAX_HASHED_BYTES = 50 * 2**30


@dataclass(frozen=True)
class FileEntry:
    """One file. `path` is relative to the directory that `root` (run or smoke) stands for; None: not hashed."""

    root: str
    path: str
    size_bytes: int
    sha256: str | None


@dataclass(frozen=True)
class Inventory:
    """All files of the runs. `unlisted` counts those beyond the limit, `unreadable` names those that gave an error."""

    roots: dict[str, str]
    files: tuple[FileEntry, ...]
    unlisted: int
    unreadable: tuple[str, ...]

    def sha256(self, path: str, root: str = "run") -> str | None:
        """The digest of one file, None if it is not in the list."""
        return self._digests.get((root, path))

    @cached_property
    def _digests(self) -> dict[tuple[str, str], str | None]:
        return {(entry.root, entry.path): entry.sha256 for entry in self.files}

    def evidence(self, path: str, line: int | str, root: str = "run") -> str:
        """'file:line sha256:...' as claims name their source."""
        root = root if root in self.roots else "run"
        prefix = "" if root == "run" else f"{root}/"
        return f"{prefix}{path}:{line} sha256:{self.sha256(path, root) or 'unknown'}"


def take_inventory(layout: RunLayout, smoke_layout: RunLayout | None) -> Inventory:
    """Hash every regular file below the run directories, the report's own folder excepted."""
    roots = {"run": str(layout.root.resolve())}
    if smoke_layout is not None and smoke_layout.root.resolve() != layout.root.resolve():
        roots["smoke"] = str(smoke_layout.root.resolve())
    entries: list[FileEntry] = []
    unreadable: list[str] = []
    unlisted, budget = 0, MAX_HASHED_BYTES
    for name, root in roots.items():
        for path in _files(Path(root), skip=Path(root) / layout.report.name):
            if len(entries) >= MAX_FILES:
                unlisted += 1
                continue
            relative = redact(path.relative_to(root).as_posix())
            try:
                size = path.stat().st_size
                digest = digest_file(path) if size <= budget else None
            except OSError as error:
                unreadable.append(f"{name}:{relative}: {error.strerror}")
                continue
            budget -= size if digest else 0
            entries.append(FileEntry(name, relative, size, digest))
    return Inventory(roots, tuple(entries), unlisted, tuple(unreadable))


def _files(root: Path, *, skip: Path) -> Iterator[Path]:
    """Regular files in a fixed order; symbolic links are not followed (the data they lead to has its own digests)."""
    for folder, folders, names in os.walk(root):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if here / name != skip and not (here / name).is_symlink())
        for name in sorted(names):
            path = here / name
            if path.is_file() and not path.is_symlink():
                yield path
