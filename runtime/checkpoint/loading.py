"""Loading a checkpoint into live objects: everything is read, verified and compared before anything is changed."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ForerunError
from ..seeding import derive_seed, set_seed
from ..state import PartialState
from ..state_parts import Part, StoredTensor, Wanted
from .plain import same
from .reader import CheckpointReader, PartReader
from .selection import find_checkpoint
from .snapshot import RNG_PART, Content
from .tensor_file import byte_view

_ABSENT = object()


def load(path: Path, parts: Sequence[Part], state: PartialState, *, models_by_hook: bool = False) -> Path:
    """Load all parts; all ranks together.

    Raises:
        CheckpointError: on every rank, if one of them found the checkpoint incomplete, damaged or not fitting; then
            nothing was loaded.
    """
    if state.guard is not None:
        state.guard.meet("load_state")
    error: ForerunError | OSError | None = None
    found = _Found(path, {}, None)
    try:
        found = _read(path, parts, state, models_by_hook=models_by_hook)
    except (ForerunError, OSError) as caught:
        error = caught
    _agree(error, path, state, "all read")
    failed: Exception | None = None
    try:
        for part in parts:
            if part.name in found.values:
                _load(part, found.values.pop(part.name), found.directory)
    except Exception as caught:  # whatever an object of the script raises: the other ranks must not go on alone
        failed = caught
    _agree(failed, path, state, "all loaded")
    if found.seed is not None:
        set_seed(found.seed)
    return found.directory


def matches(path: Path, parts: Sequence[Part], state: PartialState, *, replicated: bool) -> bool:
    """Whether the checkpoint equals what the parts hold, bit for bit, as far as this rank holds it."""
    held = {part.name: part.save() for part in parts}  # all of it, also where the first differs: ranks gather together
    reader = CheckpointReader(find_checkpoint(path))
    own = reader.own(state.process_index)
    has_all = replicated or state.is_main_process
    return all(_equal(part, held[part.name], own if part.own else reader, has_all or part.own) for part in parts)


def _equal(part: Part, held: Any, reader: PartReader | None, has_all: bool) -> bool:
    """Args: has_all: else this rank holds only boxes of tensors, and rank 0 the rest."""
    if reader is None or part.name not in reader.names():
        return False
    now = Content("")
    now.add(part, held)
    if has_all and now.parts[part.name].tree != reader.tree(part.name):
        return False
    stored = reader.tensors()
    for name, shard in now.tensors.items():
        if not has_all and name not in now.boxes:
            continue
        entry = stored.get(name)
        if entry is None or entry.dtype != shard.local.dtype or entry.shape != tuple(shard.shape):
            return False
        wanted = Wanted(StoredTensor(name, entry.dtype, entry.shape), shard.offsets, tuple(shard.local.shape))
        if not same(reader.read(wanted).local, shard.local):
            return False
    return True


@dataclass(frozen=True)
class _Found:
    """What is to be loaded. `seed` stands for random states that this rank did not save."""

    directory: Path
    values: dict[str, Any]
    seed: int | None


def _read(path: Path, parts: Sequence[Part], state: PartialState, *, models_by_hook: bool) -> _Found:
    directory = find_checkpoint(path)
    reader = CheckpointReader(directory)
    _require_parts(reader, parts, models_by_hook=models_by_hook)
    values = reader.read({part.name: _choose(part, reader, directory) for part in parts if not part.own})
    for part in parts:
        if part.own and part.name != RNG_PART:
            values[part.name] = _own_value(part, reader, state)
    own = reader.own(state.process_index)
    if own is not None and RNG_PART in own.names():
        return _Found(directory, values | {RNG_PART: own.part(RNG_PART)}, None)
    return _Found(directory, values, _derived_seed(reader, state))


def _own_value(part: Part, reader: CheckpointReader, state: PartialState) -> Any:
    """What this rank gets of what the former ranks had for themselves; None if there was nothing."""
    manifest = reader.manifest
    same_world = manifest.world_size == state.num_processes
    if not same_world and part.name not in manifest.needed_own:
        return None
    ranks = [state.process_index] if same_world else range(manifest.world_size)
    found = [
        own.part(part.name) if (own := reader.own(rank)) and part.name in own.names() else _ABSENT for rank in ranks
    ]
    absent = [rank for rank, value in zip(ranks, found, strict=True) if value is _ABSENT]
    if absent and part.name not in manifest.needed_own:
        return None
    if absent or (not same_world and part.merge is None):
        raise CheckpointError(
            f"{reader.directory} lies inside an accumulation window, and rank {', '.join(map(str, absent))} of "
            f"{manifest.world_size} saved nothing of it"
            if absent
            else f"{part.name} of {manifest.world_size} ranks does not go to {state.num_processes}",
            allowed="a checkpoint for which all ranks called save_state()",
            next_step="resume from a checkpoint that was saved when accelerator.sync_gradients was true",
        )
    if same_world or part.merge is None:
        return found[0]
    return part.merge(found, state.num_processes)


def _choose(part: Part, reader: CheckpointReader, directory: Path) -> Any:
    saved = reader.kind(part.name)
    if part.kind and saved and saved != part.kind:
        raise _unfit(part.name, directory, f"it is the state of {saved}, and here is {part.kind}")
    try:
        return part.choose(reader.stored(part.name))
    except CheckpointError as error:
        raise CheckpointError(
            f"{part.name} of {directory} does not fit: {error.what}", allowed=error.allowed, next_step=error.next_step
        ) from error
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unfit(part.name, directory, repr(error)) from error


def _load(part: Part, value: Any, directory: Path) -> None:
    try:
        part.load(value)
    except (RuntimeError, ValueError, KeyError, TypeError, CheckpointError) as error:
        raise _unfit(part.name, directory, str(error)) from error


def _unfit(name: str, directory: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{name} of {directory} does not fit: {why}",
        next_step="build the same model, optimizer and schedule as when it was saved",
    )


def _agree(error: Exception | None, directory: Path, state: PartialState, step: str) -> None:
    """All ranks go on, or all raise."""
    if state.guard is not None:
        said = state.guard.meet(f"load_state, {step}", details=None if error is None else str(error) or repr(error))
        failed = [(rank, words) for rank, words in enumerate(said) if words is not None]
        if failed and error is None:
            rank, words = failed[0]
            raise CheckpointError(f"rank {rank} could not load {directory}: {words}", next_step="see its log")
    if isinstance(error, OSError):
        raise CheckpointError(f"{directory} cannot be read: {error}", next_step="look at the file system") from error
    if error is not None:
        raise error


def _require_parts(reader: CheckpointReader, parts: Sequence[Part], *, models_by_hook: bool) -> None:
    wanted = [part.name for part in parts if not part.own]
    held = reader.names()
    missing = [name for name in wanted if name not in held]
    trains = any(name.startswith("optimizer_") for name in wanted)
    optional = ("scaler", "model_") if models_by_hook else ("scaler",)
    left = [name for name in held if name not in wanted and not name.startswith(optional)] if trains else []
    if missing:
        raise CheckpointError(
            f"{reader.directory} has no {', '.join(missing)}; it holds {', '.join(sorted(held))}",
            allowed="a checkpoint of the same prepared and registered objects",
            next_step="prepare the same objects as when it was saved",
        )
    if left:
        raise CheckpointError(
            f"{reader.directory} holds {', '.join(left)}, and no such object is prepared or registered here",
            allowed="the same prepared and registered objects",
            next_step="prepare and register the same objects, in the same order, before load_state()",
        )


def _derived_seed(reader: CheckpointReader, state: PartialState) -> int | None:
    """Of a rank that saved no random states: it follows from rank 0's and is another one on every rank."""
    first = reader.own(0)
    if first is None or RNG_PART not in first.names():
        return None
    seen = bytes(byte_view(first.part(RNG_PART)["torch"]))
    return derive_seed(hashlib.sha256(seen).hexdigest(), state.process_index) % 2**32
