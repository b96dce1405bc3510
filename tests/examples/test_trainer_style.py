"""The trainer-style example: no import of our runtime, the field's usual output, better than the mean."""

import ast
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples import prepare_data

Rows = Callable[[Path], list[dict[str, str]]]
SCRIPT = Path(prepare_data.__file__).parent / "trainer_style" / "train.py"


def test_imports_nothing_of_forerun() -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
    }
    assert imported.isdisjoint({"runtime", "tools", "agent_server"})


@pytest.mark.multiprocess
def test_prints_logs_saves_and_beats_the_mean(
    torchrun: Callable[..., str], diabetes: list[str], tmp_path: Path, rows: Rows
) -> None:
    printed = torchrun("trainer_style/train.py", *diabetes)
    entries = [ast.literal_eval(line) for line in printed.splitlines()]
    assert {"loss", "grad_norm", "learning_rate", "epoch"} == set(entries[0])
    assert "eval_loss" in entries[-1]

    (checkpoint,) = (tmp_path / "output").glob("checkpoint-*")
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    assert checkpoint.name == f"checkpoint-{state['global_step']}"
    assert [e["loss"] for e in state["log_history"] if "loss" in e] == [e["loss"] for e in entries if "loss" in e]
    assert "0.weight" in torch.load(checkpoint / "pytorch_model.bin", weights_only=True)

    wanted = {row["id"]: float(row["label"]) for row in rows(tmp_path / "data" / "holdout.csv")}
    predicted = {row["id"]: float(row["prediction"]) for row in rows(tmp_path / "output" / "predictions.csv")}
    mean = sum(float(row["label"]) for row in rows(tmp_path / "data" / "train.csv")) / 265
    assert predicted.keys() == wanted.keys()
    assert rmse(predicted, wanted) < 0.85 * rmse(dict.fromkeys(wanted, mean), wanted)


def rmse(predicted: dict[str, float], wanted: dict[str, float]) -> float:
    return math.sqrt(sum((predicted[row] - wanted[row]) ** 2 for row in wanted) / len(wanted))
