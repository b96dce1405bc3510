"""Saving to and loading from a URL: a checkpoint is written to a local directory first, or brought into one."""

import atexit
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from .checkpoint.manifest import MANIFEST, own_stem
from .checkpoint.storage import Storage, newest
from .errors import CheckpointError, ForerunError
from .state import PartialState

_LAST_WORD_S = 10.0
_POLL_S = 0.02


class RemoteCheckpoints:
    """The local side of checkpoints at a URL.

    Args:
        root: where local copies lie, on a file system that all ranks see; None for a temporary directory, which ranks
            of one machine share.
        storage: makes the storage of a URL.
    """

    def __init__(self, state: PartialState, root: Path | None, *, storage: Callable[[str], Storage] = Storage) -> None:
        self._state = state
        self._root = root
        self._storage = storage
        self._staged: list[Path] = []
        self._watches_exit = False

    def stage(self, name: str) -> Path:
        """Where rank 0 writes a checkpoint before it is uploaded. The one before the last is deleted."""
        if self._root is not None:
            self._root.mkdir(parents=True, exist_ok=True)
        while len(self._staged) > 1:
            shutil.rmtree(self._staged.pop(0), ignore_errors=True)
        if not self._watches_exit:
            self._watches_exit = True
            atexit.register(self._at_exit)
        self._staged.append(Path(tempfile.mkdtemp(dir=self._root, prefix=".staged-")))
        return self._staged[-1] / name

    def free_name(self, url: str, prefix: str, iteration: int) -> int:
        """The first number from `iteration` on that no checkpoint at the URL has."""
        taken = {name for name, _ in self._storage(url).checkpoints()}
        while f"{prefix}{iteration}" in taken:
            iteration += 1
        return iteration

    def upload(self, directory: Path, url: str, *, keep: int | None) -> None:
        """Rank 0 uploads the checkpoint; another rank what it has added for itself.

        Args:
            keep: delete automatically named ones beyond so many, afterwards.

        Raises:
            CheckpointError: it could not be uploaded; the local copy stays.
        """
        root, _, name = url.rpartition("/")
        storage, rank = self._storage(root), self._state.process_index
        if self._state.is_main_process:
            try:
                storage.upload(directory, name)
            except CheckpointError as error:
                self._staged = [path for path in self._staged if path != directory.parent]  # it is the only one now
                raise CheckpointError(
                    f"{error.what}; the checkpoint lies in {directory}",
                    allowed=error.allowed,
                    next_step=error.next_step,
                ) from error
            if keep is not None:
                storage.prune(keep=keep)
        elif (directory / f"{own_stem(rank)}.{MANIFEST}").is_file():
            storage.add(directory, name, rank)
        if self._state.guard is not None:
            self._state.guard.post(f"uploaded/{directory}/{rank}", "1")

    def fetch(self, urls: list[str]) -> tuple[Path, str]:
        """Bring the checkpoint at the first of the URLs that has one; all ranks together.

        A URL names a checkpoint, or a directory of which the newest is taken.

        Returns:
            The local directory, and the checkpoint's URL. The directory is the caller's to delete, by drop().

        Raises:
            CheckpointError: on all ranks, if there is none, or it could not be brought to one of the machines.
        """
        state, error, brought = self._state, "", ("", "")
        if state.is_local_main_process:
            try:
                with state.guard.busy() if state.guard is not None else nullcontext():
                    brought = self._bring(urls)
            except (ForerunError, OSError) as caught:
                error = str(caught)
        said = [[error, *brought]]
        if state.guard is not None:
            said = state.guard.meet("load_state: download", details=said[0])
        for reason, _, _ in said:
            if reason:
                if brought[0]:
                    shutil.rmtree(Path(brought[0]).parent, ignore_errors=True)
                raise CheckpointError(reason, next_step="nothing was loaded on any rank")
        _, local, url = said[state.process_index - state.local_process_index]
        return Path(local), url

    def drop(self, directory: Path) -> None:
        """Say that this rank has read a directory that fetch gave; its machine's first deletes it when all have."""
        state, guard = self._state, self._state.guard
        if guard is not None:
            guard.post(f"read/{directory}/{state.process_index}", "1")
        if not state.is_local_main_process:
            return
        if guard is not None:
            readers = range(state.process_index, state.process_index + state.environment.local_world_size)
            ends = time.monotonic() + guard.deadline_s
            while time.monotonic() < ends and not all(
                guard.look([f"read/{directory}/{rank}"]) or guard.has_left(rank) for rank in readers
            ):
                time.sleep(_POLL_S)
        shutil.rmtree(directory.parent, ignore_errors=True)

    def close(self) -> None:
        """Delete the local copies, when the other ranks have uploaded what they added (or have had time to)."""
        guard = self._state.guard
        if guard is not None and self._staged:
            ranks = range(self._state.num_processes)
            last = [f"uploaded/{path}/{rank}" for path in self._staged[-1].iterdir() for rank in ranks]
            ends = time.monotonic() + _LAST_WORD_S
            while guard.look(last) is None and time.monotonic() < ends:
                time.sleep(_POLL_S)
        for path in self._staged:
            shutil.rmtree(path, ignore_errors=True)
        self._staged.clear()

    def _at_exit(self) -> None:
        """Of a script that ends without end_training()."""
        try:
            self.close()
        except (ForerunError, RuntimeError):  # the other ranks, or their store, may be gone
            for path in self._staged:
                shutil.rmtree(path, ignore_errors=True)

    def _bring(self, urls: list[str]) -> tuple[str, str]:
        for url in urls:
            storage = self._storage(url)
            chosen = (storage, "") if storage.manifest() is not None else newest([storage])
            if chosen is None:
                continue
            name = chosen[1] or url.rstrip("/").rpartition("/")[2]
            target = Path(tempfile.mkdtemp(prefix=".brought-")) / name
            try:
                chosen[0].download(target, chosen[1])
            except BaseException:
                shutil.rmtree(target.parent, ignore_errors=True)
                raise
            return str(target), f"{storage.url}/{chosen[1]}" if chosen[1] else storage.url
        raise CheckpointError(
            f"no complete checkpoint at {urls[0]}",
            allowed=f"a URL of a checkpoint ({MANIFEST} in it), or of a directory of such",
            next_step="give the URL that save_state returned",
        )
