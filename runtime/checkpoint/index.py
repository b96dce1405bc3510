"""The index beside a file of tensors: what parts there are, and which box of which tensor lies where."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from ..state_parts import Shard
from .manifest import ManifestFile
from .tensor_file import Layout
from .tree import dtype_name, dtype_named

INDEX_FORMAT = "forerun-checkpoint-index"
INDEX_VERSION = 2


@dataclass(frozen=True)
class Box:
    """A box of a tensor, and where it lies in the file."""

    file: ManifestFile
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    begin: int
    end: int


@dataclass
class TensorEntry:
    """A whole tensor and the boxes that are stored of it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    boxes: list[Box] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        stored = sum(_numel(box.lengths) for box in self.boxes)
        return stored == _numel(self.shape)


@dataclass(frozen=True)
class PartEntry:
    """The data of one part, as tree.encode gave it."""

    kind: str
    tree: Any


@dataclass
class Index:
    """All parts of a checkpoint (or of one rank's own), with the boxes of all ranks."""

    parts: dict[str, PartEntry] = field(default_factory=dict)
    tensors: dict[str, TensorEntry] = field(default_factory=dict)


def index_content(
    data: str, parts: Mapping[str, PartEntry], tensors: Mapping[str, Shard], layout: Layout | None
) -> bytes:
    """The index file's content.

    Args:
        data: name of the file of tensors.
        tensors: those that the parts name; of those in `layout`, this rank wrote the box.
    """
    described = {}
    for name, shard in tensors.items():
        entry: dict[str, Any] = {"dtype": dtype_name(shard.local.dtype), "shape": list(shard.shape)}
        if layout is not None and name in layout.slabs:
            slab = layout.slabs[name]
            entry |= {
                "offsets": list(shard.offsets),
                "lengths": list(shard.local.shape),
                "bytes": [slab.begin, slab.end],
            }
        described[name] = entry
    content = {
        "format": INDEX_FORMAT,
        "schema_version": INDEX_VERSION,
        "data": data if layout is not None else None,
        "parts": {name: {"kind": part.kind, "tree": part.tree} for name, part in parts.items()},
        "tensors": described,
    }
    return (json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n").encode()


def read_into(index: Index, directory: Path, name: str, files: Mapping[str, ManifestFile]) -> None:
    """Add what one index file says.

    Raises:
        CheckpointError: it is damaged, of another format, or names a file that the manifest does not.
    """
    path = directory / name
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != INDEX_FORMAT or content["schema_version"] != INDEX_VERSION:
            raise ValueError(f"format {content['format']!r}, version {content['schema_version']!r}")
        for part, entry in content["parts"].items():
            index.parts[part] = PartEntry(str(entry["kind"]), entry["tree"])
        data = None if content["data"] is None else files[content["data"]]
        for tensor, entry in content["tensors"].items():
            _add(index, tensor, entry, data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is no index of a checkpoint: {error!r}",
            allowed=f"{INDEX_FORMAT} of version {INDEX_VERSION}",
            next_step="load another checkpoint",
        ) from error


def _add(index: Index, name: str, entry: Mapping[str, Any], data: ManifestFile | None) -> None:
    dtype, shape = dtype_named(entry["dtype"]), _numbers(entry["shape"])
    known = index.tensors.setdefault(name, TensorEntry(dtype, shape))
    if known.dtype != dtype or known.shape != shape:
        raise ValueError(f"{name} is {known.dtype} {list(known.shape)} on one rank, {dtype} {list(shape)} on another")
    if "bytes" not in entry:
        return
    if data is None:
        raise ValueError(f"{name} without a file")
    offsets, lengths = _numbers(entry["offsets"]), _numbers(entry["lengths"])
    begin, end = _numbers(entry["bytes"])
    inside = len(offsets) == len(lengths) == len(shape)
    inside = inside and all(o + n <= s for o, n, s in zip(offsets, lengths, shape, strict=True))
    if not inside or end - begin != _numel(lengths) * dtype.itemsize or end > data.size_bytes:
        raise ValueError(f"the box of {name} does not fit")
    known.boxes.append(Box(data, offsets, lengths, begin, end))


def _numbers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise ValueError(f"{values!r} are no sizes")
    return tuple(values)


def _numel(lengths: tuple[int, ...]) -> int:
    result = 1
    for length in lengths:
        result *= length
    return result
