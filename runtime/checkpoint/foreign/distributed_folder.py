"""Folders of torch.distributed.checkpoint, read tensor by tensor without unpickling what they name."""

import pickle
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointError
from ..weights import Weight
from .plain_file import load_plain

METADATA = ".metadata"

_CLASSES = frozenset(
    {
        ("torch", "Size"),
        ("torch", "device"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
        ("pathlib", "PurePosixPath"),
        ("pathlib._local", "PosixPath"),
        ("builtins", "set"),
        ("builtins", "frozenset"),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch.distributed.checkpoint.filesystem", "_StoragePrefix"),
        ("torch.distributed.checkpoint.filesystem", "SerializationFormat"),
    }
    | {
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    }
)


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes that such a folder's metadata needs, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) in _CLASSES or is_dtype:
            return super().find_class(module, name)
        raise CheckpointError(
            f"{METADATA} names {module}.{name}, which no checkpoint needs; it was not loaded",
            allowed="what torch.distributed.checkpoint writes",
            next_step="do not use this folder, unless you know where it comes from",
        )


class DistributedFolder:
    """One folder with a .metadata file.

    Raises:
        CheckpointError: its metadata is missing, damaged, or names anything foreign.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            with (directory / METADATA).open("rb") as handle:
                metadata = _MetadataUnpickler(handle).load()
            self._entries: dict[str, Any] = dict(metadata.state_dict_metadata)
            self._paths: dict[str, tuple[Any, ...]] = dict(metadata.planner_data or {})
            self._pieces: dict[str, list[tuple[Any, Any]]] = defaultdict(list)
            for index, info in metadata.storage_data.items():
                self._pieces[index.fqn].append((index, info))
        except FileNotFoundError as error:
            raise CheckpointError(
                f"{directory} has no {METADATA}: the save did not end, or it is no such folder",
                next_step="give the folder that torch.distributed.checkpoint wrote",
            ) from error
        except (EOFError, pickle.UnpicklingError, AttributeError, TypeError, ValueError, IndexError) as error:
            raise CheckpointError(
                f"{directory / METADATA} is damaged: {error}", next_step="take another checkpoint"
            ) from error

    def weights(self) -> list[Weight]:
        """Its tensors, each read when asked for."""
        return [
            Weight(name, entry.properties.dtype, tuple(entry.size), partial(self._tensor, name))
            for name, entry in self._entries.items()
            if hasattr(entry, "chunks")
        ]

    def nested(self) -> dict[Any, Any]:
        """Everything in it, in the dicts and lists that were saved."""
        root: dict[Any, Any] = {}
        for name, entry in self._entries.items():
            path = self._paths.get(name, (name,))
            place = root
            for key in path[:-1]:
                place = place.setdefault(key, {})
            place[path[-1]] = self._tensor(name) if hasattr(entry, "chunks") else self._object(name)
        return root

    def _tensor(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        whole = torch.empty(tuple(entry.size), dtype=entry.properties.dtype)
        filled = 0
        sizes = {tuple(chunk.offsets): tuple(chunk.sizes) for chunk in entry.chunks}
        for index, piece in self._read(name):
            offsets = tuple(index.offset) if index.offset is not None else (0,) * whole.dim()
            part = load_plain(piece, place=f"{name} of {self._directory}")
            if not isinstance(part, torch.Tensor) or tuple(part.shape) != sizes.get(offsets, tuple(whole.shape)):
                raise self._damaged(name, "a piece has another shape than its metadata says")
            region = tuple(slice(start, start + size) for start, size in zip(offsets, part.shape, strict=True))
            if whole[region].shape != part.shape:
                raise self._damaged(name, "a piece lies outside of the tensor")
            whole[region] = part
            filled += part.numel()
        if filled != whole.numel():
            raise self._damaged(name, f"its pieces have {filled} elements, not {whole.numel()}")
        return whole

    def _object(self, name: str) -> Any:
        pieces = list(self._read(name))
        if len(pieces) != 1:
            raise self._damaged(name, f"it has {len(pieces)} pieces")
        return load_plain(pieces[0][1], place=f"{name} of {self._directory}")

    def _read(self, name: str) -> Iterator[tuple[Any, bytes]]:
        for index, info in self._pieces[name]:
            if getattr(info, "transform_descriptors", None):
                raise self._damaged(name, f"it is stored in a form that is not read: {info.transform_descriptors}")
            if Path(info.relative_path).name != str(info.relative_path):
                raise self._damaged(name, f"it is said to lie in {info.relative_path!r}, outside of the folder")
            try:
                with (self._directory / info.relative_path).open("rb") as handle:
                    handle.seek(info.offset)
                    piece = handle.read(info.length)
            except OSError as error:
                raise self._damaged(name, f"{info.relative_path}: {error.strerror}") from error
            if len(piece) != info.length:
                raise self._damaged(name, f"{info.relative_path} is cut")
            yield index, piece

    def _damaged(self, name: str, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._directory}: {name} cannot be read: {reason}",
            allowed="the files as they were written",
            next_step="take another checkpoint",
        )
