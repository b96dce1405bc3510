"""The digits example under plain torchrun: it learns, predicts each hold-out row once, and reads no hold-out label."""

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

Rows = Callable[[Path], list[dict[str, str]]]
pytestmark = pytest.mark.multiprocess


def test_learns_and_predicts_every_holdout_row_once(
    torchrun: Callable[..., str], digits: list[str], tmp_path: Path, rows: Rows
) -> None:
    torchrun("digits/train.py", *digits, "--output", str(tmp_path / "out"), "--epochs", "6")
    wanted = {row["id"]: row["label"] for row in rows(tmp_path / "data" / "holdout.csv")}
    predicted = rows(tmp_path / "out" / "predictions.csv")
    assert sorted(row["id"] for row in predicted) == sorted(wanted)
    accuracy = sum(wanted[row["id"]] == row["prediction"] for row in predicted) / len(wanted)
    assert accuracy > 0.93
    assert any((tmp_path / "out" / "checkpoints").rglob("*")), "no checkpoint was written"


def test_holdout_labels_play_no_part(
    torchrun: Callable[..., str], digits: list[str], tmp_path: Path, rows: Rows
) -> None:
    options = ["--max_steps", "4"]
    torchrun("digits/train.py", *digits, "--output", str(tmp_path / "out"), *options)
    holdout = tmp_path / "data" / "holdout.csv"
    stripped = [{k: v for k, v in row.items() if k != "label"} for row in rows(holdout)]
    with holdout.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, stripped[0].keys())
        writer.writeheader()
        writer.writerows(stripped)
    torchrun("digits/train.py", *digits, "--output", str(tmp_path / "again"), *options)
    assert rows(tmp_path / "out" / "predictions.csv") == rows(tmp_path / "again" / "predictions.csv")
