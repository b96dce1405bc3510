"""verify_metrics: the server's own scores of a run's predictions on the hold-out file that the plan fixed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.config.digest import digest_entries, digest_file
from runtime.config.plan import DataFile, Evaluation, TrainingPlan
from runtime.errors import ForerunError
from runtime.layout import RunLayout

from .data_files import column_names, read_columns
from .domain.errors import InvalidInput
from .domain.findings import Finding
from .domain.reports import BaselineComparison, Interval, MetricValue, Verification
from .domain.run_state import RunRecord, RunState
from .holdout_rows import MAX_BYTES, HoldoutRows, planned_file, read_rows
from .statistics import (
    METRICS,
    Baseline,
    Comparison,
    Overlap,
    Score,
    Table,
    compare,
    constant_baseline,
    find_overlap,
    first_few,
    holm,
    linear_baseline,
    metric_names,
    score,
    seed_of,
    unify,
)
from .statistics.labels import is_missing

ONE_SEED = "one seed; seed variance unknown"
CLEAN_ROWS = " (clean rows)"
_ALPHA = 0.05
_ALWAYS_UNVERIFIED = (
    ONE_SEED,
    "near_duplicates: only equal rows were searched, after normalising text; similar rows were not",
    "holdout_unseen: the job could read the hold-out file; that it did not train on it is not shown",
    "time_leakage: whether hold-out rows are later than training rows was not checked",
)


@dataclass(frozen=True)
class _Training:
    """The training file, read for baselines and leakage."""

    entry: DataFile
    columns: dict[str, list[Any]]
    labels: list[Any]


def verify_metrics(plan: TrainingPlan, *, plan_digest: str, run: RunRecord, layout: RunLayout) -> Verification:
    """Score the run's predictions. What cannot be scored is `not_verified` with its reason, never an exception.

    The seed of every resampling comes from `plan_digest`, so that anybody gets the same intervals.
    """
    try:
        evaluation = _scorable(plan, plan_digest, run)
        started_at_s = run.result.started_at_s if run.result else run.created_at_s
        rows = read_rows(plan, evaluation, layout, not_before_s=started_at_s)
    except (ForerunError, OSError) as error:
        return Verification(
            run_id=run.run_id,
            plan_digest=plan_digest,
            verdict="not_verified",
            reason=str(error),
            unverified=(ONE_SEED,),
        )
    return _scored(plan, evaluation, rows, run=run, plan_digest=plan_digest)


def per_row_scores(task: str, rows: HoldoutRows) -> dict[str, list[float]]:
    """Metrics that are plain means over rows: name -> one value per row, in the order of the hold-out file."""
    pairs = list(zip(rows.predictions, rows.labels, strict=True))
    if task == "classification":
        return {"accuracy": [float(predicted == label) for predicted, label in pairs]}
    return {"mae": [abs(predicted - label) for predicted, label in pairs]}


def evaluator_digest() -> str:
    """Digest of the code that scores: this file, the joining of rows, and the statistics."""
    here = Path(__file__).parent
    files = [here / "holdout_rows.py", Path(__file__), *(here / "statistics").glob("*.py")]
    return digest_entries((file.relative_to(here).as_posix(), digest_file(file), False) for file in files)


def _scorable(plan: TrainingPlan, plan_digest: str, run: RunRecord) -> Evaluation:
    if plan.digest != plan_digest or run.plan_digest != plan_digest:
        raise InvalidInput(
            f"run {run.run_id} belongs to plan {run.plan_digest[:12]}, not to {plan_digest[:12]}",
            next_step="verify the run with the plan that it ran",
        )
    if run.kind == "smoke":
        raise InvalidInput(f"run {run.run_id} is a smoke run", allowed="a full run", next_step="launch_training")
    if run.state is not RunState.SUCCEEDED:
        raise InvalidInput(
            f"run {run.run_id} is {run.state.value}: its predictions are not those of a complete training",
            allowed="a run that succeeded",
            next_step="monitor_run, or diagnose_failure",
        )
    if plan.evaluation is None:
        raise InvalidInput(
            "the plan names no evaluation: no hold-out file was fixed before training",
            next_step="a new plan from base_plan_id with evaluation",
        )
    if not set(plan.evaluation.metrics) & set(metric_names(plan.evaluation.task)):
        raise InvalidInput(
            f"none of the metrics {', '.join(plan.evaluation.metrics) or '(none)'} can be scored for"
            f" {plan.evaluation.task}",
            allowed=", ".join(metric_names(plan.evaluation.task)),
        )
    return plan.evaluation


def _scored(
    plan: TrainingPlan, evaluation: Evaluation, rows: HoldoutRows, *, run: RunRecord, plan_digest: str
) -> Verification:
    names = [name for name in dict.fromkeys(evaluation.metrics) if name in metric_names(evaluation.task)]
    unverified = list(_ALWAYS_UNVERIFIED)
    unverified += [
        f"metric:{name}: the server cannot score it for {evaluation.task}"
        for name in dict.fromkeys(evaluation.metrics)
        if name not in names
    ]
    unverified += _sampled(plan, evaluation.holdout)
    seed = seed_of(plan_digest, "metrics")
    scores = score(evaluation.task, rows.labels, rows.predictions, names, seed=seed)
    unverified += [f"metric:{s.name}: {s.method}" for s in scores if math.isnan(s.value)]
    metrics = [_metric(s) for s in scores if not math.isnan(s.value)]
    training = _training(plan, evaluation, rows, unverified)
    comparisons: list[BaselineComparison] = []
    leakage: list[Finding] = []
    if training is not None:
        baselines = _baselines(evaluation, training, rows, unverified)
        scorable = [metric.name for metric in metrics]
        comparisons = _comparisons(evaluation, rows, baselines, scorable, plan_digest=plan_digest)
        leakage, leaked = _leakage(evaluation, training, rows, unverified)
        metrics += _clean_metrics(evaluation, rows, leaked, scorable, seed=seed)
    return Verification(
        run_id=run.run_id,
        plan_digest=plan_digest,
        verdict="verified",
        reason="; ".join([f"scored by the server on all {len(rows.ids)} rows of the hold-out file", *rows.notes]),
        n=len(rows.ids),
        predictions_sha256=rows.predictions_sha256,
        predictions_file=rows.predictions_file,
        holdout_sha256=rows.holdout_sha256,
        metrics=tuple(metrics),
        comparisons=tuple(comparisons),
        leakage=tuple(leakage),
        unverified=tuple(unverified),
    )


def _sampled(plan: TrainingPlan, path: str) -> list[str]:
    return [
        f"data_sampled:{Path(path).name}: its digest covers samples of the file, not every byte"
        for file in plan.data
        if file.path == path and file.mode == "sampled"
    ]


def _metric(result: Score, *, suffix: str = "") -> MetricValue:
    return MetricValue(
        name=result.name + suffix,
        value=result.value,
        interval=Interval(value=result.value, low=result.low, high=result.high),
        n=result.n,
        method=result.method,
    )


def _clean_metrics(
    evaluation: Evaluation, rows: HoldoutRows, leaked: frozenset[int], names: Sequence[str], *, seed: int
) -> list[MetricValue]:
    """The same metrics without the leaked rows."""
    kept = [row for row in range(len(rows.ids)) if row not in leaked]
    if not leaked or not kept:
        return []
    labels, predictions = [rows.labels[r] for r in kept], [rows.predictions[r] for r in kept]
    results = score(evaluation.task, labels, predictions, names, seed=seed)
    return [_metric(r, suffix=CLEAN_ROWS) for r in results if not math.isnan(r.value)]


def _training(plan: TrainingPlan, evaluation: Evaluation, rows: HoldoutRows, unverified: list[str]) -> _Training | None:
    """The training file if it is named, unchanged and readable; else the reason goes to `unverified`."""
    try:
        if evaluation.train is None:
            raise InvalidInput("the plan's evaluation names no training file")
        entry = planned_file(plan, evaluation.train, "training")
        unverified += _sampled(plan, evaluation.train)
        if entry.size_bytes > MAX_BYTES:
            raise InvalidInput(f"the training file has {entry.size_bytes} bytes, over {MAX_BYTES}")
        path = Path(entry.path)
        columns = read_columns(path, column_names(path))
        if evaluation.label_column not in columns:
            raise InvalidInput(f"the training file has no column {evaluation.label_column!r}")
        labels = columns[evaluation.label_column]
        gaps = sum(map(is_missing, labels))
        if gaps or not labels:
            raise InvalidInput(f"{gaps} of the {len(labels)} training labels are missing")
        labels = unify(labels, rows.labels, what_first="training label", what_second="label").first
    except (ForerunError, OSError) as error:
        reason = str(error)
        unverified += [f"baseline:{name}: {reason}" for name in evaluation.baselines]
        unverified.append(f"leakage: overlap of training and hold-out rows was not searched: {reason}")
        return None
    return _Training(entry, columns, labels)


def _baselines(evaluation: Evaluation, training: _Training, rows: HoldoutRows, unverified: list[str]) -> list[Baseline]:
    fitting = {"classification": ("majority", "linear"), "regression": ("mean", "linear")}[evaluation.task]
    made = []
    for name in dict.fromkeys(evaluation.baselines):
        if name not in fitting:
            unverified.append(f"baseline:{name}: does not fit {evaluation.task}")
            continue
        try:
            if name != "linear":
                made.append(constant_baseline(name, training.labels, num_rows=len(rows.ids)))
                continue
            made.append(_linear(evaluation, training, rows))
        except (ForerunError, OSError, ValueError) as error:
            unverified.append(f"baseline:{name}: {error}")
    if not made:
        unverified.append("baseline: the metrics are compared with nothing")
    return made


def _linear(evaluation: Evaluation, training: _Training, rows: HoldoutRows) -> Baseline:
    apart = {evaluation.id_column, evaluation.label_column, evaluation.group_column}
    holdout_path = Path(evaluation.holdout)
    names = [n for n in column_names(holdout_path) if n in training.columns and n not in apart]
    holdout = read_columns(holdout_path, names)
    features = {name: training.columns[name] for name in names}
    return linear_baseline(evaluation.task, features, training.labels, holdout, num_rows=len(rows.ids))


def _comparisons(
    evaluation: Evaluation, rows: HoldoutRows, baselines: Sequence[Baseline], names: Sequence[str], *, plan_digest: str
) -> list[BaselineComparison]:
    found: list[tuple[Baseline, Score, Comparison]] = []
    for baseline in baselines:
        seed = seed_of(plan_digest, f"baseline {baseline.name}")
        own = score(evaluation.task, rows.labels, baseline.predictions, names, seed=seed)
        against = compare(evaluation.task, rows.labels, rows.predictions, baseline.predictions, names, seed=seed)
        found += [(baseline, s, c) for s, c in zip(own, against, strict=True)]
    adjusted = holm([comparison.p_value for _, _, comparison in found])
    return [
        BaselineComparison(
            baseline=baseline.name,
            metric=comparison.name,
            value=own.value,
            interval=Interval(value=own.value, low=own.low, high=own.high),
            difference=Interval(value=comparison.difference, low=comparison.low, high=comparison.high),
            test=comparison.test,
            p_value=comparison.p_value,
            p_value_adjusted=p_adjusted,
            conclusion=_conclusion(baseline, comparison, p_adjusted),
        )
        for (baseline, own, comparison), p_adjusted in zip(found, adjusted, strict=True)
    ]


def _conclusion(baseline: Baseline, comparison: Comparison, p_adjusted: float) -> str:
    """Effect, interval, n and p in one sentence; never a bare 'better'."""
    numbers = (
        f"{comparison.difference:+.4f} (95% interval {comparison.low:+.4f} to {comparison.high:+.4f},"
        f" n = {comparison.n}, p = {p_adjusted:.2g} after Holm)"
    )
    shown = p_adjusted < _ALPHA and not comparison.low <= 0 <= comparison.high
    if not shown:
        return f"no difference from the {baseline.name} baseline is shown: {numbers}. Baseline: {baseline.method}"
    gain = (comparison.difference > 0) == METRICS[comparison.name].higher_is_better
    word = "better" if gain else "WORSE"
    return f"{word} than the {baseline.name} baseline by {numbers}. Baseline: {baseline.method}"


def _leakage(
    evaluation: Evaluation, training: _Training, rows: HoldoutRows, unverified: list[str]
) -> tuple[list[Finding], frozenset[int]]:
    try:
        path = Path(evaluation.holdout)
        columns = read_columns(path, column_names(path))
    except (ForerunError, OSError) as error:
        unverified.append(f"leakage: overlap of training and hold-out rows was not searched: {error}")
        return [], frozenset()
    num_training = len(training.labels)
    overlap = find_overlap(
        _table(evaluation, training.columns, training.labels, range(num_training)),
        _table(evaluation, columns, rows.labels, rows.ids),
    )
    if not overlap.compared:
        unverified.append("leakage: training and hold-out file share no column of content, nothing was compared")
    if evaluation.group_column is None:
        unverified.append("group_leakage: no group column was named; rows of one person may be in both files")
    return _leakage_findings(evaluation, overlap, rows), overlap.leaking


def _table(evaluation: Evaluation, columns: dict[str, list[Any]], labels: Sequence[Any], ids: Sequence[Any]) -> Table:
    """Without an id column the row numbers stand in for ids and are never those of the other file."""
    apart = (evaluation.id_column, evaluation.label_column, evaluation.group_column)
    return Table(
        ids=columns.get(evaluation.id_column, [("row", number) for number in ids]),
        labels=labels,
        features={name: values for name, values in columns.items() if name not in apart},
        groups=columns.get(evaluation.group_column or ""),
    )


def _leakage_findings(evaluation: Evaluation, overlap: Overlap, rows: HoldoutRows) -> list[Finding]:
    kinds = (
        ("leakage_exact", overlap.exact, "hold-out rows stand in the training file as they are"),
        (
            "leakage_normalised",
            overlap.normalised,
            "hold-out rows do after normalising case, white space and Unicode form",
        ),
        ("leakage_conflict", overlap.conflicting, "hold-out rows stand there with another label"),
        ("leakage_group", overlap.grouped, f"hold-out rows share {evaluation.group_column!r} with training rows"),
        ("leakage_same_id", overlap.reused_ids, "hold-out rows have the id of a training row with other content"),
    )
    total = len(rows.ids)
    findings = [
        Finding(
            code=code,
            level="note" if code == "leakage_same_id" else "warning",
            message=f"{len(found)} of {total} {what} (ids {first_few(rows.ids[row] for row in found)})",
            hint="" if code == "leakage_same_id" else "see the metrics on clean rows, and split the data anew",
        )
        for code, found, what in kinds
        if found
    ]
    if not overlap.leaking and overlap.compared:
        what = "; ".join(overlap.compared)
        message = f"none of the {total} hold-out rows stands in the training file (compared over {what})"
        findings.append(Finding(code="leakage_none_found", level="note", message=message))
    return findings
