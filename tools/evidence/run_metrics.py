"""All metrics of a run, whoever printed them, each with the file and line that it came from."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from runtime.layout import RunLayout
from runtime.records import MetricRecord, SourcedMetric

from .attempts import attempt_starts, without_repeats
from .json_lines import metrics_in_json
from .log_lines import LineReader, LogLine, plain, rank_logs, read_lines, relative_name, without_rank_prefix
from .plain_lines import metrics_in_text
from .runtime_records import runtime_metrics
from .trainer import find_trainer_state, metrics_in_dict

_SERIES_LIMIT = 20_000
_NAMES_LIMIT = 2_000
_BAD_LIMIT = 20
_Key = tuple[str, int | None]


def read_run_metrics(layout: RunLayout) -> tuple[SourcedMetric, ...]:
    """Every metric of the run: our runtime's records (origin `script`), then what adapters found in the logs and in
    trainer_state.json (origin `adapter`, `time_s` NaN where the source carries no time).

    An adapter's record is left out where our runtime has one of the same name and step, or, if it has no step, of the
    same name. A printed dict without a step is left out where trainer_state.json holds the same value with its step.
    Of a series of more than 20,000 values every 2nd (4th, ...) is kept, always the first, the last and the first NaN;
    names beyond 2,000 are left out. Steps that a later attempt of the job repeats count once.
    """
    state = find_trainer_state(layout)
    history = state.metrics if state else ()
    printed = _thinned(_without_history(printed_metrics(layout), history))
    adapters = [*printed, *_thinned(history)]
    wanted: set[_Key] = {(m.record.name, m.record.step) for m in adapters}
    seen: set[_Key] = set()

    def watched() -> Iterator[SourcedMetric]:
        for metric in runtime_metrics(layout):
            for key in ((metric.record.name, metric.record.step), (metric.record.name, None)):
                if key in wanted:
                    seen.add(key)
            yield metric

    ours = _thinned(watched())
    found = [*ours, *(m for m in adapters if (m.record.name, m.record.step) not in seen)]
    return without_repeats(found, attempt_starts(layout))


def iter_run_metrics(layout: RunLayout, read: LineReader = read_lines) -> Iterator[SourcedMetric]:
    """All metrics in flat memory, as found: neither thinned nor freed of duplicates.

    Args:
        read: which lines of each file to look at: all, the recent ones, or those with a NaN or an infinity.
    """
    yield from runtime_metrics(layout, read)
    yield from printed_metrics(layout, read)
    state = find_trainer_state(layout)
    if state:
        yield from state.metrics


def printed_metrics(layout: RunLayout, read: LineReader = read_lines) -> Iterator[SourcedMetric]:
    """What adapters find in the ranks' logs: standard output, or standard error of a rank whose output has none."""
    for rank in rank_logs(layout):
        found = False
        for metric in _in_log(layout, read, layout.stdout(rank), rank=rank):
            found = True
            yield metric
        if not found:
            yield from _in_log(layout, read, layout.stderr(rank), rank=rank)


def _in_log(layout: RunLayout, read: LineReader, path: Path, *, rank: int) -> Iterator[SourcedMetric]:
    """The metrics of one log: each line is read as a JSON object, else as a printed dict, else as plain text."""
    file = relative_name(layout, path)
    for line in read(path):
        for record in _in_line(line, rank):
            yield SourcedMetric(record, file, line.number)


def _in_line(line: LogLine, rank: int) -> list[MetricRecord]:
    if line.cut:
        return []
    text, _ = without_rank_prefix(plain(line.text))
    return (
        list(metrics_in_json(text, rank=rank))
        or list(metrics_in_dict(text, rank=rank))
        or list(metrics_in_text(text, rank=rank, complete=line.complete))
    )


def _without_history(printed: Iterable[SourcedMetric], history: Iterable[SourcedMetric]) -> Iterator[SourcedMetric]:
    """The printed records less those, value by value, that log_history has too; printing rounds to 4 digits or so."""
    known = Counter((m.record.name, _rounded(m.record.value)) for m in history)
    for metric in printed:
        key = (metric.record.name, _rounded(metric.record.value))
        if metric.record.step is None and known[key] > 0:
            known[key] -= 1
            continue
        yield metric


def _rounded(value: float) -> str:
    return f"{value:.3g}"


class _Series:
    """Values of one name from one file, thinned by doubling the stride whenever they become too many."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, SourcedMetric]] = []
        self.bad: list[tuple[int, SourcedMetric]] = []
        self.last: tuple[int, SourcedMetric] | None = None
        self.stride = 1
        self.count = 0

    def add(self, order: int, metric: SourcedMetric) -> None:
        self.last = (order, metric)
        if self.count % self.stride == 0:
            self.kept.append(self.last)
        if len(self.kept) > _SERIES_LIMIT:
            self.kept = self.kept[::2]
            self.stride *= 2
        if not math.isfinite(metric.record.value) and len(self.bad) < _BAD_LIMIT:
            self.bad.append(self.last)
        self.count += 1

    def result(self) -> dict[int, SourcedMetric]:
        return dict([*self.kept, *self.bad, *([self.last] if self.last else [])])


def _thinned(metrics: Iterable[SourcedMetric]) -> list[SourcedMetric]:
    series: dict[tuple[str, str], _Series] = {}
    for order, metric in enumerate(metrics):
        key = (metric.file, metric.record.name)
        if key not in series:
            if len(series) >= _NAMES_LIMIT:
                continue
            series[key] = _Series()
        series[key].add(order, metric)
    merged: dict[int, SourcedMetric] = {}
    for one in series.values():
        merged.update(one.result())
    return [merged[order] for order in sorted(merged)]
