"""The rows that are scored: a run's predictions joined by id with the hold-out labels, or every reason why not."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.config.digest import digest_file
from runtime.config.plan import DataFile, Evaluation, TrainingPlan
from runtime.layout import RunLayout
from runtime.snapshots.data_manifest import data_drift

from .data_files import read_columns
from .domain.errors import InvalidInput
from .statistics.labels import first_few, is_missing, unify

MAX_BYTES = 2**30
_CLOCK_TOLERANCE_S = 2.0
_MISSING_WORDS = frozenset({"nan", "none", "null", "na", "n/a"})


@dataclass(frozen=True)
class HoldoutRows:
    """All rows of the hold-out file, in its order. `notes` say what was converted to make values comparable."""

    ids: list[Any]
    labels: list[Any]
    predictions: list[Any]
    notes: tuple[str, ...]
    predictions_file: str
    predictions_sha256: str
    holdout_sha256: str


def read_rows(plan: TrainingPlan, evaluation: Evaluation, layout: RunLayout, *, not_before_s: float) -> HoldoutRows:
    """Check and read both files.

    Args:
        not_before_s: when the run started; predictions that are older were not made by it.

    Raises:
        InvalidInput: the hold-out is not the one of the plan, the predictions are not the run's own, or rows do not
            fit one to one.
    """
    holdout = planned_file(plan, evaluation.holdout, "hold-out")
    path = _predictions_path(evaluation.predictions, layout, not_before_s=not_before_s)
    digest = digest_file(path)
    expected = read_columns(Path(holdout.path), [evaluation.id_column, evaluation.label_column])
    found = read_columns(path, [evaluation.id_column, evaluation.prediction_column])
    if digest_file(path) != digest or data_drift([holdout]):
        raise InvalidInput("a file changed while it was being read", next_step="verify again when nothing writes to it")
    order, id_note = _join(found[evaluation.id_column], expected[evaluation.id_column])
    predictions = [found[evaluation.prediction_column][row] for row in order]
    labels = expected[evaluation.label_column]
    values, truth, label_note = _comparable(evaluation, predictions, labels, expected[evaluation.id_column])
    return HoldoutRows(
        ids=expected[evaluation.id_column],
        labels=truth,
        predictions=values,
        notes=tuple(note for note in (id_note, label_note) if note),
        predictions_file=path.relative_to(layout.root.resolve()).as_posix(),
        predictions_sha256=digest,
        holdout_sha256=holdout.sha256,
    )


def planned_file(plan: TrainingPlan, path: str, what: str) -> DataFile:
    """The manifest's entry of this file, after checking that the file is still the one of the plan.

    Raises:
        InvalidInput: the plan does not declare it, or it has changed.
    """
    entry = next((file for file in plan.data if file.path == path), None)
    if entry is None:
        raise InvalidInput(
            f"the {what} file {path} is not in the plan's data manifest",
            allowed=first_few(file.path for file in plan.data) or "a declared data file",
            next_step="declare it in a new plan",
        )
    drift = data_drift([entry])
    if drift:
        raise InvalidInput(
            f"the {what} file is not the one that the plan fixed: {drift[0]}",
            next_step="restore the file, or make a new plan with base_plan_id",
        )
    return entry


def _predictions_path(text: str, layout: RunLayout, *, not_before_s: float) -> Path:
    root = layout.root.resolve()
    named = Path(text.replace("{run_dir}", str(root)))
    path = (root / named).resolve()
    if root not in path.parents or layout.code.resolve() in (path, *path.parents):
        raise InvalidInput(
            f"predictions {text!r} lead to {path}",
            allowed="a file that the run writes inside its run directory, outside code/",
            next_step="let the script write to {run_dir}",
        )
    if not path.is_file():
        in_work = layout.work / text
        hint = f"it wrote work/{text}: name that in evaluation.predictions" if in_work.is_file() else "see read_logs"
        raise InvalidInput(f"the run wrote no predictions file {text!r}", allowed=f"a file at {path}", next_step=hint)
    status = path.stat()
    if status.st_size > MAX_BYTES:
        raise InvalidInput(f"the predictions file has {status.st_size} bytes", allowed=f"up to {MAX_BYTES}")
    if status.st_mtime < not_before_s - _CLOCK_TOLERANCE_S:
        raise InvalidInput(
            f"the predictions file {text!r} is older than the run: this run did not write it",
            next_step="let the script write its predictions itself",
        )
    return path


def _join(found: Sequence[Any], expected: Sequence[Any]) -> tuple[list[int], str]:
    """For each hold-out row the number of its prediction row; all that does not fit is said at once."""
    problems = [
        f"{what} has {gaps} rows without an id"
        for what, ids in (("the predictions file", found), ("the hold-out file", expected))
        if (gaps := sum(map(is_missing, ids)))
    ]
    if not expected:
        problems.append("the hold-out file has no rows")
    if problems:
        raise _mismatch(problems)
    same = unify(found, expected, what_first="id in predictions", what_second="id in hold-out")
    if len(found) != len(expected):
        problems.append(f"the predictions file has {len(found)} rows, the hold-out file {len(expected)}")
    for what, ids in (("the predictions file", same.first), ("the hold-out file", same.second)):
        repeated = [value for value, count in Counter(ids).items() if count > 1]
        if repeated:
            problems.append(f"{len(repeated)} ids occur more than once in {what}: {first_few(repeated)}")
    known, present = set(same.second), set(same.first)
    missing = [value for value in dict.fromkeys(same.second) if value not in present]
    extra = [value for value in dict.fromkeys(same.first) if value not in known]
    if missing:
        problems.append(f"{len(missing)} hold-out ids have no prediction: {first_few(missing)}")
    if extra:
        problems.append(f"{len(extra)} predicted ids are not in the hold-out file: {first_few(extra)}")
    if problems:
        raise _mismatch(problems)
    place = {value: row for row, value in enumerate(same.first)}
    return [place[value] for value in same.second], same.note


def _mismatch(problems: Sequence[str]) -> InvalidInput:
    return InvalidInput(
        "; ".join(problems),
        allowed="exactly one prediction for every row of the hold-out file",
        next_step="drop padded duplicates (gather_for_metrics does) and write each id once",
    )


def _comparable(
    evaluation: Evaluation, predictions: Sequence[Any], labels: Sequence[Any], ids: Sequence[Any]
) -> tuple[list[Any], list[Any], str]:
    known = set(labels) if all(isinstance(v, str) for v in labels) else set()
    for what, values in (("predictions", predictions), ("hold-out labels", labels)):
        bad = [ids[row] for row, value in enumerate(values) if _is_gap(value, known)]
        if bad:
            raise InvalidInput(
                f"{len(bad)} {what} are missing, NaN or infinite, first at ids {first_few(bad)}",
                allowed="a finite value in every row",
                next_step="diagnose_failure and read_logs show whether training diverged",
            )
    same = unify(predictions, labels, what_first="prediction", what_second="label")
    if evaluation.task == "regression":
        wrong = [v for v in (*same.first, *same.second) if isinstance(v, bool) or not isinstance(v, int | float)]
        if wrong:
            raise InvalidInput(f"regression values that are no numbers: {first_few(wrong)}", allowed="numbers")
    return same.first, same.second, same.note


def _is_gap(value: Any, known: set[Any]) -> bool:
    if is_missing(value) or (isinstance(value, float) and not math.isfinite(value)):
        return True
    return isinstance(value, str) and value.strip().lower() in _MISSING_WORDS and value not in known
