"""Metrics from JSON lines that a script prints; `metric_values` says which objects count."""

import json
from collections.abc import Iterator

from runtime.records import MetricRecord

from .metric_values import records_of


def metrics_in_json(text: str, *, rank: int) -> Iterator[MetricRecord]:
    """The records in a line that is one JSON object and nothing else (NaN and Infinity are accepted)."""
    data = json_object(text)
    if data is not None:
        yield from records_of(data, rank=rank)


def json_object(text: str) -> dict[str, object] | None:
    """The JSON object that `text` is, or None."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return None
    try:
        data = json.loads(stripped)
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None
