"""The numbers that a report can vouch for, each with the words by which a sentence may speak of it."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..domain.reports import Interval
from ..verify_metrics import CLEAN_ROWS
from .facts import Facts
from .material import ReportMaterial

_INTERVAL = frozenset({"interval", "ci", "confidence", "bounds", "between", "range"})
_ROWS = frozenset(
    [
        "n",
        "row",
        "rows",
        "sample",
        "samples",
        "example",
        "examples",
        "image",
        "images",
        "record",
        "records",
        "holdout",
        "hold-out",
        "held-out",
        "test",
    ]
)
_BASELINE = frozenset({"baseline", "baselines"})
_LEAKAGE = frozenset({"leak", "leaks", "leaked", "leakage", "overlap", "overlaps", "duplicate", "duplicates"})
_TIME = frozenset(
    ["took", "ran", "runtime", "time", "duration", "seconds", "wall", "elapsed", "lasted", "finished", "within", "run"]
)
_SYNONYMS = {
    "accuracy": {"acc", "accurate", "correct", "right"},
    "learning_rate": {"lr", "learning-rate", "rate"},
    "lr": {"learning_rate", "learning-rate", "rate"},
    "epochs": {"epoch"},
    "batch_size": {"batch", "batches"},
    "mae": {"error"},
    "rmse": {"error"},
}


@dataclass(frozen=True)
class Known:
    """A number with its evidence.

    Attributes:
        words: any of them must be the word that the sentence ties to the number.
        unit: the unit that a number must carry if it carries one: ratio, s, bytes or empty.
        support: server, script, supervisor, plan, estimate or human: who stands for it.
        name: the metric that it belongs to, else empty.
        partner: of a bound of an interval, the other bound; beside it the bound needs no word.
    """

    value: float
    words: frozenset[str]
    support: str
    source: str
    unit: str = ""
    name: str = ""
    partner: float | None = None


def known_numbers(material: ReportMaterial, facts: Facts) -> list[Known]:
    """All finite numbers of the report that a summary may quote."""
    found = (*_scores(material), *_script(facts), *_run(material, facts), *_plan(material), *_estimate(material))
    return [known for known in found if math.isfinite(known.value)]


def metric_words(name: str) -> frozenset[str]:
    """How prose may call a metric: its name, its parts, its synonyms."""
    lower = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    words = {lower, lower.replace("_", "-"), name.lower(), *_SYNONYMS.get(lower, ())}
    if lower.startswith(("val_", "eval_", "train_", "test_")):
        rest = lower.split("_", 1)[1]
        words |= {rest, *_SYNONYMS.get(rest, ())}
    return frozenset(words)


def _interval(interval: Interval, words: frozenset[str], support: str, source: str, name: str) -> Iterator[Known]:
    yield Known(interval.value, words, support, source, "ratio", name)
    for bound, partner in ((interval.low, interval.high), (interval.high, interval.low)):
        yield Known(bound, _INTERVAL, support, source, "ratio", name, partner)
    yield Known(interval.level / 100, _INTERVAL, support, source, "ratio", name)


def _scores(material: ReportMaterial) -> Iterator[Known]:
    verification = material.verification
    if verification is None or verification.verdict != "verified":
        return
    for metric in verification.metrics:
        words, source = metric_words(metric.name), f"metric:{metric.name}"
        if metric.name.endswith(CLEAN_ROWS):
            words = frozenset({"clean"})
        yield from _interval(metric.interval, words, "server", source, metric.name)
        yield Known(metric.n, _ROWS, "server", source)
    for finding in verification.leakage:
        count = finding.message.partition(" of ")[0]
        if count.isdecimal():
            yield Known(int(count), _LEAKAGE | _ROWS, "server", f"leakage:{finding.code}")
    for c in verification.comparisons:
        source = f"comparison:{c.metric}:{c.baseline}"
        words = _BASELINE | {c.baseline, f"{c.baseline}-baseline"}
        yield from _interval(c.interval, words, "server", source, c.metric)
        gap_words = words | {"difference", "gain", "gap", "improvement", "margin"}
        for value in (c.difference.value, abs(c.difference.value)):
            yield Known(value, gap_words, "server", source, "ratio", c.metric)
        for value, partner in ((c.difference.low, c.difference.high), (c.difference.high, c.difference.low)):
            yield Known(value, _INTERVAL, "server", source, "ratio", c.metric, partner)
        for value in (c.p_value, c.p_value_adjusted):
            yield Known(value, frozenset({"p", "p-value", "holm", "mcnemar", "test"}), "server", source)


def _script(facts: Facts) -> Iterator[Known]:
    for series in facts.series:
        words, source = metric_words(series.name), f"script_metric:{series.name}"
        finite = [m for m in series.values if math.isfinite(m.record.value)]
        if not finite:
            continue
        values = {finite[0].record.value, finite[-1].record.value}
        values |= {min(m.record.value for m in finite), max(m.record.value for m in finite)}
        for value in values:
            yield Known(value, words, "script", source, "ratio", series.name)
    steps = [m.record.step for s in facts.series for m in s.values if m.record.step is not None]
    if steps:
        yield Known(max(steps), frozenset({"step", "steps", "updates", "iterations"}), "script", "steps")


def _run(material: ReportMaterial, facts: Facts) -> Iterator[Known]:
    result = material.run.result
    if facts.spell.seconds is not None:
        yield Known(facts.spell.seconds, _TIME, "supervisor", "duration", "s")
    if result is not None:
        if result.exit_code is not None:
            yield Known(result.exit_code, frozenset({"exit", "code", "status"}), "supervisor", "run_state")
        if result.peak_memory_bytes is not None:
            memory = frozenset({"memory", "ram", "peak", "rss"})
            yield Known(result.peak_memory_bytes, memory, "supervisor", "peak_memory", "bytes")
    cost = facts.account.lines[0].cost
    for value in (cost, facts.account.total_cost):
        if value is not None:
            yield Known(value, frozenset({"cost", "costs", "eur", "usd", "price", "paid"}), "supervisor", "cost")


def _plan(material: ReportMaterial) -> Iterator[Known]:
    plan = material.plan_record.plan
    if plan is None:
        return
    layout = plan.layout
    processes = {"process", "processes", "rank", "ranks", "worker", "workers", "world"}
    if layout.device == "cuda":
        processes |= {"gpu", "gpus", "devices"}
    yield Known(layout.num_processes, frozenset(processes), "plan", "plan")
    yield Known(layout.num_nodes, frozenset({"node", "nodes", "machine", "machines"}), "plan", "plan")
    if plan.seed is not None:
        yield Known(plan.seed, frozenset({"seed", "seeds"}), "plan", "plan")
    pairs = [(s.name, s.value) for s in plan.settings]
    arguments = [part for text in material.arguments for part in text.split("=", 1)]
    pairs += list(itertools.pairwise(arguments))
    for name, text in pairs:
        try:
            value = float(text)
        except ValueError:
            continue
        yield Known(value, metric_words(name.lstrip("-")), "plan", "plan")
    if plan.ceilings.cost is not None:
        yield Known(plan.ceilings.cost, frozenset({"ceiling", "limit", "cap"}), "plan", "plan")
    yield Known(plan.ceilings.wall_time_s, frozenset({"ceiling", "limit", "cap"}), "plan", "plan", "s")


def _estimate(material: ReportMaterial) -> Iterator[Known]:
    estimate = material.plan_record.estimate
    if estimate is None:
        return
    words = frozenset({"estimate", "estimated", "expected", "predicted", "forecast"})
    for interval, unit in ((estimate.wall_time_s, "s"), (estimate.memory_bytes, "bytes"), (estimate.cost, "")):
        for value in (interval.value, interval.low, interval.high) if interval else ():
            yield Known(value, words, "estimate", "estimate", unit)
    if estimate.num_steps is not None:
        yield Known(estimate.num_steps, words | {"step", "steps"}, "estimate", "estimate")
