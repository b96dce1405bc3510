"""verify_metrics on real files: what is scored, what is refused and why, baselines and leakage."""

import math
import os
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.prepared_run import PreparedRun, data_file, prepared_run, write_csv
from tools.domain.reports import Verification
from tools.domain.run_state import RunState
from tools.statistics import mcnemar_exact, wilson
from tools.verify_metrics import ONE_SEED, verify_metrics


def _verify(prepared: PreparedRun) -> Verification:
    return verify_metrics(prepared.plan, plan_digest=prepared.plan.digest, run=prepared.run, layout=prepared.layout)


def _refused(prepared: PreparedRun, *words: str) -> None:
    result = _verify(prepared)
    assert result.verdict == "not_verified"
    assert result.metrics == result.comparisons == ()
    assert result.n is None
    for word in words:
        assert word in result.reason
    assert ONE_SEED in result.unverified


@pytest.fixture
def ready(tmp_path: Path) -> PreparedRun:
    """30 rows, three classes; 27 predictions are right."""
    prepared = prepared_run(tmp_path)
    prepared.predict(["b", "c", "a", *prepared.labels[3:]])
    return prepared


def test_scores_with_interval_n_and_paired_tests(ready: PreparedRun) -> None:
    result = _verify(ready)
    assert result.verdict == "verified"
    (metric,) = result.metrics
    assert (metric.name, metric.value, metric.n, result.n) == ("accuracy", 0.9, 30, 30)
    assert (metric.interval.low, metric.interval.high) == wilson(27, 30)
    assert result.predictions_file == "work/preds.csv"
    majority, linear = result.comparisons
    assert (majority.baseline, linear.baseline) == ("majority", "linear")
    assert majority.value == pytest.approx(1 / 3)
    assert majority.difference.value == pytest.approx(0.9 - 1 / 3)
    assert majority.p_value == pytest.approx(mcnemar_exact(18, 1))
    assert majority.p_value <= majority.p_value_adjusted <= 2 * majority.p_value
    assert "better than the majority baseline by +0.5667 (95% interval" in majority.conclusion
    assert ONE_SEED in result.unverified
    assert _verify(ready) == result, "the same plan gives the same numbers"


def test_row_order_does_not_matter(ready: PreparedRun) -> None:
    before = _verify(ready).metrics
    values = ["b", "c", "a", *ready.labels[3:]]
    ready.predict(values[::-1], ids=[f"t{i}" for i in range(30)][::-1])
    assert _verify(ready).metrics == before


def test_baseline_that_is_as_good_shows_no_difference(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path, baselines=("majority",))
    prepared.predict(["a"] * 30)
    (comparison,) = _verify(prepared).comparisons
    assert comparison.p_value == comparison.p_value_adjusted == 1.0
    assert comparison.conclusion.startswith("no difference from the majority baseline is shown: +0.0000")


def test_a_model_below_its_baseline_is_called_worse(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path, labels=["a"] * 28 + ["b"] * 2, baselines=("majority",))
    prepared.predict(["b"] * 30)
    (comparison,) = _verify(prepared).comparisons
    assert comparison.conclusion.startswith("WORSE than the majority baseline by -0.8667")


def test_padded_duplicates_are_refused_with_counts_and_ids(ready: PreparedRun) -> None:
    ids = [f"t{i}" for i in range(30)] + ["t0", "t1"]
    ready.predict(["a"] * 32, ids=ids)
    _refused(ready, "32 rows, the hold-out file 30", "2 ids occur more than once", "'t0', 't1'", "gather_for_metrics")


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([f"t{i}" for i in range(29)], ("1 hold-out ids have no prediction: 't29'", "29 rows")),
        ([f"t{i}" for i in range(29)] + ["t99"], ("'t29'", "1 predicted ids are not in the hold-out file: 't99'")),
        ([f"t{i}" for i in range(29)] + [""], ("1 rows without an id",)),
        ([f"T{i}" for i in range(30)], ("30 hold-out ids have no prediction", "and 25 more")),
        (list(range(30)), ("30 texts are no plain number",)),
    ],
)
def test_ids_must_be_exactly_those_of_the_holdout(ready: PreparedRun, ids: list[Any], words: tuple[str, ...]) -> None:
    ready.predict(["a"] * len(ids), ids=ids)
    _refused(ready, *words)


@pytest.mark.parametrize("gap", ["", "nan", "NaN", "None"])
def test_missing_predictions_are_refused(ready: PreparedRun, gap: str) -> None:
    ready.predict([*["a"] * 29, gap])
    _refused(ready, "1 predictions are missing, NaN or infinite", "'t29'")


@pytest.mark.parametrize("gap", ["nan", "inf", "-inf", ""])
def test_missing_numbers_are_refused(tmp_path: Path, gap: str) -> None:
    prepared = prepared_run(tmp_path, task="regression", labels=[float(i) for i in range(30)], metrics=("mae",))
    prepared.predict([*[1.5] * 29, gap])
    _refused(prepared, "1 predictions are missing, NaN or infinite")


