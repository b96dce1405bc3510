"""Answers: does this checkpoint load here, as tensors and nothing more; if not, why."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import pickle
import site
import struct
import sys
import zlib
from typing import Any

MANIFEST = "manifest.json"
FORMAT = "forerun-checkpoint"
SCHEMA_VERSION = 2
_TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
_HEADER_LIMIT = 100 * 2**20


class Problem(Exception):
    """The checkpoint is damaged, incomplete or missing."""


class Foreign(Exception):
    """The file is whole but holds objects that only unpickling would bring back."""


def main() -> None:
    answer_to = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever an import prints must not mix with the answer
    path = json.load(sys.stdin)["path"]
    if sys.prefix == sys.base_prefix and os.path.isdir(site.getusersitepackages()):
        site.addsitedir(site.getusersitepackages())
    try:
        num_tensors = _directory(path) if os.path.isdir(path) else _file(path)
        problem = None if num_tensors else "it loads, but holds no tensor"
    except (Problem, Foreign) as error:
        problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"[:500]
    answer_to.write("\n@@forerun-answer " + json.dumps({"problem": problem}) + "\n")
    answer_to.flush()
    os._exit(0)


def _import_torch() -> Any:
    """The asked interpreter's torch; by name, since nothing in this project's tools may import it."""
    return importlib.import_module("torch")


def _file(path: str) -> int:
    """Number of tensors in one file."""
    if not os.path.exists(path):
        raise Problem("it does not exist")
    if os.path.getsize(path) == 0:
        raise Problem(f"{os.path.basename(path)} is empty")
    return _safetensors(path) if path.endswith(".safetensors") else _torch_file(path)


def _safetensors(path: str) -> int:
    """The format needs no package: a length, a JSON header, then exactly the bytes that the header names."""
    name = os.path.basename(path)
    size = os.path.getsize(path)
    with open(path, "rb") as handle:
        first = handle.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
        if not 0 < length <= min(_HEADER_LIMIT, size - 8):
            raise Problem(f"{name} is no whole safetensors file: its header is cut or too long")
        try:
            header = json.loads(handle.read(length))
        except ValueError as error:
            raise Problem(f"{name} is no safetensors file: {error}") from error
    tensors = {key: value for key, value in header.items() if key != "__metadata__"}
    end = max((value["data_offsets"][1] for value in tensors.values()), default=0)
    if 8 + length + end != size:
        raise Problem(f"{name} should have {8 + length + end} bytes and has {size}")
    return len(tensors)


def _torch_file(path: str) -> int:
    torch = _import_torch()

    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "weights_only" in str(error):
            reason = next((line for line in str(error).splitlines() if "GLOBAL" in line), "it holds objects")
            text = f"{os.path.basename(path)} holds more than tensors (weights_only refuses it): {reason.strip()}"
            raise Foreign(text[:400]) from error
        raise Problem(f"{os.path.basename(path)} is damaged: {error}"[:400]) from error
    except Exception as error:
        raise Problem(f"{os.path.basename(path)} is damaged: {type(error).__name__}: {error}"[:400]) from error
    return _count(data)


def _count(value: Any) -> int:
    torch = _import_torch()

    if isinstance(value, torch.Tensor):
        return 1
    if isinstance(value, dict):
        return sum(map(_count, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_count, value))
    return 0


def _directory(path: str) -> int:
    names = sorted(os.listdir(path))
    if not names:
        raise Problem("the directory is empty")
    if MANIFEST in names:
        _check_manifest(path)
    if ".metadata" in names:
        return _distributed(path)
    if any(name.endswith(".index.json") for name in names):
        _check_indexes(path, names)
    num_tensors, foreign = 0, ""
    for name in names:
        inner = os.path.join(path, name)
        try:
            if os.path.isdir(inner) and not name.startswith(".") and os.listdir(inner):
                num_tensors += _directory_below(inner)
            elif name.endswith((".safetensors", *_TORCH_SUFFIXES)):
                num_tensors += _file(inner)
        except Foreign as error:
            foreign = foreign or str(error)
    if not num_tensors and foreign:
        raise Foreign(foreign)
    return num_tensors


def _directory_below(path: str) -> int:
    names = os.listdir(path)
    wanted = (".safetensors", ".distcp", *_TORCH_SUFFIXES)
    if ".metadata" in names or any(name.endswith(wanted) for name in names):
        return _directory(path)
    return 0


def _check_manifest(path: str) -> None:
    """Our runtime's checkpoint: every file that the manifest names is there, with its size and its sums."""
    try:
        with open(os.path.join(path, MANIFEST), encoding="utf-8") as handle:
            manifest = json.load(handle)
    except ValueError as error:
        raise Problem(f"{MANIFEST} is no JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return  # somebody else's
    if manifest.get("schema_version") != SCHEMA_VERSION:
        raise Problem(f"it has checkpoint schema {manifest.get('schema_version')!r}, not {SCHEMA_VERSION}")
    try:
        files = [(entry["path"], entry["size_bytes"], entry["crc32"], entry["sha256"]) for entry in manifest["files"]]
    except (KeyError, TypeError) as error:
        raise Problem(f"{MANIFEST} is damaged: {error!r}") from error
    if not files:
        raise Problem(f"{MANIFEST} names no file")
    for name, size, sums, digest in files:
        inner = os.path.join(path, name)
        if not os.path.isfile(inner):
            raise Problem(f"{name} is missing")
        if os.path.getsize(inner) != size:
            raise Problem(f"{name} should have {size} bytes and has {os.path.getsize(inner)}")
        found_sums, found_digest = _sums_and_digest(inner, with_digest=digest is not None)
        if found_sums != sums or found_digest != digest:
            what = "CRC-32" if found_sums != sums else "digest"
            raise Problem(f"{name} is not the file that the manifest names: its {what} differs")


def _sums_and_digest(path: str, *, with_digest: bool) -> tuple[str, str | None]:
    """CRC-32 of each MiB in hexadecimal digits, and SHA-256 where the manifest has one already."""
    sums, digest = [], hashlib.sha256()
    with open(path, "rb") as handle:
        for piece in iter(lambda: handle.read(2**20), b""):
            sums.append(f"{zlib.crc32(piece):08x}")
            if with_digest:
                digest.update(piece)
    return "".join(sums), digest.hexdigest() if with_digest else None


def _check_indexes(path: str, names: list[str]) -> None:
    for name in names:
        if not name.endswith(".index.json"):
            continue
        with open(os.path.join(path, name), encoding="utf-8") as handle:
            shards = set(json.load(handle).get("weight_map", {}).values())
        absent = sorted(shards - set(names))
        if absent:
            raise Problem(f"{name} names files that are missing: {', '.join(absent[:5])}")


class _MetadataUnpickler(pickle.Unpickler):
    """Knows the classes of torch.distributed.checkpoint's metadata and no others."""

    _NAMES = frozenset(
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
    )
    _METADATA = frozenset(
        {
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        torch = _import_torch()
        known = (module, name) in self._NAMES
        known = known or (module == "torch.distributed.checkpoint.metadata" and name in self._METADATA)
        if known or (module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)):
            return super().find_class(module, name)
        raise Foreign(f".metadata names {module}.{name}, which no checkpoint needs; it was not loaded")


def _distributed(path: str) -> int:
    """Read the metadata, then each stored piece of each tensor."""
    torch = _import_torch()

    try:
        with open(os.path.join(path, ".metadata"), "rb") as handle:
            metadata = _MetadataUnpickler(handle).load()
        entries = list(metadata.storage_data.items())
    except (EOFError, pickle.UnpicklingError, AttributeError) as error:
        raise Problem(f".metadata is damaged: {error}") from error
    num_tensors = 0
    for index, info in entries:
        inner = os.path.join(path, info.relative_path)
        if os.path.dirname(os.path.normpath(info.relative_path)) or not os.path.isfile(inner):
            raise Problem(f"{info.relative_path} is missing")
        with open(inner, "rb") as handle:
            handle.seek(info.offset)
            piece = handle.read(info.length)
        if len(piece) != info.length:
            raise Problem(f"{info.relative_path} is cut: it ends within {index.fqn}")
        if type(metadata.state_dict_metadata.get(index.fqn)).__name__ != "TensorStorageMetadata":
            continue
        try:
            num_tensors += isinstance(
                torch.load(io.BytesIO(piece), map_location="cpu", weights_only=True), torch.Tensor
            )
        except Exception as error:
            raise Problem(f"{info.relative_path}: {index.fqn} does not load: {type(error).__name__}"[:400]) from error
    return num_tensors


if __name__ == "__main__":
    main()
