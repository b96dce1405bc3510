"""evaluation: how the server will score predictions on held-out rows; every column checked against the files."""

import json
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from runtime.config.plan import Evaluation

from ..data_files import read_columns
from ..domain.errors import InvalidInput
from ..domain.findings import Answer, Question
from ..domain.paths import AllowedRoots
from .data import DeclaredData
from .notes import Notes, nearest
from .settings import NONE_WORDS, Settings

_SHORT = {"id": "id_column", "label": "label_column", "prediction": "prediction_column", "group": "group_column"}
KEYS = tuple(Evaluation.model_fields)
_BASELINES = {"classification": ("majority", "linear"), "regression": ("mean", "linear")}
_OVERLAP_CELLS = 20_000_000


def chosen_evaluation(
    given: Mapping[str, Any] | None, answers: Sequence[Answer], settings: Settings, notes: Notes
) -> dict[str, Any] | None:
    """What was given, or else answered; None if neither. The answer `none` is recorded as a setting."""
    answer = next((a for a in answers if a.question_id == "evaluation"), None)
    if given:
        return dict(given)
    if answer is None:
        return None
    if answer.value.strip().lower() in NONE_WORDS:
        settings.put("evaluation", "none", "user" if answer.source == "user" else "assumption")
        return None
    try:
        data = json.loads(answer.value)
        if isinstance(data, dict) and data:
            return data
    except ValueError:
        pass
    notes.error("bad_answer", f"evaluation={answer.value!r} is no JSON object", "allowed: a JSON object, or none")
    return None


def build_evaluation(
    given: Mapping[str, Any], data: DeclaredData, roots: AllowedRoots, notes: Notes, *, arguments: Sequence[str]
) -> Evaluation | None:
    """The plan's Evaluation, or None and the findings that say why not."""
    values = {_SHORT.get(name, name): value for name, value in given.items()}
    unknown = [name for name in values if name not in KEYS]
    for name in unknown:
        hint = f"{nearest(name, (*KEYS, *_SHORT))}; all: {', '.join(KEYS)}"
        notes.error("unknown_evaluation_key", f"evaluation has no {name!r}", hint)
        values.pop(name)
    if not isinstance(values.get("predictions"), str) or not values["predictions"]:
        notes.error("no_predictions", "evaluation names no predictions file", "predictions=<file that the run writes>")
        return None
    values["predictions"] = _predictions(values["predictions"], arguments, notes)
    holdout = _data_path(values.get("holdout"), "holdout", data, roots, notes)
    train = _data_path(values.get("train"), "train", data, roots, notes, optional=True)
    task = values.setdefault("task", "classification")
    if "metrics" not in values:
        values["metrics"] = ("accuracy",) if task == "classification" else ("rmse",)
    for name in ("metrics", "baselines"):
        if isinstance(values.get(name), str):
            values[name] = tuple(values[name].replace(",", " ").split())
    if holdout is None or unknown:
        return None
    try:
        evaluation = Evaluation.model_validate(
            {**values, "holdout": str(holdout), "train": str(train) if train else None}
        )
    except ValidationError as error:
        for problem in error.errors():
            where = ".".join(map(str, problem["loc"]))
            notes.error("bad_evaluation", f"evaluation {where}: {problem['msg']} (seen: {problem['input']!r})")
        return None
    _check_names(evaluation, notes)
    _check_columns(evaluation, data, notes)
    return evaluation


def _predictions(text: str, arguments: Sequence[str], notes: Notes) -> str:
    inside = text.removeprefix("{run_dir}").lstrip("/") if text.startswith("{run_dir}") else text
    normal = posixpath.normpath(inside) if inside else "."
    if normal.startswith(("/", "../")) or normal in ("..", ".") or "{" in normal or "\0" in normal:
        hint = "allowed: {run_dir}/... or a path relative to the run directory"
        notes.error("predictions_outside", f"evaluation predictions {text!r} lie outside the run directory", hint)
    elif inside == text and text in arguments and not text.startswith("work/"):
        notes.note("predictions_in_work", f"predictions {text!r}: the script writes it to its working directory, work/")
        return f"work/{normal}"
    return normal


