"""Saving and loading the whole training state of a job, whether each rank holds all of it or a part."""

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, DistributedError
from ..files import write_json_atomic
from ..guard import call_site
from ..seeding import derive_seed, restore_rng_state, rng_state, set_seed
from ..state import PartialState
from .directory import find_checkpoint, replacing
from .manifest import MANIFEST, Manifest, ManifestFile, describe, read_manifest, verify
from .plain import plain, same

_LONE_DEADLINE_S = 20.0


@dataclass(frozen=True)
class Part:
    """One object of the training state; `name` is its file's stem."""

    name: str
    save: Callable[[], Any]
    load: Callable[[Any], None]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was written. `size_bytes` and `seconds` are rank 0's."""

    path: Path
    seconds: float
    size_bytes: int


class Checkpointer:
    """Rank 0 writes the state; the others add their random states.

    Args:
        replicated: each rank holds the whole state, and no rank waits for a higher one; else all gather it together.
    """

    def __init__(self, *, state: PartialState, strategy: str, replicated: bool = True) -> None:
        self._state = state
        self._strategy = strategy
        self._replicated = replicated
        self._calls: Counter[str] = Counter()

    def save(self, target: Callable[[], Path], parts: Sequence[Part], *, iteration: int, optimizer_steps: int) -> Saved:
        """Write a checkpoint. Rank 0 may do so alone if the state is replicated; the others wait for rank 0.

        Args:
            target: names the directory; asked on rank 0 alone.

        Raises:
            CheckpointError: it could not be written, on every rank that is here; the older one is intact.
            DistributedError: the state is sharded, and not all ranks came.
        """
        self.meet_if_sharded("save_state")
        guard, site = self._state.guard, call_site()
        self._calls[site] += 1
        key = f"save/{site}/{self._calls[site]}"
        if not self._state.is_main_process and guard is not None:
            if not self._replicated:
                _states(parts)  # rank 0 gathers this rank's part
            answer = json.loads(guard.fetch(key, operation="save_state", source=0))
            return self._add_own(answer)
        try:
            if guard is None:
                saved = self._write(target(), parts, iteration, optimizer_steps)
            else:
                with guard.busy():
                    saved = self._write(target(), parts, iteration, optimizer_steps)
        except CheckpointError as error:
            if guard is not None:
                guard.post(key, json.dumps({"error": str(error)}))
            raise
        if guard is not None:
            guard.post(key, json.dumps({"path": str(saved.path.resolve()), "size_bytes": saved.size_bytes}))
        return saved

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
            guard.meet(operation, deadline_s=_LONE_DEADLINE_S if self._state.is_main_process else None)
        except DistributedError as error:
            raise DistributedError(
                f"{error.what}; under strategy {self._strategy} every rank holds a part of the state",
                allowed=f"{operation} on all ranks together",
                next_step=f"call {operation} outside of `if accelerator.is_main_process`",
            ) from error

    def load(self, path: Path, parts: Sequence[Part]) -> Path:
        """Verify a checkpoint and load it into `parts`; all ranks together.

        Raises:
            CheckpointError: it is incomplete or damaged, and nothing was loaded; or a part does not fit.
        """
        if self._state.guard is not None:
            self._state.guard.meet("load_state")
        directory = find_checkpoint(path)
        states = self._read(directory, parts)
        for part in parts:
            try:
                part.load(states[part.name])
            except (RuntimeError, ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"{part.name} of {directory} does not fit: {error}",
                    next_step="build the same model, optimizer and schedule as when it was saved",
                ) from error
        self._restore_rng(directory)
        return directory

    def matches(self, path: Path, parts: Sequence[Part]) -> bool:
        """Whether a saved checkpoint equals what `parts` hold now, bit for bit; sharded state is compared on rank 0."""
        held = _states(parts)  # all of it, also where the first part differs: the ranks gather it together
        if not self._replicated and not self._state.is_main_process:
            return True
        states = self._read(find_checkpoint(path), parts)
        return all(same(states[name], state) for name, state in held)

    def _write(self, target: Path, parts: Sequence[Part], iteration: int, optimizer_steps: int) -> Saved:
        started = time.monotonic()
        states = _states(parts)
        try:
            with replacing(target) as directory:
                for name, state in [*states, (_rng_name(0), rng_state())]:
                    torch.save(state, directory / f"{name}.pt")
                manifest = Manifest(
                    iteration=iteration,
                    optimizer_steps=optimizer_steps,
                    world_size=self._state.num_processes,
                    strategy=self._strategy,
                    saved_at_s=time.time(),
                    torch=torch.__version__,
                    files=tuple(describe(file) for file in sorted(directory.iterdir())),
                )
                write_json_atomic(directory / MANIFEST, manifest.as_dict())
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"checkpoint {target} could not be written: {error}",
                next_step="make room or choose another directory; what was there before is intact",
            ) from error
        return Saved(target, time.monotonic() - started, manifest.size_bytes)

    def _add_own(self, answer: dict[str, Any]) -> Saved:
        """Put this rank's random states into the checkpoint that rank 0 has written."""
        if "error" in answer:
            raise CheckpointError(f"rank 0 could not save: {answer['error']}", next_step="see rank 0's log")
        started, path = time.monotonic(), Path(answer["path"])
        name = _rng_name(self._state.process_index)
        try:
            torch.save(rng_state(), path / f"{name}.pt")
            write_json_atomic(path / f"{name}.json", asdict(describe(path / f"{name}.pt")))
        except (OSError, RuntimeError) as error:
            raise CheckpointError(
                f"rank {self._state.process_index} could not add its random states to {path}: {error}",
                allowed="a checkpoint directory that all ranks see",
                next_step="use a shared file system, and make room on it",
            ) from error
        return Saved(path, time.monotonic() - started, answer["size_bytes"])

    def _read(self, directory: Path, parts: Sequence[Part]) -> dict[str, Any]:
        manifest = read_manifest(directory)
        assert manifest is not None, "find_checkpoint returns checkpoints alone"
        held = {Path(file.path).stem for file in manifest.files}
        missing = [part.name for part in parts if part.name not in held]
        if missing:
            raise CheckpointError(
                f"{directory} has no {', '.join(missing)}; it holds {', '.join(sorted(held))}",
                allowed="a checkpoint of the same prepared and registered objects",
                next_step="prepare the same objects as when it was saved",
            )
        verify(directory, manifest.files)
        return {part.name: read_tensors(directory / f"{part.name}.pt") for part in parts}

    def _restore_rng(self, directory: Path) -> None:
        """This rank's own states; where it saved none, ones that follow from rank 0's."""
        rank = self._state.process_index
        manifest = read_manifest(directory)
        assert manifest is not None, "load has read it"
        first = next(file for file in manifest.files if file.path == f"{_rng_name(0)}.pt")
        own = directory / f"{_rng_name(rank)}.json"
        if rank == 0:
            restore_rng_state(read_tensors(directory / first.path))
        elif own.is_file():
            verify(directory, (ManifestFile(**json.loads(own.read_bytes())),))
            restore_rng_state(read_tensors(own.with_suffix(".pt")))
        else:
            set_seed(derive_seed(first.sha256, rank) % 2**32)


def _states(parts: Sequence[Part]) -> list[tuple[str, Any]]:
    return [(part.name, plain(part.save(), part.name)) for part in parts]


def read_tensors(path: Path) -> Any:
    """Load a file of plain data onto the CPU; pickled objects are refused.

    Raises:
        CheckpointError: it holds anything else.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch.load raises many kinds (UnpicklingError, RuntimeError, EOFError, zip errors) for a foreign file.
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(
            f"{path} does not load as plain tensors: {reason}",
            allowed="files that save_state wrote",
            next_step="load another checkpoint",
        ) from error


def _rng_name(rank: int) -> str:
    return f"rng.rank{rank}"
