"""What one rank is about to write: taken from the live state, copied aside where training goes on meanwhile."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ..devices import synchronize
from ..errors import CheckpointError
from ..state_parts import Part, Shard
from .disk import Disk
from .index import PartEntry, index_content
from .manifest import ManifestFile, describe_bytes, own_stem
from .tensor_file import copy_all, lay_out, write_tensors
from .tree import encode

RNG_PART = "rng"
Buffers = dict[str, torch.Tensor]
"""Host memory for copies, by the name of what is copied; kept from one save to the next."""


def state_stem(rank: int) -> str:
    """Of the files with a rank's share of the state that all ranks have together."""
    return f"state.rank{rank}"


@dataclass
class Content:
    """The content of one index and its file of tensors.

    Attributes:
        boxes: names of tensors that a strategy cut, so that each rank holds a box (perhaps an empty one).
    """

    stem: str
    parts: dict[str, PartEntry] = field(default_factory=dict)
    tensors: dict[str, Shard] = field(default_factory=dict)
    boxes: set[str] = field(default_factory=set)

    def add(self, part: Part, data: Any) -> None:
        """
        Raises:
            CheckpointError: the data hold something that could only be pickled.
        """
        names = _Names(part.name, self)
        try:
            self.parts[part.name] = PartEntry(part.kind, encode(data, part.name, names))
        except RecursionError as error:
            raise CheckpointError(
                f"{part.name} holds itself, or is nested too deep",
                allowed="plain data without circles",
                next_step="return such data from state_dict()",
            ) from error

    def copied(self, buffers: Buffers) -> "Content":
        """The same with all that this rank writes in memory of its own."""
        mine = {name: shard for name, shard in self.tensors.items() if shard.primary}
        copies = {name: _buffer(shard.local, f"{self.stem}/{name}", buffers) for name, shard in mine.items()}
        copy_all([(copies[name], shard.local.detach()) for name, shard in mine.items()])
        copied = {name: replace(shard, local=copies[name]) for name, shard in mine.items()}
        return replace(self, tensors=self.tensors | copied)

    def write(self, disk: Disk, directory: Path, *, prefix: str = "") -> list[ManifestFile]:
        """Write both files and make them safe; returns what to put into the manifest.

        Args:
            prefix: of the files' names, where they get their own later.

        Raises:
            OSError: they could not be written.
        """
        mine = {name: shard.local for name, shard in self.tensors.items() if shard.primary and _has_values(shard)}
        layout = lay_out(mine) if mine else None
        data, files = f"{self.stem}.safetensors", []
        if layout is not None:
            written = write_tensors(disk, directory / f"{prefix}{data}", mine, layout)
            files.append(replace(written, path=data))
        content = index_content(data, self.parts, self.tensors, layout)
        disk.write_file(directory / f"{prefix}{self.stem}.json", content)
        return [*files, describe_bytes(f"{self.stem}.json", content)]


@dataclass
class Snapshot:
    """One rank's contribution to a checkpoint.

    Attributes:
        state: its share of what all ranks have together; None where another rank writes all of it.
        own: what it has for itself.
    """

    state: Content | None
    own: Content

    @property
    def needed_own(self) -> tuple[str, ...]:
        """What a rank has for itself that is neither empty nor random states, for which there is a substitute."""
        return tuple(name for name, part in self.own.parts.items() if part.tree is not None and name != RNG_PART)

    @property
    def size_bytes(self) -> int:
        """Of the values that this rank writes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self._tensors())

    def copied(self, buffers: Buffers) -> "Snapshot":
        """The same, untouched by a training that goes on. `buffers` are used and grow."""
        copy = Snapshot(None if self.state is None else self.state.copied(buffers), self.own.copied(buffers))
        for device in {tensor.device for tensor in self._tensors()}:
            synchronize(device)
        return copy

    def _tensors(self) -> Iterator[torch.Tensor]:
        for content in [self.own] if self.state is None else [self.state, self.own]:
            yield from (shard.local for shard in content.tensors.values() if shard.primary)


def take(parts: Sequence[Part], saved: Mapping[str, Any], *, rank: int, replicated: bool) -> Snapshot:
    """A snapshot that still refers to the live tensors.

    Args:
        saved: what each part's save() gave.

    Raises:
        CheckpointError: a part holds something that could only be pickled.
    """
    state = Content(state_stem(rank)) if rank == 0 or not replicated else None
    own = Content(own_stem(rank))
    for part in parts:
        if part.own:
            own.add(part, saved[part.name])
        elif state is not None:
            state.add(part, saved[part.name])
    if state is not None and rank > 0:
        # Only boxes: rank 0 writes the parts, and what the ranks have alike.
        tensors = {n: s for n, s in state.tensors.items() if n in state.boxes and s.primary and _has_values(s)}
        state = Content(state.stem, {}, tensors, state.boxes)
    return Snapshot(state, own)


class _Names:
    """Gives each tensor of a part its name; one that is met again keeps the one it has."""

    def __init__(self, part: str, content: "Content") -> None:
        self._part = part
        self._tensors = content.tensors
        self._boxes = content.boxes
        self._known: dict[tuple[Any, ...], str] = {}

    def __call__(self, value: torch.Tensor | Shard, place: str) -> str:
        shard = value if isinstance(value, Shard) else Shard(value, tuple(value.shape), (0,) * value.ndim)
        identity = _identity(shard)
        if identity is not None and identity in self._known:
            return self._known[identity]
        name = self._free(place)
        self._tensors[name] = shard
        if isinstance(value, Shard):
            self._boxes.add(name)
        if identity is not None:
            self._known[identity] = name
        return name

    def _free(self, place: str) -> str:
        """Such as model_0/layer.weight for model_0['layer.weight']."""
        inner = place.removeprefix(self._part).replace("['", "[").replace("']", "]")
        base = f"{self._part}/" + inner.replace("][", "/").strip("[]")
        name, number = base, 1
        while name in self._tensors:
            number += 1
            name = f"{base}#{number}"
        return name


def _has_values(shard: Shard) -> bool:
    return shard.local.numel() > 0


def _identity(shard: Shard) -> tuple[Any, ...] | None:
    local = shard.local
    if not local.numel() or local.is_conj() or local.is_neg():
        return None
    return local.data_ptr(), local.device, local.dtype, tuple(local.shape), local.stride(), shard.offsets, shard.shape


def _buffer(source: torch.Tensor, name: str, buffers: Buffers) -> torch.Tensor:
    known = buffers.get(name)
    if known is None or known.shape != source.shape or known.dtype != source.dtype:
        known = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
        buffers[name] = known
    return known