def _data_path(
    text: Any, role: str, data: DeclaredData, roots: AllowedRoots, notes: Notes, *, optional: bool = False
) -> Path | None:
    """The declared file that is meant: by role, by path, or the only one of the role."""
    of_role = [path for path in data.of_role(role) if path.is_file()]
    if text in (None, "", role):
        if len(of_role) == 1:
            return of_role[0]
        if not (optional and text != role):
            how = "none is declared" if not of_role else f"{len(of_role)} are declared"
            notes.error("evaluation_data", f"evaluation needs one {role} file, and {how}", f"data: {role}=PATH")
        return None
    try:
        path = roots.resolve(str(text), what=f"evaluation {role}")
    except InvalidInput as error:
        notes.refusal("outside_roots", error)
        return None
    if path not in data.paths:
        listed = ", ".join(str(known) for known in data.paths) or "nothing"
        notes.error("evaluation_data", f"evaluation {role} {path} is not declared as data", f"declared: {listed}")
        return None
    if role == "holdout" and path in data.of_role("train"):
        notes.error("holdout_is_train", f"{path} is training data and cannot be held out", "split the data first")
        return None
    return path


def _check_names(evaluation: Evaluation, notes: Notes) -> None:
    from ..statistics import metric_names  # deferred: SciPy loads slowly, and is needed for evaluations alone

    known = metric_names(evaluation.task)
    for name in evaluation.metrics:
        if name not in known:
            hint = f"allowed: {', '.join(known)}"
            notes.error("unknown_metric", f"metric {name!r} does not exist for {evaluation.task}", hint)
    if not evaluation.metrics:
        notes.error("unknown_metric", "evaluation names no metric", f"allowed: {', '.join(known)}")
    for name in evaluation.baselines:
        if name not in _BASELINES[evaluation.task]:
            hint = f"allowed: {', '.join(_BASELINES[evaluation.task])}"
            notes.error("unknown_baseline", f"baseline {name!r} does not exist for {evaluation.task}", hint)
    if evaluation.baselines and evaluation.train is None:
        text = "baselines are fitted on training data, and evaluation names no train file"
        notes.error("evaluation_data", text, "add train, or leave baselines out")


def _check_columns(evaluation: Evaluation, data: DeclaredData, notes: Notes) -> None:
    files: list[tuple[str, str, tuple[str, ...]]] = [
        ("holdout", evaluation.holdout, (evaluation.id_column, evaluation.label_column))
    ]
    if evaluation.train:
        files.append(("train", evaluation.train, (evaluation.label_column,)))
    absent = False
    for role, name, wanted in files:
        report = data.reports.get(Path(name))
        if report is None or not report.columns:
            if report is not None and any(f.level == "error" for f in report.findings):
                continue  # said already, and better
            notes.error("no_columns", f"{role} {Path(name).name} is no table", "CSV, TSV, JSONL or Parquet")
            absent = True
            continue
        group = (evaluation.group_column,) if evaluation.group_column else ()
        for column in (*wanted, *group):
            if column not in report.column_names:
                listed = ", ".join(report.column_names[:60])
                text = f"{role} {Path(name).name} has no column {column!r}"
                notes.error("column_absent", text, f"{nearest(column, report.column_names)}; its columns: {listed}")
                absent = True
    if evaluation.prediction_column == evaluation.id_column:
        notes.error("column_absent", "prediction and id are one column", "name the column that holds predictions")
    if not absent and not notes.has_errors:
        _check_cells(evaluation, data.reports[Path(evaluation.holdout)], notes)


def _check_cells(evaluation: Evaluation, report: Any, notes: Notes) -> None:
    columns = {column.name: column for column in report.columns}
    ids, label = columns[evaluation.id_column], columns[evaluation.label_column]
    for column in (ids, label):
        if column.num_missing or column.num_nan:
            text = f"holdout: column {column.name!r} is missing in {max(column.num_missing, column.num_nan)} row(s)"
            notes.error("holdout_incomplete", text, "every held-out row needs an id and a label")
    if ids.duplicate_rows:
        text = f"holdout: one {ids.name!r} stands in rows {ids.duplicate_rows[0]} and {ids.duplicate_rows[1]}"
        notes.error("holdout_ids_repeat", text, "predictions are joined by id: make ids unique")
    if evaluation.task == "regression" and not label.numeric:
        text = f"holdout: label {label.name!r} is not numeric, and the task is regression"
        notes.error("label_not_numeric", text, "task=classification, or another label")
    if evaluation.task == "classification" and label.numeric and label.types.get("number", 0) > report.num_rows / 2:
        text = f"holdout: label {label.name!r} holds fractions, and the task is classification"
        notes.warning("label_continuous", text, "is it task=regression?")


