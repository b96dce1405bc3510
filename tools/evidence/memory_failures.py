"""Out of memory, looked at closely: sizes, fragmentation, another process, and evaluation instead of training."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..domain.reports import Remedy
from .failure_patterns import EVALUATION_MEMORY, OUT_OF_MEMORY
from .failure_row import FailurePattern

_UNITS = {"bytes": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_SIZE = r"(\d+(?:\.\d+)?) ?(bytes|[KMGT]iB)"
_TRIED = re.compile(rf"(?:tried to allocate|unable to allocate) {_SIZE}", re.IGNORECASE)
_RESERVED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated", re.IGNORECASE)
_CAPACITY = re.compile(rf"total capacity of {_SIZE}", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free", re.IGNORECASE)
_OTHER = re.compile(rf"Process (\d+) has {_SIZE} memory in use", re.IGNORECASE)
_EVALUATION_FRAME = re.compile(r"eval|validat|predict|compute_metrics", re.IGNORECASE)
_CAUSES = frozenset(row.cause for row in OUT_OF_MEMORY)
_ABSURD_BYTES = 2**50


@dataclass(frozen=True)
class MemoryFailure:
    """A cause with its sentence and remedies."""

    cause: str
    explanation: str
    remedies: tuple[Remedy, ...]


def out_of_memory(line: str) -> FailurePattern | None:
    """The place that ran out of memory, if this statement of a failure says so."""
    return next((row for row in OUT_OF_MEMORY if row.pattern.search(line)), None)


def is_memory(row: FailurePattern) -> bool:
    return row.cause in _CAUSES


def explain_memory(
    row: FailurePattern,
    text: str,
    *,
    frames: Sequence[str],
    evaluation_sizes: Mapping[str, int],
    last_step: int | None,
) -> MemoryFailure:
    """What ran out, by how much, and what helps. In evaluation the training batch is not to blame, and stays."""
    sizes = _sizes(text)
    frame = next((f for f in reversed(frames) if _EVALUATION_FRAME.search(f.rsplit(":", 1)[-1])), None)
    if frame and row.cause == "out_of_memory_gpu":
        after = f" after training step {last_step}" if last_step is not None else ""
        logits = _logits(_first(_TRIED, text), evaluation_sizes)
        return MemoryFailure(
            "out_of_memory_evaluation",
            f"{row.explanation} in evaluation ({frame}){after}, likely over accumulated logits{sizes}{logits}; "
            "the training batch is not the cause",
            EVALUATION_MEMORY,
        )
    tried, reserved, other = _first(_TRIED, text), _first(_RESERVED, text), _OTHER.search(text)
    if row.cause == "out_of_memory_gpu" and tried and reserved and reserved >= tried:
        remedy = Remedy(
            action="let the allocator use expandable segments",
            settings={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
            changes_results=False,
        )
        return MemoryFailure(
            "out_of_memory_fragmentation",
            f"the GPU's memory is fragmented: more is reserved but unallocated than was asked for{sizes}",
            (remedy, *row.remedies),
        )
    if row.cause == "out_of_memory_gpu" and other:
        held = f"process {other[1]} holds {other[2]} {other[3]} of the GPU's memory"
        remedy = Remedy(action="end that process, or use another GPU", changes_results=False)
        return MemoryFailure("out_of_memory_other_process", f"{held}{sizes}", (remedy, *row.remedies))
    return MemoryFailure(row.cause, f"{row.explanation}{sizes}", row.remedies)


def is_absurd_request(text: str) -> bool:
    """A request of over a pebibyte is a broken size, as after an abort, and no need for memory."""
    tried = _first(_TRIED, text)
    return "1EB" in text or (tried is not None and tried >= _ABSURD_BYTES)


def _sizes(text: str) -> str:
    known = [
        (words, match)
        for words, pattern in (("asked for", _TRIED), ("capacity", _CAPACITY), ("free", _FREE), ("reserved", _RESERVED))
        if (match := pattern.search(text))
    ]
    return f" ({', '.join(f'{words} {m[1]} {m[2]}' for words, m in known)})" if known else ""


def _first(pattern: re.Pattern[str], text: str) -> float | None:
    match = pattern.search(text)
    return float(match[1]) * _UNITS[match[2].lower()] if match else None


def _logits(tried_bytes: float | None, sizes: Mapping[str, int]) -> str:
    """The sum that shows it: batch x sequence x vocabulary x bytes a value, if it is what was asked for."""
    if tried_bytes is None or set(sizes) != {"batch", "sequence", "vocabulary"}:
        return ""
    values = sizes["batch"] * sizes["sequence"] * sizes["vocabulary"]
    for value_bytes in (4, 2):
        if abs(values * value_bytes - tried_bytes) <= 0.01 * tried_bytes:
            product = f"{sizes['batch']} x {sizes['sequence']} x {sizes['vocabulary']} x {value_bytes} bytes"
            return f"; {product} = {values * value_bytes / 2**30:.2f} GiB, the logits of one evaluation batch"
    return ""
