"""Reading a checkpoint: its parts with whole tensors, or with the boxes that are wanted. Nothing is unpickled.

Every byte that is used is compared with the manifest's sums first.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..state_parts import Shard, StoredTensor, Wanted
from .index import Box, Index, TensorEntry, read_into
from .manifest import MANIFEST, Manifest, ManifestFile, damaged, own_stem, read_manifest, read_own_manifest, verify
from .tensor_file import Request, byte_view, read_requests
from .tree import Composed, decode

_STATE_INDEX = re.compile(r"state\.rank\d+\.json")


class PartReader:
    """The parts of one index: of the state that the ranks share, or of what one rank has for itself."""

    def __init__(self, directory: Path, files: Iterable[ManifestFile], *, indexes: Iterable[str]) -> None:
        """
        Raises:
            CheckpointError: an index is missing or damaged, or a tensor is not stored whole.
        """
        self._directory = directory
        self._index = Index()
        by_name = {file.path: file for file in files}
        wanted = list(indexes)
        absent = [f"{name} is missing" for name in wanted if name not in by_name]
        if absent:
            raise damaged(directory, absent)
        verify(directory, [by_name[name] for name in wanted])
        for name in wanted:
            read_into(self._index, directory, name, by_name)
        torn = [name for name, entry in self._index.tensors.items() if not entry.is_whole]
        if torn:
            raise damaged(directory, [f"of {name} a part is missing" for name in torn[:5]])

    def names(self) -> list[str]:
        return list(self._index.parts)

    def kind(self, part: str) -> str:
        """What was saved, such as an optimizer's class; empty if nobody said."""
        return self._index.parts[part].kind

    def tree(self, part: str) -> Any:
        """The part's data as the index has them, JSON."""
        return self._index.parts[part].tree

    def tensors(self) -> dict[str, TensorEntry]:
        """Every stored tensor by its name, such as "model_0/layer.weight"."""
        return dict(self._index.tensors)

    def stored(self, part: str) -> Any:
        """The part's data with a StoredTensor in place of each tensor."""
        return decode(self._index.parts[part].tree, self._stored)

    def read(self, data: Any) -> Any:
        """The same data with tensors for its StoredTensors, Shards for its Wanted. A name that occurs twice is one.

        Raises:
            CheckpointError: a file is damaged.
        """
        leaves: dict[StoredTensor | Wanted, torch.Tensor] = {}
        _each(data, lambda leaf: leaves.setdefault(leaf, _empty(leaf)))
        self._fill(leaves)
        return _put(data, leaves)

    def part(self, name: str) -> Any:
        """A part's data with whole tensors."""
        return self.read(self.stored(name))

    def _stored(self, name: str) -> StoredTensor:
        entry = self._index.tensors[name]
        return StoredTensor(name, entry.dtype, entry.shape)

    def _fill(self, leaves: Mapping[StoredTensor | Wanted, torch.Tensor]) -> None:
        requests: dict[str, list[Request]] = {}
        files: dict[str, ManifestFile] = {}
        afterwards: list[Callable[[], None]] = []
        for leaf, target in leaves.items():
            stored, offsets = (leaf.stored, leaf.offsets) if isinstance(leaf, Wanted) else (leaf, (0,) * target.ndim)
            for box in self._index.tensors[stored.name].boxes:
                found = _overlap(box, offsets, target, afterwards)
                if found is not None:
                    files[box.file.path] = box.file
                    requests.setdefault(box.file.path, []).append(found)
        for name, wanted in requests.items():
            read_requests(self._directory, files[name], wanted)
        for put in afterwards:
            put()


class CheckpointReader(PartReader):
    """A complete checkpoint.

    Attributes:
        manifest: what it says of itself.
    """

    def __init__(self, directory: Path) -> None:
        """
        Raises:
            CheckpointError: it is none, of another format, or its indexes are damaged.
        """
        manifest = read_manifest(directory)
        if manifest is None:
            raise CheckpointError(f"{directory} is no checkpoint", allowed=f"a directory with a {MANIFEST} of ours")
        self.manifest: Manifest = manifest
        self.directory = directory
        names = [file.path for file in manifest.files if _STATE_INDEX.fullmatch(file.path)]
        super().__init__(directory, manifest.files, indexes=names or ["state.rank0.json"])

    def own(self, rank: int) -> PartReader | None:
        """What a rank has for itself (its random states, say); None if it saved none.

        Raises:
            CheckpointError: it is damaged.
        """
        files = read_own_manifest(self.directory, self.manifest, rank)
        return None if files is None else PartReader(self.directory, files, indexes=[f"{own_stem(rank)}.json"])


