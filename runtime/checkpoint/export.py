"""A model's weights alone, for other programs: sharded safetensors with an index, as Hugging Face's libraries read.

An export is taken by readers as its index (or its only file) says, and that file is put in place last: a save that
fails or is killed leaves the former export as it was.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError, UsageError
from ..files import fsync_directory, write_json_atomic
from ..options import DEFAULT_SHARD_SIZE
from .plain import plain
from .weights import Weight

_UNITS = {"": 1} | {
    f"{letter}{infix}B": (1024 if infix else 1000) ** power
    for power, letter in enumerate(("", "K", "M", "G", "T"))
    for infix in ("", "i")
    if letter or not infix
}
_SHARD = re.compile(r"(model|pytorch_model)(-again)?-\d{5,}-of-\d{5,}\.(safetensors|bin)")


@dataclass(frozen=True)
class _Form:
    """One of the two file formats."""

    stem: str
    suffix: str

    @property
    def only(self) -> str:
        return f"{self.stem}.{self.suffix}"

    @property
    def index(self) -> str:
        return f"{self.stem}.{self.suffix}.index.json"

    def shard(self, number: int, count: int, *, again: bool = False) -> str:
        return f"{self.stem}{'-again' if again else ''}-{number:05d}-of-{count:05d}.{self.suffix}"


_SAFE = _Form("model", "safetensors")
_TORCH = _Form("pytorch_model", "bin")


def parse_size(size: int | str) -> int:
    """Bytes of "5GB" (powers of 1000), "5GiB" (powers of 1024) or a number.

    Raises:
        UsageError: it is neither, or not positive.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    units = {name.upper(): factor for name, factor in _UNITS.items()}
    factor = units.get(match[2].upper()) if match else None
    size_bytes = int(float(match[1]) * factor) if match and factor else 0
    if size_bytes < 1 or isinstance(size, bool):
        raise UsageError(
            f"max_shard_size={size!r}", allowed='a number of bytes, or a text such as "5GB" or "500MiB"', next_step=""
        )
    return size_bytes


def plan_shards(weights: Sequence[Weight], max_bytes: int) -> list[list[Weight]]:
    """Weights in their order, split where a file would grow over max_bytes; a larger weight has a file of its own."""
    shards: list[list[Weight]] = [[]]
    filled = 0
    for weight in weights:
        if shards[-1] and filled + weight.size_bytes > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(weight)
        filled += weight.size_bytes
    return shards


def write_weights(
    weights: Sequence[Weight],
    directory: Path,
    *,
    rest: Mapping[str, Any] | None = None,
    max_shard_size: int | str = DEFAULT_SHARD_SIZE,
    safe: bool = True,
) -> Path:
    """Write model.safetensors, or shards and model.safetensors.index.json if they are more than max_shard_size.

    Without safetensors, or with safe=False: the same as pytorch_model.bin. At most one shard is held in memory beside
    what `read` of the weights returns. Every weight is read exactly once and in order, also after a failure: other
    ranks may take part in the reading.

    Args:
        rest: what a state holds beside tensors; safetensors cannot hold it.

    Returns:
        The file to load: the only one, or the index.

    Raises:
        CheckpointError: it could not be written; a former export is intact.
    """
    form = _SAFE if safe and find_spec("safetensors") is not None else _TORCH
    pending = iter(weights)
    written: list[Path] = []
    try:
        shards = plan_shards(weights, parse_size(max_shard_size))
        if rest and form is _SAFE:
            raise CheckpointError(
                f"{', '.join(sorted(rest)[:5])} of the model's state is no tensor, and safetensors holds tensors alone",
                allowed="a state of tensors",
                next_step="use safe_serialization=False, or leave it out of state_dict()",
            )
        directory.mkdir(parents=True, exist_ok=True)
        for number, shard in enumerate(shards, start=1):
            path = directory / f".{form.shard(number, len(shards))}.{os.getpid()}.tmp"
            written.append(path)
            _write_shard(path, _read(shard, pending), shard, rest=rest if number == 1 else None, form=form)
        return _put_in_place(directory, written, shards, form)
    except (OSError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"the weights could not be written to {directory}: {error}",
            next_step="make room or choose another directory; a former export is intact",
        ) from error
    finally:
        for path in written:
            with suppress(OSError):
                path.unlink()
        for weight in pending:
            weight.read()


