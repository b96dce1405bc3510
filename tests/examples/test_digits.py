"""The digits example under plain torchrun: it learns, predicts each hold-out row once, and reads no hold-out label."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

Rows = Callable[[Path], list[dict[str, str]]]


@pytest.mark.multiprocess
def test_learns_and_predicts_every_row_of_a_holdout_without_labels(
    torchrun: Callable[..., str], digits: list[str], tmp_path: Path, rows: Rows
) -> None:
    holdout = tmp_path / "data" / "holdout.csv"
    labelled = rows(holdout)
    with holdout.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, [name for name in labelled[0] if name != "label"], extrasaction="ignore")
        writer.writeheader()
        writer.writerows(labelled)

    torchrun("digits/train.py", *digits, "--output", str(tmp_path / "out"), "--epochs", "5")

    wanted = {row["id"]: row["label"] for row in labelled}
    predicted = rows(tmp_path / "out" / "predictions.csv")
    assert sorted(row["id"] for row in predicted) == sorted(wanted)
    assert sum(wanted[row["id"]] == row["prediction"] for row in predicted) / len(wanted) > 0.93
    assert any((tmp_path / "out" / "checkpoints").rglob("*")), "no checkpoint was written"