def read_parts(directory: Path, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Parts of a checkpoint by name (model_0, optimizer_0, scheduler_0, ...) with whole tensors on the CPU.

    Raises:
        CheckpointError: the checkpoint is damaged, or has no such part.
    """
    reader = CheckpointReader(directory)
    chosen = list(reader.names() if names is None else names)
    missing = [name for name in chosen if name not in reader.names()]
    if missing:
        raise CheckpointError(
            f"{directory} has no {', '.join(missing)}; it holds {', '.join(sorted(reader.names()))}",
            allowed="parts that were saved",
        )
    return dict(reader.read({name: reader.stored(name) for name in chosen}))


def _empty(leaf: StoredTensor | Wanted) -> torch.Tensor:
    if isinstance(leaf, Wanted):
        return torch.empty(leaf.lengths, dtype=leaf.stored.dtype)
    return torch.empty(leaf.shape, dtype=leaf.dtype)


def _overlap(
    box: Box, offsets: tuple[int, ...], target: torch.Tensor, afterwards: list[Callable[[], None]]
) -> Request | None:
    """What to read of a stored box for the box `target` at `offsets`; None if they have nothing in common.

    Where the common values do not lie one after another in both, they are put in place afterwards.
    """
    if not target.numel():
        return None
    lows = [max(o, p) for o, p in zip(box.offsets, offsets, strict=True)]
    highs = [min(o + n, p + m) for o, n, p, m in zip(box.offsets, box.lengths, offsets, target.shape, strict=True)]
    if any(high <= low for low, high in zip(lows, highs, strict=True)):
        return None
    width = target.element_size()
    if not target.ndim:
        return Request(box.begin, byte_view(target))
    inner = range(1, target.ndim)
    row = width
    for axis in inner:
        row *= box.lengths[axis]
    begin = box.begin + (lows[0] - box.offsets[0]) * row
    place = target[tuple(slice(low - o, high - o) for low, high, o in zip(lows, highs, offsets, strict=True))]
    full = all(lows[a] == box.offsets[a] and highs[a] - lows[a] == box.lengths[a] for a in inner)
    if full and place.is_contiguous():
        return Request(begin, byte_view(place))
    rows = torch.empty((highs[0] - lows[0], *box.lengths[1:]), dtype=target.dtype)
    cut = rows[(slice(None), *(slice(lows[a] - box.offsets[a], highs[a] - box.offsets[a]) for a in inner))]
    afterwards.append(lambda: _put_in(place, cut))
    return Request(begin, byte_view(rows))


def _put_in(place: torch.Tensor, values: torch.Tensor) -> None:
    place.copy_(values)


def _each(data: Any, visit: Callable[[Any], Any]) -> None:
    if isinstance(data, (StoredTensor, Wanted)):
        visit(data)
    elif isinstance(data, Composed):
        _each(data.parts, visit)
    elif isinstance(data, Mapping):
        for item in data.values():
            _each(item, visit)
    elif isinstance(data, (list, tuple)):
        for item in data:
            _each(item, visit)


def _put(data: Any, leaves: Mapping[StoredTensor | Wanted, torch.Tensor]) -> Any:
    if isinstance(data, StoredTensor):
        return leaves[data]
    if isinstance(data, Wanted):
        return Shard(leaves[data], data.stored.shape, data.offsets)
    if isinstance(data, Composed):
        return data.compose(_put(data.parts, leaves))
    if isinstance(data, defaultdict):
        return defaultdict(data.default_factory, {key: _put(item, leaves) for key, item in data.items()})
    if isinstance(data, Mapping):
        return type(data)({key: _put(item, leaves) for key, item in data.items()})  # type: ignore[call-arg]  # dict and its kin
    if isinstance(data, list):
        return [_put(item, leaves) for item in data]
    if type(data) is tuple:
        return tuple(_put(item, leaves) for item in data)
    return data
