"""Metric records that our runtime wrote into the run directory."""

from collections.abc import Iterator
from dataclasses import replace

from runtime.layout import RunLayout
from runtime.records import SourcedMetric, parse_metric

from .json_lines import json_object
from .log_lines import LineReader, rank_metrics, read_lines, relative_name
from .metric_values import printable_name


def runtime_metrics(layout: RunLayout, read: LineReader = read_lines) -> Iterator[SourcedMetric]:
    """The records of all ranks, rank by rank. A worker can write anything into its file: whatever it claims, the
    rank is the file's, the origin is `script`, and the name is printable."""
    for rank in rank_metrics(layout):
        path = layout.metrics(rank)
        file = relative_name(layout, path)
        for line in read(path):
            data = json_object(line.text) if line.complete else None
            record = parse_metric(data) if data else None
            if record is not None:
                name = printable_name(record.name)
                yield SourcedMetric(replace(record, rank=rank, origin="script", name=name), file, line.number)
