"""Saving and loading the whole training state of a job, whether each rank holds all of it or a part."""

import atexit
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, DistributedError, ForerunError
from ..guard import call_site
from ..seeding import restore_rng_state, rng_state
from ..state import PartialState
from ..state_parts import Part
from . import loading
from .background import BackgroundSave, Digester
from .directory import Replacement, unwritable
from .disk import Disk
from .manifest import MANIFEST, Manifest, ManifestFile, as_json, describe, own_stem, read_manifest
from .snapshot import RNG_PART, Buffers, Snapshot, take
from .versions import versions

LONE_DEADLINE_S = 20.0

RNG = Part(RNG_PART, rng_state, restore_rng_state, own=True)

Hook = Callable[[Sequence[Part], Path], Sequence[Part]]
"""Called with the parts and the directory that is being written; returns the parts to save."""


@dataclass(frozen=True)
class Facts:
    """What a manifest says beside the files."""

    iteration: int
    optimizer_steps: int
    plan_digest: str | None = None


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written. `size_bytes` and `seconds` are rank 0's; `note` tells of remains it replaced."""

    path: Path
    seconds: float
    size_bytes: int
    note: str = ""


@dataclass(frozen=True)
class _Call:
    """One save_state, by the same key on every rank."""

    key: str
    site: str
    started_s: float
    parts: Sequence[Part]
    hook: Hook | None
    in_background: bool


