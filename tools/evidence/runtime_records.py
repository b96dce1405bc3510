"""Metric records that our runtime wrote into the run directory."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from runtime.layout import RunLayout
from runtime.records import SourcedMetric, read_metrics

from .log_lines import rank_metrics, relative_name
from .metric_values import printable_name


def runtime_metrics(layout: RunLayout) -> Iterator[SourcedMetric]:
    """The records of all ranks, rank by rank. A worker can write anything into its file: whatever it claims, the
    rank is the file's, the origin is `script`, and the name is printable."""
    for rank in rank_metrics(layout):
        path = layout.metrics(rank)
        file = relative_name(layout, path)
        with contextlib.suppress(
            OverflowError, RecursionError
        ):  # no writer of ours: the rest of the file is not trusted
            for line, record in read_metrics(path):
                name = printable_name(record.name)
                yield SourcedMetric(replace(record, rank=rank, origin="script", name=name), file, line)
