"""Metrics of transformers' Trainer: the dicts that it prints, and the log_history of trainer_state.json."""

import ast
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.layout import RunLayout
from runtime.records import MetricRecord, SourcedMetric

from .log_lines import relative_name
from .metric_values import number, records_of

_STATE_LIMIT_BYTES = 64 * 2**20
_NUMERIC_CALLS = frozenset({"float64", "float32", "float16", "int64", "int32", "tensor"})


@dataclass(frozen=True)
class TrainerState:
    """What trainer_state.json says. `epoch` is fractional: global_step / epoch steps make one epoch."""

    path: Path
    global_step: int
    epoch: float | None
    max_steps: int | None
    metrics: tuple[SourcedMetric, ...]


def metrics_in_dict(text: str, *, rank: int) -> Iterator[MetricRecord]:
    """The records in a printed dict such as `{'loss': 1.5, 'grad_norm': nan, 'epoch': 0.1}`, after any progress bar."""
    start, end = text.find("{'"), text.rfind("}")
    if 0 <= start < end:
        yield from records_of(parse_dict(text[start : end + 1]), rank=rank, numeric_texts=True)


def parse_dict(text: str) -> dict[str, object]:
    """The numbers and texts of a dict in Python's notation, nan and inf included; nothing is ever evaluated.

    Returns an empty dict for anything else than one dict.
    """
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if not isinstance(tree, ast.Dict):
        return {}
    result: dict[str, object] = {}
    for key, value in zip(tree.keys, tree.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and (leaf := _leaf(value)) is not None:
            result[key.value] = leaf
    return result


def _leaf(node: ast.expr) -> object | None:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in ("nan", "inf"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = number(_leaf(node.operand))
        return value if value is None or isinstance(node.op, ast.UAdd) else -value
    if isinstance(node, ast.Call) and len(node.args) == 1:  # np.float64(1.5), tensor(1.5, device='cuda:0')
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return number(_leaf(node.args[0])) if name in _NUMERIC_CALLS else None
    return None


def find_trainer_state(layout: RunLayout) -> TrainerState | None:
    """The trainer_state.json below work/ or checkpoints/ that has come furthest, if there is one."""
    states = [s for path in _state_files(layout) if (s := _read_state(layout, path)) is not None]
    return max(states, key=lambda s: (s.global_step, len(s.metrics), str(s.path)), default=None)


def _state_files(layout: RunLayout) -> Iterator[Path]:
    for top in (layout.work, layout.checkpoints):
        for directory, _, names in os.walk(top):
            if "trainer_state.json" in names:
                yield Path(directory) / "trainer_state.json"


def _read_state(layout: RunLayout, path: Path) -> TrainerState | None:
    if not path.is_file() or path.stat().st_size > _STATE_LIMIT_BYTES:
        return None
    text = path.read_text(errors="replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("log_history"), list):
        return None
    return TrainerState(
        path=path,
        global_step=_count(data.get("global_step")) or 0,
        epoch=number(data.get("epoch")),
        max_steps=_count(data.get("max_steps")),
        metrics=tuple(_history(text, relative_name(layout, path))),
    )


def _history(text: str, file: str) -> Iterator[SourcedMetric]:
    """The entries of log_history with the line on which each begins."""
    decoder = json.JSONDecoder()
    position = text.index("[", text.index('"log_history"')) + 1
    line, counted = 1, 0
    while True:
        while position < len(text) and text[position] in " \t\r\n,":
            position += 1
        if text[position : position + 1] != "{":
            return
        line, counted = line + text.count("\n", counted, position), position
        entry, position = decoder.raw_decode(text, position)
        for record in records_of(entry, rank=0):
            yield SourcedMetric(record, file, line)


def _count(value: object) -> int | None:
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found > 0 else None