class Checkpointer:
    """Where each rank holds the whole state, rank 0 writes it, and the others add what they have for themselves.
    Where each holds a part, each writes its own, and rank 0 makes a checkpoint of it.

    Args:
        replicated: each rank holds the whole state, and no rank waits for a higher one.
        disk: makes every change of the file system.
    """

    def __init__(
        self, *, state: PartialState, strategy: str, replicated: bool = True, disk: Disk | None = None
    ) -> None:
        self._state = state
        self._strategy = strategy
        self._replicated = replicated
        self._disk = disk or Disk()
        self._calls: Counter[str] = Counter()
        self._background = BackgroundSave()
        self._digester = Digester(self._disk)
        self._buffers: Buffers = {}
        self._watches_exit = False

    def save(
        self,
        target: Callable[[], Path],
        parts: Sequence[Part],
        facts: Callable[[], Facts],
        *,
        hook: Hook | None = None,
        done: Callable[[Saved], None] | None = None,
        in_background: bool = False,
    ) -> Path:
        """Write a checkpoint. Rank 0 may do so alone if the state is replicated; the others wait for rank 0.

        Args:
            target: names the directory; asked on rank 0 alone, before `facts`.
            hook: called on every rank, on those that only add their own after the checkpoint is there.
            done: called once it is complete, on every rank that is here.
            in_background: return as soon as the state is copied; the rest goes on beside the training. Errors come
                with the next save or load, or with finish().

        Returns:
            The directory's path.

        Raises:
            CheckpointError: it could not be written, on every rank that is here; the older one is intact.
            DistributedError: the state is sharded, and not all ranks came.
        """
        self.finish()
        self.meet_if_sharded("save_state")
        site = call_site()
        # Another Accelerator of this process may save at the same place too.
        calls = self._calls if self._state.guard is None else self._state.guard.calls
        calls[site] += 1
        call = _Call(f"save/{site}/{calls[site]}", site, time.monotonic(), [*parts, RNG], hook, in_background)
        if self._state.is_main_process:
            path, work = self._begin_first(call, target, facts)
        elif self._replicated:
            path, work = self._begin_adding(call)
        else:
            path, work = self._begin_share(call)

        def whole() -> None:
            saved = work()
            if done is not None:
                done(saved)

        if not self._watches_exit:
            self._watches_exit = True
            atexit.register(self._at_exit)
        if in_background:
            self._background.start(whole)
        else:
            whole()
        return path

    def finish(self) -> None:
        """Wait for the save in the background.

        Raises:
            CheckpointError, DistributedError: it failed.
        """
        self._background.finish()

    def close(self, *, digests: bool = True) -> None:
        """Finish, and let go of the memory for copies.

        Args:
            digests: wait for the SHA-256 digests too.
        """
        try:
            self.finish()
        finally:
            self._buffers.clear()
            if digests:
                self._digester.finish()
            else:
                self._digester.halt()

    def _at_exit(self) -> None:
        """The script has ended without end_training(): a save that failed must not look like success."""
        try:
            self.close()
        except ForerunError as error:
            print(f"forerun: {error}", file=sys.stderr)  # noqa: T201  # nobody is left to catch it
            with suppress(Exception):
                if self._state.guard is not None:
                    self._state.guard.leave()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)

    def let_go(self, directory: Path) -> None:
        """Nothing in the background touches this directory from now on."""
        self._digester.leave(directory)

    def meet_if_sharded(self, operation: str) -> None:
        """Make sure that all ranks come to gather sharded state.

        Raises:
            DistributedError: one did not. Rank 0 finds that out in seconds: ranks that share every forward cannot be
                far behind it.
        """
        guard = self._state.guard
        if self._replicated or guard is None:
            return
        try:
            guard.meet(operation, deadline_s=LONE_DEADLINE_S if self._state.is_main_process else None)
        except DistributedError as error:
            raise DistributedError(
                f"{error.what}; under strategy {self._strategy} every rank holds a part of the state",
                allowed=f"{operation} on all ranks together",
                next_step=f"call {operation} outside of `if accelerator.is_main_process`",
            ) from error

    def load(self, path: Path, parts: Sequence[Part], *, models_by_hook: bool = False) -> Path:
        """Verify a checkpoint and load it into `parts`; all ranks together.

        Args:
            models_by_hook: a hook may have loaded models that the checkpoint holds.

        Raises:
            CheckpointError: it is incomplete or damaged, or does not fit; then nothing was loaded, on any rank.
        """
        self.finish()
        return loading.load(path, [*parts, RNG], self._state, models_by_hook=models_by_hook)

    def matches(self, path: Path, parts: Sequence[Part]) -> bool:
        """Whether a saved checkpoint equals what this rank holds now, bit for bit."""
        self.finish()
        return loading.matches(path, parts, self._state, replicated=self._replicated)

    def _begin_first(
        self, call: _Call, target: Callable[[], Path], facts: Callable[[], Facts]
    ) -> tuple[Path, Callable[[], Saved]]:
        replacement: Replacement | None = None
        try:
            path = target()
            known = facts()
            with self._described(path):
                replacement = Replacement(path, disk=self._disk)
            self._post(call, "begin", path=str(path.absolute()), directory=str(replacement.directory.absolute()))
            snapshot = self._snapshot(call, call.parts, replacement.directory)
        except BaseException as error:
            self._give_up(call, replacement, error)
            raise
        opened = replacement
        return path, lambda: self._write_first(call, known, opened, snapshot)

    def _write_first(self, call: _Call, facts: Facts, replacement: Replacement, snapshot: Snapshot) -> Saved:
        try:
            with self._busy(), self._described(replacement.target, snapshot):
                files = self._write(snapshot, replacement.directory) + self._files_of_others(call)
                files += self._files_of_hooks(replacement.directory, files)
                manifest = self._manifest(facts, files, snapshot.needed_own)
                self._disk.write_file(replacement.directory / MANIFEST, manifest.as_json())
                self._digester.leave(replacement.target)
                replacement.commit()
        except BaseException as error:
            self._give_up(call, replacement, error)
            raise
        self._post(call, "end", save_id=manifest.save_id, size_bytes=manifest.size_bytes)
        self._digester.start(replacement.target)
        seconds = time.monotonic() - call.started_s
        return Saved(replacement.target, seconds, manifest.size_bytes, replacement.note)

    def _give_up(self, call: _Call, replacement: Replacement | None, error: BaseException) -> None:
        """Tell the others, and remove the directory when none of them writes into it any more."""
        self._post(call, "begin" if replacement is None else "end", error=_words(error))
        if replacement is None:
            return
        for rank in range(1, 1 if self._replicated else self._state.num_processes):
            with suppress(ForerunError):
                self._fetch(call, f"files/{rank}", source=rank)
        replacement.abandon()

    def _begin_adding(self, call: _Call) -> tuple[Path, Callable[[], Saved]]:
        snapshot = self._snapshot(replace(call, hook=None), [part for part in call.parts if part.own], Path())
        path = Path(self._fetch(call, "begin")["path"])
        return path, lambda: self._add_own(call, path, snapshot)

    def _begin_share(self, call: _Call) -> tuple[Path, Callable[[], Saved]]:
        begun = self._fetch(call, "begin")
        path, directory = Path(begun["path"]), Path(begun["directory"])
        try:
            snapshot = self._snapshot(call, call.parts, directory)
        except BaseException as error:
            self._post(call, f"files/{self._state.process_index}", error=_words(error))
            raise
        return path, lambda: self._write_share(call, path, directory, snapshot)

    def _write_share(self, call: _Call, path: Path, directory: Path, snapshot: Snapshot) -> Saved:
        step = f"files/{self._state.process_index}"
        try:
            with self._busy(), self._described(path, snapshot):
                files = self._write(snapshot, directory)
        except BaseException as error:
            self._post(call, step, error=_words(error))
            raise
        self._post(call, step, files=[asdict(file) for file in files])
        answer = self._fetch(call, "end")
        return Saved(path, time.monotonic() - call.started_s, answer["size_bytes"])

    def _add_own(self, call: _Call, path: Path, snapshot: Snapshot) -> Saved:
        """Put what this rank has for itself into the checkpoint that rank 0 has written."""
        answer = self._fetch(call, "end")
        rank = self._state.process_index
        prefix = f".{answer['save_id']}."
        try:
            files = snapshot.own.write(self._disk, path, prefix=prefix)
            for file in files:
                self._disk.rename(path / f"{prefix}{file.path}", path / file.path)
            content = as_json({"save_id": answer["save_id"], "files": [asdict(file) for file in files]})
            self._disk.replace_file(path / f"{own_stem(rank)}.{MANIFEST}", content)
        except OSError as error:
            for leftover in path.glob(f"{prefix}{own_stem(rank)}.*"):
                leftover.unlink(missing_ok=True)
            current = read_manifest(path)
            if current is None or current.save_id == answer["save_id"]:
                raise CheckpointError(
                    f"rank {rank} could not add its random states to {path}: {error}",
                    allowed="a checkpoint directory that all ranks see",
                    next_step="use a shared file system, and make room on it",
                ) from error
            # Rank 0 has already replaced this checkpoint by its next one.
        if call.hook is not None:
            call.hook(call.parts, path)
        return Saved(path, time.monotonic() - call.started_s, answer["size_bytes"])

    def _snapshot(self, call: _Call, parts: Sequence[Part], directory: Path) -> Snapshot:
        if call.hook is not None:
            parts = call.hook(parts, directory)
        saved = {part.name: part.save() for part in parts}
        snapshot = take(parts, saved, rank=self._state.process_index, replicated=self._replicated)
        return snapshot.copied(self._buffers) if call.in_background else snapshot

    def _write(self, snapshot: Snapshot, directory: Path) -> list[ManifestFile]:
        files = [] if snapshot.state is None else snapshot.state.write(self._disk, directory)
        return files + snapshot.own.write(self._disk, directory)

    def _files_of_others(self, call: _Call) -> list[ManifestFile]:
        if self._replicated:
            return []
        answers = [self._fetch(call, f"files/{rank}", source=rank) for rank in range(1, self._state.num_processes)]
        return [ManifestFile(**file) for answer in answers for file in answer["files"]]

    def _files_of_hooks(self, directory: Path, known: Sequence[ManifestFile]) -> list[ManifestFile]:
        """What hooks of the script wrote beside ours; it is made safe here."""
        names = {file.path for file in known}
        found = []
        for path in sorted(directory.rglob("*")):
            name = path.relative_to(directory).as_posix()
            if path.is_dir():
                self._disk.fsync_directory(path)
            elif path.is_file() and name not in names:
                self._disk.fsync_file(path)
                found.append(replace(describe(path), path=name))
        return found

    def _manifest(self, facts: Facts, files: Sequence[ManifestFile], needed_own: tuple[str, ...]) -> Manifest:
        return Manifest(
            save_id=secrets.token_hex(8),
            iteration=facts.iteration,
            optimizer_steps=facts.optimizer_steps,
            world_size=self._state.num_processes,
            strategy=self._strategy,
            replicated=self._replicated,
            saved_at_s=time.time(),
            needed_own=needed_own,
            plan_digest=facts.plan_digest,
            versions=versions(),
            files=tuple(files),
        )

    def _busy(self) -> AbstractContextManager[None]:
        guard = self._state.guard
        return nullcontext() if guard is None else guard.busy()

    @contextmanager
    def _described(self, target: Path, snapshot: Snapshot | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise unwritable(target, error, needed_bytes=0 if snapshot is None else snapshot.size_bytes) from error

    def _post(self, call: _Call, step: str, **values: Any) -> None:
        guard = self._state.guard
        if guard is not None:
            guard.post(f"{call.key}/{step}", json.dumps(values))

    def _fetch(self, call: _Call, step: str, *, source: int = 0) -> dict[str, Any]:
        """What another rank posts.

        Raises:
            CheckpointError: it could not do its part.
            DistributedError: it did not come.
        """
        guard = self._state.guard
        assert guard is not None, "there is another rank"
        operation = f"save_state (called at {call.site})" if call.in_background else "save_state"
        answer: dict[str, Any] = json.loads(guard.fetch(f"{call.key}/{step}", operation=operation, source=source))
        if "error" in answer:
            raise CheckpointError(
                f"rank {source} could not save: {answer['error']}", next_step=f"see rank {source}'s log"
            )
        return answer


def _words(error: BaseException) -> str:
    return str(error) if isinstance(error, ForerunError) else f"{type(error).__name__}: {error}"
