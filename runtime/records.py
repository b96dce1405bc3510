"""Metric and event records: appended as JSON lines by workers and supervisor, read by everyone else."""

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Origin = Literal["script", "adapter", "server_scored"]

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@dataclass(frozen=True)
class MetricRecord:
    """One measured value.

    Attributes:
        step: the optimizer step after which it was measured; None where the script gave none.
        value: may be NaN or infinite, and then is a finding rather than an error.
        weight: number of samples (or tokens) that the value stands for.
        time_s: seconds since the epoch, UTC.
        origin: who says so. Only `server_scored` may be called verified.
    """

    step: int | None
    name: str
    value: float
    rank: int
    time_s: float
    weight: float = 1.0
    origin: Origin = "script"


@dataclass(frozen=True)
class SourcedMetric:
    """A metric record and the place it was read from: `file` relative to the run directory, `line` from 1."""

    record: MetricRecord
    file: str
    line: int


@dataclass(frozen=True)
class EventRecord:
    """Something that happened in a run, named by `event`, with its details as plain JSON values."""

    event: str
    time_s: float
    rank: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


def encode_number(value: float) -> float | str:
    """Strict JSON has no NaN: non-finite numbers travel as 'NaN', 'Infinity', '-Infinity'."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def decode_number(value: float | str) -> float:
    """The inverse of encode_number; raises ValueError for anything else than a number."""
    if isinstance(value, str):
        if value not in _NON_FINITE:
            raise ValueError(f"{value!r} is no number")
        return _NON_FINITE[value]
    if isinstance(value, bool):
        raise ValueError("a boolean is no number")
    return float(value)


def append_metric(path: Path, record: MetricRecord) -> None:
    """Append one record; a single write, so that a killed process leaves at most one torn last line."""
    data = asdict(record) | {"value": encode_number(record.value), "weight": encode_number(record.weight)}
    _append(path, data)


def append_event(path: Path, event: str, /, *, rank: int | None = None, **details: Any) -> None:
    """Append one event with the time of now."""
    _append(path, {"event": event, "time_s": time.time(), "rank": rank, "details": details})


def read_metrics(path: Path) -> Iterator[tuple[int, MetricRecord]]:
    """Yield (line number from 1, record). A torn last line and foreign lines are passed over, never guessed at."""
    for number, data in _lines(path):
        record = parse_metric(data)
        if record is not None:
            yield number, record


def parse_metric(data: dict[str, Any]) -> MetricRecord | None:
    """The record that a JSON object holds, or None if no writer of ours wrote it."""
    try:
        return MetricRecord(
            step=None if data.get("step") is None else int(data["step"]),
            name=str(data["name"]),
            value=decode_number(data["value"]),
            rank=int(data["rank"]),
            time_s=float(data["time_s"]),
            weight=decode_number(data.get("weight", 1.0)),
            origin=data.get("origin", "script"),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def read_events(path: Path) -> Iterator[EventRecord]:
    """Yield the events in the order in which they were written."""
    for _, data in _lines(path):
        try:
            yield EventRecord(
                event=str(data["event"]),
                time_s=float(data["time_s"]),
                rank=data.get("rank"),
                details=dict(data.get("details") or {}),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            continue


def _append(path: Path, data: dict[str, Any]) -> None:
    line = (json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n").encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        handle = path.open("rb")
    except FileNotFoundError:
        return
    with handle:
        for number, raw in enumerate(handle, start=1):
            if not raw.endswith(b"\n"):
                return
            try:
                data = json.loads(raw)
            except (ValueError, RecursionError):
                continue
            if isinstance(data, dict):
                yield number, data
