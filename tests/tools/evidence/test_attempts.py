"""Steps that a later attempt of a job goes through again count once."""

import math
from pathlib import Path

import pytest

from runtime.layout import RunLayout
from runtime.records import MetricRecord, append_event, append_metric
from tools.evidence import read_run_metrics


def losses(layout: RunLayout) -> list[tuple[int | None, float]]:
    return [(m.record.step, m.record.value) for m in read_run_metrics(layout) if m.record.name == "loss"]


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    made = RunLayout(tmp_path)
    made.logs.mkdir()
    return made


def record(layout: RunLayout, steps: range, *, value: float, time_s: float, rank: int = 0) -> None:
    for step in steps:
        append_metric(layout.metrics(rank), MetricRecord(step=step, name="loss", value=value, rank=rank, time_s=time_s))


def begin_attempt(layout: RunLayout, time_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.records.time.time", lambda: time_s)
    append_event(layout.events, "attempt_started", attempt=2)
    monkeypatch.undo()


def test_a_repeated_step_counts_as_the_last_attempt_reports_it(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(layout, range(1, 11), value=1.0, time_s=100.0)
    begin_attempt(layout, 200.0, monkeypatch)
    record(layout, range(8, 13), value=2.0, time_s=300.0)
    assert losses(layout) == [(s, 1.0) for s in range(1, 8)] + [(s, 2.0) for s in range(8, 13)]


def test_steps_that_were_lost_with_the_first_attempt_do_not_count(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(layout, range(1, 11), value=1.0, time_s=100.0)
    begin_attempt(layout, 200.0, monkeypatch)
    record(layout, range(5, 7), value=2.0, time_s=300.0)
    assert losses(layout)[-1] == (6, 2.0)
    assert [step for step, _ in losses(layout)] == [1, 2, 3, 4, 5, 6]


def test_several_values_of_one_step_in_one_attempt_all_count(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (1.0, 1.5):
        record(layout, range(3, 4), value=value, time_s=100.0)
    assert losses(layout) == [(3, 1.0), (3, 1.5)]
    begin_attempt(layout, 200.0, monkeypatch)
    assert losses(layout) == [(3, 1.0), (3, 1.5)]


def test_printed_metrics_without_a_time_begin_anew_where_the_step_falls(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [f'{{"step": {s}, "loss": {v}}}' for s, v in [(1, 9.0), (2, 8.0), (3, 7.0), (2, 6.0), (3, 5.0)]]
    layout.stdout(0).write_text("\n".join(lines) + "\n")
    assert len(losses(layout)) == 5, "without a restart nothing is left out"
    begin_attempt(layout, 200.0, monkeypatch)
    assert losses(layout) == [(1, 9.0), (2, 6.0), (3, 5.0)]
    assert all(math.isnan(m.record.time_s) for m in read_run_metrics(layout))