def test_a_holdout_file_that_changed_by_one_byte_is_refused_first(ready: PreparedRun) -> None:
    content = ready.holdout.read_bytes()
    ready.holdout.write_bytes(content.replace(b"t3,a", b"t3,b"))
    (ready.layout.work / "preds.csv").unlink()
    _refused(ready, "not the one that the plan fixed", "content changed")


def test_an_undeclared_holdout_is_refused(ready: PreparedRun) -> None:
    _refused(ready.with_plan(data=ready.plan.data[:1]), "not in the plan's data manifest")


@pytest.mark.parametrize(
    "path",
    ["../../data/holdout.csv", "/etc/passwd", "work/../../../data/holdout.csv", "code/train.py", "work/link.csv"],
)
def test_predictions_must_lie_inside_the_run(ready: PreparedRun, path: str) -> None:
    (ready.layout.work / "link.csv").symlink_to(ready.holdout)
    _refused(ready.with_evaluation(predictions=path), "inside its run directory")


def test_predictions_older_than_the_run_are_not_the_runs_own(ready: PreparedRun) -> None:
    os.utime(ready.layout.work / "preds.csv", (1, 1))
    _refused(ready, "older than the run")


def test_an_absent_file_names_the_one_in_the_working_directory(ready: PreparedRun) -> None:
    _refused(ready.with_evaluation(predictions="preds.csv"), "work/preds.csv: name that in evaluation.predictions")
    _refused(ready.with_evaluation(predictions="work/nothing.csv"), "wrote no predictions file")
    assert _verify(ready.with_evaluation(predictions="{run_dir}/work/preds.csv")).verdict == "verified"


def test_wrong_columns_are_refused_with_what_is_there(ready: PreparedRun) -> None:
    _refused(ready.with_evaluation(prediction_column="guess"), "no column 'guess'", "'prediction'")


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.FAILED, RunState.LOST, RunState.STOPPED_AT_LIMIT])
def test_only_a_run_that_succeeded_is_scored(ready: PreparedRun, state: RunState) -> None:
    run = ready.run.model_copy(update={"state": state})
    result = verify_metrics(ready.plan, plan_digest=ready.plan.digest, run=run, layout=ready.layout)
    assert result.verdict == "not_verified"
    assert state.value in result.reason


def test_smoke_runs_other_plans_and_plans_without_evaluation_are_refused(ready: PreparedRun) -> None:
    other = ready.with_plan(seed=8)
    run = ready.run.model_copy(update={"kind": "smoke"})
    assert "smoke run" in verify_metrics(ready.plan, plan_digest=ready.plan.digest, run=run, layout=ready.layout).reason
    mixed = verify_metrics(other.plan, plan_digest=other.plan.digest, run=ready.run, layout=ready.layout)
    assert "belongs to plan" in mixed.reason
    _refused(ready.with_plan(evaluation=None), "names no evaluation")


def test_numbers_as_text_are_compared_as_numbers_and_this_is_said(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path, labels=[0, 1] * 15, baselines=())
    prepared = prepared.with_evaluation(predictions="work/preds.jsonl")
    path = prepared.layout.work / "preds.jsonl"
    path.write_text("".join(f'{{"id": "t{i}", "prediction": "{v}"}}\n' for i, v in enumerate(prepared.labels)))
    result = _verify(prepared)
    assert result.metrics[0].value == 1.0
    assert "prediction is text, label holds numbers; compared as numbers" in result.reason
    path.write_text("".join(f'{{"id": "t{i}", "prediction": "0{v}"}}\n' for i, v in enumerate(prepared.labels)))
    _refused(prepared, "no plain number", "'00'")
    path.write_text(
        "".join(f'{{"id": "t{i}", "prediction": {"true" if v else "false"}}}\n' for i, v in enumerate(prepared.labels))
    )
    _refused(prepared, "type boolean")


def test_regression_against_the_mean_and_a_linear_model(tmp_path: Path) -> None:
    labels = [float(i % 7) + 0.25 for i in range(60)]
    prepared = prepared_run(
        tmp_path,
        task="regression",
        labels=labels,
        metrics=("mae", "rmse", "r2"),
        baselines=("mean", "linear", "majority"),
    )
    prepared.predict([value + (0.1 if i % 2 else -0.1) for i, value in enumerate(labels)])
    result = _verify(prepared)
    values = {m.name: m.value for m in result.metrics}
    assert values["mae"] == pytest.approx(0.1)
    assert len(result.comparisons) == 6
    mean = next(c for c in result.comparisons if (c.baseline, c.metric) == ("mean", "mae"))
    assert mean.difference.high < 0
    assert mean.conclusion.startswith("better than the mean baseline by -")
    assert mean.p_value_adjusted > mean.p_value
    assert any(text.startswith("baseline:majority: does not fit") for text in result.unverified)


