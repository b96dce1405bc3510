"""progress: a run as it is now: state, step, loss, remaining time, what it has used, and what is wrong with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from runtime.config.order import Heartbeat, RankFailure
from runtime.config.plan import TrainingPlan
from runtime.errors import RecordError
from runtime.layout import RunLayout
from runtime.records import EventRecord, SourcedMetric, encode_number, read_events
from runtime.run_files import read_heartbeat

from .domain.reports import RunProgress
from .domain.run_state import RunRecord, RunState
from .evidence.curves import NonFinite, first_non_finite, with_zero_loss
from .evidence.log_lines import read_non_finite_lines, read_recent_lines
from .evidence.remaining_time import POINTS_USED, remaining_time
from .evidence.run_metrics import iter_run_metrics
from .evidence.step_counts import total_steps
from .evidence.trainer import find_trainer_state
from .text import shown

_RUNTIME_LOSS = "backward_loss"
_METRICS_SHOWN = 30
_LAST_LINES_SHOWN = 5
_SILENCE_S = 30.0
_STARTS = ("run_started", "resumed", "state_loaded")


@dataclass
class _Newest:
    """The newest values, gathered from the ends of the files."""

    values: dict[str, SourcedMetric] = field(default_factory=dict)
    points: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)
    bad: NonFinite | None = None


def progress(plan: TrainingPlan, run: RunRecord, layout: RunLayout, *, now_s: float) -> RunProgress:
    """Read the run directory as it is.

    Device hours count from the start of the job to its end, or to the last heartbeat: time after that is not billed.
    """
    events = tuple(read_events(layout.events))
    newest = _newest(layout, events)
    total = plan.smoke.num_steps if run.kind == "smoke" else total_steps(plan, events, find_trainer_state(layout))
    heartbeat, alerts = _heartbeat(run, layout, now_s=now_s)
    left = remaining_time(_points(newest, plan.smoke.loss), total)
    elapsed_s = run.result.elapsed_s if run.result else heartbeat.elapsed_s if heartbeat else None
    loss = newest.values.get(plan.smoke.loss) or newest.values.get(_RUNTIME_LOSS)
    return RunProgress(
        run_id=run.run_id,
        kind=run.kind,
        state=run.state.value,
        reason=shown(run.reason or (run.result.reason if run.result else "")),
        step=max(newest.steps.values(), default=None),
        total_steps=total,
        loss=loss.record.value if loss and math.isfinite(loss.record.value) else None,
        metrics={
            shown(name): encode_number(m.record.value) for name, m in sorted(newest.values.items())[:_METRICS_SHOWN]
        },
        elapsed_s=elapsed_s,
        remaining_s=None if run.ended else left.seconds,
        spent_device_hours=None if elapsed_s is None else elapsed_s * plan.layout.num_processes / 3600,
        alerts=tuple(shown(a) for a in (*alerts, newest.bad.words if newest.bad else "", left.warning) if a),
        failures=tuple(describe_failure(f) for f in (run.result.failures if run.result else ())),
    )


def describe_failure(failure: RankFailure) -> str:
    """Such as `rank 1 killed by signal 9 (SIGKILL); last lines: ...`."""
    if failure.signal is not None:
        name = f" ({failure.signal_name})" if failure.signal_name else ""
        how = f"killed by signal {failure.signal}{name}"
    else:
        how = f"ended with exit code {failure.exit_code}" if failure.exit_code is not None else "ended: exit unknown"
    lines = [shown(line) for line in failure.last_lines if line.strip()][-_LAST_LINES_SHOWN:]
    exit_words, _, cause = failure.message.partition(": ")
    detail = cause if exit_words.startswith(("exit ", "signal ")) else failure.message
    message = f": {shown(detail)}" if detail else ""
    return f"rank {failure.rank} {how}{message}; last lines: {' | '.join(lines) if lines else 'none'}"


def _newest(layout: RunLayout, events: Sequence[EventRecord]) -> _Newest:
    found = _Newest()
    start_s = max((e.time_s for e in events if e.event in _STARTS), default=-math.inf)
    started = [(s, e.time_s) for e in events if e.time_s == start_s and isinstance(s := e.details.get("step"), int)]
    found.points[""] = started[-1:]
    for metric in iter_run_metrics(layout, read_recent_lines):
        _note(metric, found, start_s)
    found.bad = first_non_finite(iter_run_metrics(layout, read_non_finite_lines))
    if found.bad:
        found.bad = with_zero_loss(found.bad, iter_run_metrics(layout))
    return found


def _note(metric: SourcedMetric, found: _Newest, start_s: float) -> None:
    """Keep the newest value of each name, the steps, and the timed steps since `start_s`."""
    record = metric.record
    current = found.values.get(record.name)
    if current is None or _rank_of(metric) <= _rank_of(current):
        found.values[record.name] = metric
    if record.step is not None:
        found.steps[record.rank] = max(record.step, found.steps.get(record.rank, 0))
        if record.rank == 0 and record.time_s >= start_s:
            points = found.points.setdefault(record.name, list(found.points[""]))
            _add_point(points, record.step, record.time_s)


def _rank_of(metric: SourcedMetric) -> tuple[bool, int, bool]:
    """Whose value is shown first: our runtime's, of the lowest rank, and the log's before a saved state's."""
    return (metric.record.origin != "script", metric.record.rank, metric.file.endswith("trainer_state.json"))


def _add_point(points: list[tuple[int, float]], step: int, time_s: float) -> None:
    if points and step < points[-1][0] and time_s >= points[-1][1]:
        points.clear()  # the steps start over: only the present attempt tells the speed
    if not points or step > points[-1][0]:
        points.append((step, time_s))
    if len(points) > 2 * POINTS_USED:
        del points[:POINTS_USED]


def _points(newest: _Newest, loss: str) -> list[tuple[int, float]]:
    """The timed steps of the loss, else of the most frequent metric: names may count steps in ways of their own.
    Where no step has a time, the newest step alone: it tells no speed, but whether the run is beyond its total."""
    for name in (loss, _RUNTIME_LOSS):
        if name in newest.points:
            return newest.points[name]
    longest = max(newest.points.values(), key=lambda points: len(points))
    return longest or [(step, 0.0) for step in newest.steps.values()][:1]


def _heartbeat(run: RunRecord, layout: RunLayout, *, now_s: float) -> tuple[Heartbeat | None, list[str]]:
    try:
        heartbeat = read_heartbeat(layout)
    except RecordError as error:
        return None, [f"heartbeat unreadable: {error.what}"]
    if run.result is not None:
        return heartbeat, []
    if run.state is RunState.LOST:
        counted = "counted up to the last heartbeat" if heartbeat else "unknown: there was no heartbeat"
        return heartbeat, [f"the run was lost without a result; time and device hours are {counted}"]
    if heartbeat and now_s - heartbeat.time_s > _SILENCE_S:
        return heartbeat, [f"no heartbeat for {now_s - heartbeat.time_s:.0f} s"]
    return heartbeat, []
