"""Metrics of a job that was started again: steps that a later attempt repeats count once, as it reports them."""

import bisect
import math
from collections.abc import Sequence

from runtime.layout import RunLayout
from runtime.records import SourcedMetric, read_events


def attempt_starts(layout: RunLayout) -> tuple[float, ...]:
    """When the second and later attempts began, seconds since the epoch; empty if the job was started once."""
    try:
        return tuple(sorted(e.time_s for e in read_events(layout.events) if e.event == "attempt_started"))
    except OSError:
        return ()


def without_repeats(metrics: Sequence[SourcedMetric], starts: Sequence[float]) -> tuple[SourcedMetric, ...]:
    """The metrics less what an earlier attempt said of steps that a later one went through again.

    An attempt that goes on from step 7 makes steps 8 and later of the attempt before it void, repeated or not: the
    weights that they speak of are gone. Where a source carries no time, a step that does not rise begins an attempt.

    Args:
        starts: see attempt_starts; without any, nothing is left out.
    """
    if not starts:
        return tuple(metrics)
    dropped: set[int] = set()
    alive: dict[tuple[str, str], list[tuple[int, int]]] = {}  # (file, name) -> (position, step) of what counts so far
    newest: dict[tuple[str, str], int] = {}
    for position, metric in enumerate(metrics):
        record, key = metric.record, (metric.file, metric.record.name)
        if record.step is None:
            continue
        kept = alive.setdefault(key, [])
        if math.isnan(record.time_s):
            restarted = bool(kept) and record.step <= kept[-1][1]
        else:
            attempt = bisect.bisect_right(starts, record.time_s)
            restarted = attempt > newest.setdefault(key, attempt)
            newest[key] = max(newest[key], attempt)
        if restarted:
            dropped |= {earlier for earlier, step in kept if step >= record.step}
            alive[key] = kept = [(earlier, step) for earlier, step in kept if step < record.step]
        kept.append((position, record.step))
    return tuple(metric for position, metric in enumerate(metrics) if position not in dropped)
