"""Checkpoints at any URL that fsspec knows: uploaded with the manifest last, so that half of one is never taken.

    NAME/manifest.json             the manifest, written last; without it there is no checkpoint NAME
    NAME/<save id>/...             the checkpoint's directory as it was on disk, the manifest included

Object stores have no rename. A new save under an old name therefore has a folder of its own, and replacing the one
object NAME/manifest.json makes it the checkpoint; the former folder is deleted afterwards.
"""

import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ..errors import CheckpointError, ForerunError, MissingDependencyError
from .manifest import MANIFEST, Manifest, own_stem, read_manifest
from .selection import NUMBERED, age

_ATTEMPTS = 3
_FIRST_PAUSE_S = 0.5

Result = TypeVar("Result")


class Storage:
    """One directory of checkpoints at a URL.

    Args:
        pause: sleeps between attempts.

    Raises:
        MissingDependencyError: fsspec, or what it needs for this kind of URL, is not installed.
        CheckpointError: there is no such kind.
    """

    def __init__(self, url: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        self.url = url.rstrip("/")
        self._pause = pause
        try:
            core: Any = import_module("fsspec.core")
            self._system, self._root = core.url_to_fs(self.url)
        except ImportError as error:
            raise MissingDependencyError(
                f"{url} needs a package that is not installed: {error}", next_step="install it with pip"
            ) from error
        except ValueError as error:
            raise CheckpointError(
                f"{url}: {error}", allowed="a URL that fsspec knows", next_step="correct it"
            ) from error

    def manifest(self, name: str = "") -> Manifest | None:
        """Of the checkpoint `name`, or of the URL itself; None if there is none."""
        path = self._at(name, MANIFEST)
        if not self._try(f"look for {MANIFEST}", lambda: self._exists(path)):
            return None
        content = self._try(f"read {path}", lambda: self._system.cat_file(path))
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / MANIFEST).write_bytes(content)
            return read_manifest(Path(scratch))

    def checkpoints(self) -> list[tuple[str, Manifest]]:
        """Names of the complete ones with their manifests, oldest first. Damaged and newer manifests are left out."""
        found = []
        for path in self._try("list", lambda: self._system.glob(f"{self._root}/*/{MANIFEST}")):
            name = str(path).rstrip("/").split("/")[-2]
            try:
                manifest = self.manifest(name)
            except CheckpointError:
                continue
            if manifest is not None:
                found.append((name, manifest))
        return sorted(found, key=lambda pair: age(pair[1]))

    def upload(self, directory: Path, name: str) -> None:
        """Make a complete local checkpoint the checkpoint `name`; its manifest comes last.

        Raises:
            CheckpointError: it could not be, after a few attempts; a former one and `directory` are intact.
        """
        manifest = read_manifest(directory)
        if manifest is None:
            raise CheckpointError(f"{directory} is no checkpoint", allowed=f"a directory with a {MANIFEST}")
        inside = self._at(name, manifest.save_id)
        listed = [file.path for file in manifest.files]
        beside = [path.name for path in directory.iterdir() if path.is_file() and not path.name.startswith(".")]
        for file in dict.fromkeys([*listed, *(item for item in beside if item != MANIFEST), MANIFEST]):
            self._put(directory / file, f"{inside}/{file}")
        self._put(directory / MANIFEST, self._at(name, MANIFEST))
        with suppress(CheckpointError):  # what stays is no part of it, and goes with the next save
            self._remove_other_saves(name, manifest.save_id)

    def add(self, directory: Path, name: str, rank: int) -> None:
        """Upload what a rank has added to a checkpoint for itself."""
        manifest = read_manifest(directory)
        if manifest is None:
            raise CheckpointError(f"{directory} is no checkpoint any more", next_step="see rank 0's log")
        files = sorted(directory.glob(f"{own_stem(rank)}.*"), key=lambda path: path.name.endswith(MANIFEST))
        for path in files:
            self._put(path, f"{self._at(name, manifest.save_id)}/{path.name}")

    def download(self, target: Path, name: str = "") -> None:
        """Bring a checkpoint's directory here; loading it verifies every file.

        Raises:
            CheckpointError: there is none, or it could not be brought after a few attempts.
        """
        manifest = self.manifest(name)
        if manifest is None:
            raise CheckpointError(f"no complete checkpoint at {self._said(name)}", next_step="give another URL")
        inside = self._at(name, manifest.save_id)
        target.mkdir(parents=True, exist_ok=True)
        for path in self._try("list", lambda: self._system.find(inside)):
            relative = str(path)[str(path).rindex(f"{manifest.save_id}/") + len(manifest.save_id) + 1 :]
            if ".." in Path(relative).parts or Path(relative).is_absolute():
                raise CheckpointError(f"{path} lies outside of the checkpoint", next_step="do not use it")
            local = target / relative
            local.parent.mkdir(parents=True, exist_ok=True)
            self._try(f"download {path}", partial(self._system.get_file, path, str(local)))

    def prune(self, *, keep: int) -> list[str]:
        """Delete the oldest automatically named checkpoints, all but `keep`; returns their names."""
        if keep < 1:
            raise CheckpointError(f"keep {keep} checkpoints", allowed="at least 1", next_step="keep the newest")
        named = [name for name, _ in self.checkpoints() if NUMBERED.fullmatch(name)]
        doomed = named[: max(0, len(named) - keep)]
        for name in doomed:
            # The manifest first: what is half deleted is no checkpoint.
            self._try(f"delete {name}", partial(self._system.rm_file, self._at(name, MANIFEST)))
            self._try(f"delete {name}", partial(self._remove_tree, self._at(name)))
        return doomed

    def _remove_other_saves(self, name: str, save_id: str) -> None:
        for path in self._try("list", lambda: self._system.ls(self._at(name), detail=False)):
            last = str(path).rstrip("/").split("/")[-1]
            if last not in (save_id, MANIFEST):
                self._try(f"delete {path}", partial(self._remove_tree, path))

    def _put(self, local: Path, path: str) -> None:
        def put() -> None:
            self._system.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            self._system.put_file(str(local), path)
            size = self._system.info(path)["size"]
            if size != local.stat().st_size:
                raise OSError(f"{size} bytes arrived of {local.stat().st_size}")

        self._try(f"upload {local.name}", put)

    def _exists(self, path: str) -> bool:
        self._system.invalidate_cache()
        return bool(self._system.exists(path))

    def _remove_tree(self, path: str) -> None:
        if self._system.exists(path):
            self._system.rm(path, recursive=True)

    def _at(self, *names: str) -> str:
        return "/".join([self._root.rstrip("/"), *(name for name in names if name)])

    def _said(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _try(self, what: str, work: Callable[[], Result]) -> Result:
        """Remote systems fail for a moment; each has exceptions of its own."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return work()
            except ForerunError:
                raise
            except Exception as error:
                if attempt == _ATTEMPTS:
                    raise CheckpointError(
                        f"{self.url}: could not {what}, {attempt} times: {type(error).__name__}: {error}",
                        allowed="storage that can be reached and written",
                        next_step="look at the storage and its credentials; what is on the disk here is intact",
                    ) from error
                self._pause(_FIRST_PAUSE_S * 2 ** (attempt - 1))
        raise AssertionError("the last attempt returns or raises")


def newest(storages: Iterable[Storage]) -> tuple[Storage, str] | None:
    """The newest complete checkpoint of the first of these that has one."""
    for storage in storages:
        found = storage.checkpoints()
        if found:
            return storage, found[-1][0]
    return None
