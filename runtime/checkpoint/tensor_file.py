"""A file of tensors in the safetensors format, written and read in chunks by several threads, each chunk summed.

Nothing is copied on the way between a tensor in host memory and the file.
"""

import json
import os
import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .crc import CHUNK_BYTES, crc32, join_sums, split_sums
from .disk import Buffer, Disk
from .manifest import ManifestFile, damaged

_ALIGNMENT = 4096
_WRITEBACK_BYTES = 32 * CHUNK_BYTES
_MOST_PIECES = 512
_COPY_BYTES = 4 * CHUNK_BYTES
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass(frozen=True)
class Slab:
    """Where the values of one tensor (or box of one) lie in a file, row by row."""

    begin: int
    end: int


@dataclass(frozen=True)
class Layout:
    """The file's first bytes, and the slabs by name in the order in which they lie."""

    header: bytes
    slabs: dict[str, Slab]

    @property
    def size_bytes(self) -> int:
        return max((slab.end for slab in self.slabs.values()), default=len(self.header))


def lay_out(tensors: Mapping[str, torch.Tensor]) -> Layout:
    """Where each tensor goes: widest elements first, so that each is aligned."""
    slabs, described, at = {}, {}, 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        end = at + tensor.numel() * tensor.element_size()
        known = _NAMES.get(tensor.dtype)
        shape = list(tensor.shape) if known else [end - at]
        described[name] = {"dtype": known or "U8", "shape": shape, "data_offsets": [at, end]}
        slabs[name] = (at, end)
        at = end
    text = json.dumps({"__metadata__": {"format": "pt"}, **described}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    header = struct.pack("<Q", len(text)) + text
    return Layout(header, {name: Slab(len(header) + a, len(header) + b) for name, (a, b) in slabs.items()})


def write_tensors(disk: Disk, path: Path, tensors: Mapping[str, torch.Tensor], layout: Layout) -> ManifestFile:
    """Write a new file and make it safe.

    Raises:
        OSError: it could not be written.
    """
    sources = [_Source(0, memoryview(layout.header))]
    sources += [_Source(slab.begin, tensors[name]) for name, slab in layout.slabs.items() if slab.end > slab.begin]
    begins = [source.begin for source in sources]
    size = layout.size_bytes
    descriptor = disk.create(path)

    def write_chunk(start: int) -> int:
        stop = min(start + CHUNK_BYTES, size)
        pieces = list(_pieces(sources, begins, start, stop))
        value = 0
        for piece in pieces:
            value = crc32(piece, value)
        disk.write(descriptor, pieces, start)
        if stop % _WRITEBACK_BYTES == 0:
            disk.begin_writeback(descriptor, stop - _WRITEBACK_BYTES, _WRITEBACK_BYTES)
        return value

    try:
        sums = _in_threads(write_chunk, range(0, size, CHUNK_BYTES))
        disk.fsync(descriptor)
    finally:
        os.close(descriptor)
    return ManifestFile(path.name, size, join_sums(sums))


@dataclass(frozen=True)
class Request:
    """Bytes of a file from `begin` on, and where they go."""

    begin: int
    target: memoryview

    @property
    def end(self) -> int:
        return self.begin + len(self.target)


def read_requests(directory: Path, file: ManifestFile, requests: Sequence[Request]) -> None:
    """Read, and compare every chunk that is touched with its sum.

    Raises:
        CheckpointError: the file is missing, has another size, or a chunk other content than was saved.
    """
    path = directory / file.path
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise damaged(directory, [f"{file.path} is missing"]) from error
    try:
        size = os.fstat(descriptor).st_size
        if size != file.size_bytes:
            raise damaged(directory, [f"{file.path} has {size} bytes, not {file.size_bytes}"])
        sums = split_sums(file.crc32)
        for batch in _disjoint(requests):
            _read_batch(descriptor, directory, file, sums, batch)
    finally:
        os.close(descriptor)


def _read_batch(
    descriptor: int, directory: Path, file: ManifestFile, sums: list[int], requests: Sequence[Request]
) -> None:
    begins = [request.begin for request in requests]
    starts = sorted({start for r in requests for start in range(r.begin - r.begin % CHUNK_BYTES, r.end, CHUNK_BYTES)})

    def read_chunk(start: int) -> int | None:
        stop = min(start + CHUNK_BYTES, file.size_bytes)
        pieces = _targets(requests, begins, start, stop)
        value = 0
        if _read(descriptor, pieces, start) == stop - start:
            for piece in pieces:
                value = crc32(piece, value)
            if value == sums[start // CHUNK_BYTES]:
                return None
        return start

    wrong = [start for start in _in_threads(read_chunk, starts) if start is not None]
    if wrong:
        raise damaged(directory, [f"{file.path} has other content than was saved (CRC-32, from byte {wrong[0]} on)"])


def _read(descriptor: int, pieces: list[memoryview], offset: int) -> int:
    if len(pieces) > _MOST_PIECES:
        whole = memoryview(bytearray(sum(map(len, pieces))))
        got = os.preadv(descriptor, [whole], offset)
        at = 0
        for piece in pieces:
            piece[:] = whole[at : at + len(piece)]
            at += len(piece)
        return got
    return os.preadv(descriptor, pieces, offset)


def _targets(requests: Sequence[Request], begins: list[int], start: int, stop: int) -> list[memoryview]:
    """Where the bytes of a chunk go; what nobody asked for goes nowhere, but is summed too."""
    pieces, at = [], start
    for request in requests[max(0, bisect_right(begins, start) - 1) :]:
        if request.begin >= stop:
            break
        begin, end = max(request.begin, start), min(request.end, stop)
        if end <= begin:
            continue
        if begin > at:
            pieces.append(memoryview(bytearray(begin - at)))
        pieces.append(request.target[begin - request.begin : end - request.begin])
        at = end
    if at < stop:
        pieces.append(memoryview(bytearray(stop - at)))
    return pieces


def _disjoint(requests: Sequence[Request]) -> Iterator[list[Request]]:
    """The requests in batches of which none overlap, in the file's order."""
    rest = sorted((r for r in requests if len(r.target)), key=lambda request: request.begin)
    while rest:
        batch, later, end = [], [], 0
        for request in rest:
            if request.begin >= end:
                batch.append(request)
                end = request.end
            else:
                later.append(request)
        yield batch
        rest = later


class _Source:
    """Bytes of the file from `begin` on: given, or those of a tensor."""

    def __init__(self, begin: int, content: memoryview | torch.Tensor) -> None:
        self.begin = begin
        self._content = content
        size = len(content) if isinstance(content, memoryview) else content.numel() * content.element_size()
        self.end = begin + size
        self._unread = size
        self._dense: torch.Tensor | None = None
        self._guard = threading.Lock()

    def piece(self, start: int, stop: int) -> memoryview:
        """Bytes start to stop, both counted from the file's first."""
        first, last = start - self.begin, stop - self.begin
        if isinstance(self._content, memoryview):
            return self._content[first:last]
        tensor = self._content
        if tensor.is_contiguous() and not _is_lazy(tensor):
            width = tensor.element_size()
            # Chunks and tensors are aligned, so that no element is cut.
            return byte_view(tensor.view(-1)[first // width : last // width].cpu())
        with self._guard:
            # The rows of a tensor that lies otherwise are brought into order once, for as long as they are needed.
            dense = self._dense if self._dense is not None else tensor.resolve_conj().resolve_neg().contiguous().cpu()
            self._unread -= last - first
            self._dense = dense if self._unread else None
        return byte_view(dense)[first:last]


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor in host memory, not copied."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))  # one element may have any stride
    bytes_: Any = flat.view(torch.uint8).numpy()
    return memoryview(bytes_)


def copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy tensors into ones of the same shape in host memory: (target, source) each.

    By threads of our own: torch's would wait for one another after every tensor.
    """
    pieces: list[tuple[Any, Any]] = []
    for target, source in (pair for pair in pairs if pair[0].numel()):
        if source.device.type != "cpu" or not (source.is_contiguous() and target.is_contiguous()) or _is_lazy(source):
            target.copy_(source, non_blocking=True)
            continue
        to, come = (np.frombuffer(byte_view(tensor), dtype=np.uint8) for tensor in (target, source))
        pieces += [(to[at : at + _COPY_BYTES], come[at : at + _COPY_BYTES]) for at in range(0, len(to), _COPY_BYTES)]
    _in_threads(lambda number: np.copyto(*pieces[number]), range(len(pieces)))


def _is_lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _pieces(sources: list[_Source], begins: list[int], start: int, stop: int) -> Iterator[Buffer]:
    for source in sources[bisect_right(begins, start) - 1 :]:
        if source.begin >= stop:
            return
        begin, end = max(source.begin, start), min(source.end, stop)
        if end > begin:
            yield source.piece(begin, end)


def _in_threads(function: Any, items: Sequence[int]) -> list[Any]:
    """The results in order; after an error no further item is begun."""
    num_threads = min(4, len(os.sched_getaffinity(0)), len(items))
    if num_threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(num_threads) as pool:
        futures = [pool.submit(function, item) for item in items]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