def test_unknown_and_undefined_metrics_are_listed_not_invented(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path, task="regression", labels=[2.0] * 20, metrics=("mae", "r2", "bleu"), baselines=())
    prepared.predict([1.5] * 20)
    result = _verify(prepared)
    assert [m.name for m in result.metrics] == ["mae"]
    assert any(text.startswith("metric:r2: undefined") for text in result.unverified)
    assert any(text.startswith("metric:bleu:") for text in result.unverified)
    _refused(prepared.with_evaluation(metrics=("bleu",)), "bleu", "mae, rmse, r2")


def test_a_changed_training_file_leaves_the_scores_but_no_baselines(ready: PreparedRun) -> None:
    ready.train.write_text(ready.train.read_text() + "r99,a,1,2\n")
    result = _verify(ready)
    assert result.verdict == "verified"
    assert result.comparisons == ()
    missing = [text for text in result.unverified if text.startswith(("baseline:", "leakage:"))]
    assert len(missing) == 3
    assert "size" in missing[0]


def test_no_baseline_is_said(ready: PreparedRun) -> None:
    result = _verify(ready.with_evaluation(baselines=()))
    assert "baseline: the metrics are compared with nothing" in result.unverified


def test_a_clean_split_is_said_to_be_clean(ready: PreparedRun) -> None:
    (finding,) = _verify(ready).leakage
    assert finding.code == "leakage_none_found"
    assert "none of the 30 hold-out rows" in finding.message


@pytest.mark.parametrize("named", [True, False])
def test_leaked_rows_are_found_and_a_clean_score_is_given(tmp_path: Path, named: bool) -> None:
    """A real kind of failure: equal text, changed case and Unicode form, another label, one patient twice."""
    cafe = "Caf\u00e9 at nine"
    train = [
        (1, "Free prize inside", 1, "P1"), (2, "See you at noon", 0, "P2"), (3, cafe, 0, "P3"),
        (4, "Call  me back", 0, "P4"), (5, "Invoice attached", 1, "P5"), (6, "Good night", 0, "P6"),
        (7, "Unique one", 0, "P7"), (8, "Last row", 1, "P8"),
    ]  # fmt: skip
    test = [
        ("t1", "Free prize inside", 1, "P3"), ("t2", "See you at noon", 1, "P20"),
        ("t3", unicodedata.normalize("NFD", cafe), 0, "P21"), ("t4", "call me  BACK", 0, "P22"),
        ("t5", "Brand new text", 1, "P3"), ("7", "Another text", 1, "P23"),
    ]  # fmt: skip
    prepared = prepared_run(tmp_path, baselines=("majority",))
    header = ["id", "text", "label", "patient"]
    write_csv(prepared.train, header, train)
    write_csv(prepared.holdout, header, test)
    prepared = prepared.with_plan(data=(data_file("train", prepared.train), data_file("holdout", prepared.holdout)))
    prepared = prepared.with_evaluation(group_column="patient" if named else None)
    prepared.predict([1, 1, 0, 0, 0, 0], ids=[row[0] for row in test])
    result = _verify(prepared)
    found = {f.code: f.message for f in result.leakage}
    assert "2 of 6" in found["leakage_exact"]
    assert "'t1', 't2'" in found["leakage_exact"]
    assert "4 of 6" in found["leakage_normalised"]
    assert "1 of 6" in found["leakage_conflict"]
    assert "'t2'" in found["leakage_conflict"]
    by_name = {m.name: m for m in result.metrics}
    assert by_name["accuracy"].value == pytest.approx(4 / 6)
    clean = by_name["accuracy (clean rows)"]
    if named:
        assert "'t1', 't5'" in found["leakage_group"]
        assert (clean.n, clean.value) == (1, 0.0)
    else:
        assert "leakage_group" not in found
        assert any(text.startswith("group_leakage:") for text in result.unverified)
        assert (clean.n, clean.value) == (2, 0.0)


def test_an_id_that_is_reused_for_other_content_is_noted(tmp_path: Path) -> None:
    prepared = prepared_run(tmp_path, labels=["a", "b"] * 3, baselines=())
    write_csv(prepared.train, ["id", "label", "x"], [(f"t{i}", "a", 100 + i) for i in range(6)])
    prepared = prepared.with_plan(data=(data_file("train", prepared.train), data_file("holdout", prepared.holdout)))
    prepared.predict(prepared.labels)
    codes = {f.code: f for f in _verify(prepared).leakage}
    assert codes["leakage_same_id"].level == "note"
    assert "6 of 6" in codes["leakage_same_id"].message


def test_nothing_in_a_verification_is_nan(ready: PreparedRun) -> None:
    result = _verify(ready.with_evaluation(metrics=("accuracy", "balanced_accuracy", "macro_f1")))
    for metric in result.metrics:
        assert all(map(math.isfinite, (metric.value, metric.interval.low, metric.interval.high)))
    assert Verification.model_validate_json(result.model_dump_json()) == result