def note_overlap(evaluation: Evaluation | None, data: DeclaredData, notes: Notes) -> None:
    """Hold-out rows that also stand in train: a warning with counts."""
    pairs = [(t, h) for t in data.of_role("train") for h in data.of_role("holdout")]
    for train, holdout in pairs:
        reports = [data.reports.get(train), data.reports.get(holdout)]
        if any(r is None or not r.complete or not r.columns or r.format in ("npy", "npz") for r in reports):
            continue
        if sum((r.num_rows or 0) * len(r.columns) for r in reports if r) > _OVERLAP_CELLS:
            notes.note("overlap_not_checked", f"{holdout.name} and {train.name} are too large to be compared here")
            continue
        try:
            words = _overlap_words(evaluation, train, holdout, data)
        except InvalidInput:
            continue  # the file's own findings say why it cannot be read
        if words:
            text = f"of the rows of {holdout.name}, {'; '.join(words)} (against {train.name})"
            notes.warning("leakage", text, "scores on such rows flatter the model: take them out of one of the files")


def _overlap_words(evaluation: Evaluation | None, train: Path, holdout: Path, data: DeclaredData) -> list[str]:
    from ..statistics import Table, find_overlap  # deferred: SciPy loads slowly

    names = [data.reports[path].column_names for path in (train, holdout)]
    shared = [name for name in names[1] if name in names[0]]
    label = evaluation.label_column if evaluation else "label"
    row_id = evaluation.id_column if evaluation else "id"
    group = evaluation.group_column if evaluation else None
    features = [name for name in shared if name not in (label, row_id, group)]
    if not features:
        return []
    tables = []
    for path, present in zip((train, holdout), names, strict=True):
        special = [name for name in (label, row_id, group) if name and name in present]
        columns = read_columns(path, [*features, *special])
        rows = range(len(columns[features[0]]))
        tables.append(
            Table(
                ids=[str(value) for value in columns.get(row_id, [f"{path}:{row}" for row in rows])],
                labels=columns.get(label, [None for _ in rows]),
                features={name: columns[name] for name in features},
                groups=columns.get(group) if group else None,
            )
        )
    overlap = find_overlap(*tables)
    counts = (
        (len(overlap.exact), "stand in the training data exactly"),
        (len(overlap.normalised) - len(overlap.exact), "stand there but for case, spaces or Unicode form"),
        (len(overlap.conflicting), "stand there with another label"),
        (len(overlap.grouped), f"belong to a {group} that is trained on"),
        (len(overlap.reused_ids), "reuse an id for other content"),
    )
    return [f"{count} {words}" for count, words in counts if count]


def ask_for_evaluation(data: DeclaredData) -> Question:
    """How is the result to be measured? With a proposal from the hold-out file's own columns."""
    holdout = data.of_role("holdout")[0]
    names = data.reports[holdout].column_names if holdout in data.reports else ()
    label = next((n for n in ("label", "target", "y", "class") if n in names), names[-1] if names else "label")
    row_id = next((n for n in names if n.lower() in ("id", "index", "key", "uid")), "id")
    proposal: dict[str, Any] = {"predictions": "predictions.csv", "holdout": "holdout", "id": row_id, "label": label}
    proposal |= {"prediction": "prediction", "task": "classification", "metrics": ["accuracy"]}
    text = (
        "How are predictions on the hold-out scored? predictions is a file that the script writes to {run_dir}, with "
        f"an id and a prediction column. Columns of {holdout.name}: {_listed(names)}."
    )
    return Question(id="evaluation", text=text, proposal=json.dumps(proposal))


def _listed(names: Sequence[str]) -> str:
    if len(names) <= 14:
        return ", ".join(names) or "unknown"
    return f"{', '.join(names[:6])}, ... {', '.join(names[-3:])} ({len(names)} in all)"