def _read(shard: list[Weight], pending: Iterator[Weight]) -> dict[str, torch.Tensor]:
    """Not kept in a variable of the caller's: it must be gone when the next shard is read."""
    return {weight.name: weight.read() for weight, _ in zip(shard, pending, strict=False)}


def _write_shard(
    path: Path, tensors: dict[str, torch.Tensor], shard: list[Weight], *, rest: Mapping[str, Any] | None, form: _Form
) -> None:
    if form is _SAFE:
        library: Any = import_module("safetensors.torch")
        aliases = {alias: weight.name for weight in shard for alias in weight.aliases}
        try:
            library.save_file(_apart(tensors), path, metadata={"format": "pt"} | aliases)
        except import_module("safetensors").SafetensorError as error:
            raise OSError(str(error)) from error
    else:
        names = {alias: tensors[weight.name] for weight in shard for alias in weight.aliases}
        torch.save(plain({**tensors, **names, **(rest or {})}, "model"), path)
    path.chmod(0o644)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors that are different views of one memory get memory of their own, as the format demands."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr() if tensor.numel() else 0
        apart[name] = tensor.clone() if pointer in seen else tensor
        if pointer:
            seen.add(pointer)
    return apart


def _put_in_place(directory: Path, written: list[Path], shards: list[list[Weight]], form: _Form) -> Path:
    """Rename to the final names so that at each moment readers find the former export or the new one, whole.

    Readers take the only file before the index, and safetensors before torch's format.
    """
    count = len(written)
    if count == 1:
        target = directory / form.only
        os.replace(written[0], target)
        fsync_directory(directory)
        _remove_others(directory, {form.only}, form)
        return target
    former = _indexed(directory / form.index)
    names = [form.shard(number, count) for number in range(1, count + 1)]
    again = bool(former & set(names))
    first = [form.shard(number, count, again=again) for number in range(1, count + 1)]
    _place(directory, written, first)
    target = directory / form.index
    write_json_atomic(target, _index(shards, first, form))
    _remove_others(directory, {form.index, *first}, form)
    if again and _link(directory, first, names):
        write_json_atomic(target, _index(shards, names, form))
        _remove_others(directory, {form.index, *names}, form)
    return target


def _place(directory: Path, written: Iterable[Path], names: Iterable[str]) -> None:
    for path, name in zip(written, names, strict=True):
        os.replace(path, directory / name)
    fsync_directory(directory)


def _link(directory: Path, names: list[str], others: list[str]) -> bool:
    """The same files under other names; False where the file system has no links: the first names stay."""
    try:
        for name, other in zip(names, others, strict=True):
            os.link(directory / name, directory / other)
    except OSError:
        return False
    fsync_directory(directory)
    return True


def _index(shards: list[list[Weight]], names: list[str], form: _Form) -> dict[str, Any]:
    """Hugging Face's form: where each tensor lies, and the bytes of all. Ties are recorded beside it."""
    pairs = [(name, weight) for name, shard in zip(names, shards, strict=True) for weight in shard]
    aliases = {alias: weight.name for _, weight in pairs for alias in weight.aliases}
    places = {weight.name: name for name, weight in pairs}
    if form is _TORCH:
        places |= {alias: name for name, weight in pairs for alias in weight.aliases}
    total = sum(weight.size_bytes for _, weight in pairs)
    metadata = {"total_size": total} | ({"tied": dict(sorted(aliases.items()))} if aliases else {})
    return {"metadata": metadata, "weight_map": dict(sorted(places.items()))}


def _indexed(index: Path) -> set[str]:
    try:
        return {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return set()


def _remove_others(directory: Path, kept: set[str], form: _Form) -> None:
    """Remove what the former export left; first of all the file that readers would take before the new one."""
    others = [_SAFE.only, _SAFE.index] if form is _TORCH else []
    for name in [*others, form.only, form.index]:
        if name not in kept:
            with suppress(FileNotFoundError):
                (directory / name).unlink()
    for path in directory.iterdir():
        match = _SHARD.fullmatch(path.name)
        ours = match is not None and (match[3] == form.suffix or form is _TORCH)
        remains = path.name.startswith(".") and path.name.endswith(".tmp") and _SHARD.match(path.name[1:])
        if path.name not in kept and (ours or remains) and path.is_file():
            with suppress(FileNotFoundError):
                path.unlink()
    fsync_directory(directory)
