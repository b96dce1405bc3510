"""docs/better-on-purpose.md: each test that it names exists; and what is wrong there and no other test shows."""

import ast
import re
from pathlib import Path

import pytest

from runtime.errors import ConfigurationError
from runtime.strategies.deepspeed_options import DeepSpeedPlugin

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "better-on-purpose.md").read_text())


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED}))
def test_every_test_that_the_document_names_exists(path: str) -> None:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert {name for other, name in NAMED if other == path} <= there


def test_every_line_of_the_document_names_a_test() -> None:
    text = (ROOT / "docs" / "better-on-purpose.md").read_text().split("## Accelerate's own tests")[0]
    rows = [
        row for row in text.splitlines() if row.startswith("| ") and not row.startswith(("| # ", "| what ", "| ---"))
    ]
    assert len(rows) >= 13 + 13
    assert [row for row in rows if "::test_" not in row] == []


@pytest.mark.parametrize(("value", "device"), [(False, "none"), (True, "cpu"), ("cpu", "cpu"), ("none", "none")])
def test_offload_optimizer_takes_words_and_truth_values(value: bool | str, device: str) -> None:
    assert DeepSpeedPlugin(zero_stage=2, offload_optimizer=value).offload_optimizer == device


def test_offload_optimizer_takes_a_disk_and_refuses_other_words() -> None:
    disk = DeepSpeedPlugin(zero_stage=3, offload_optimizer="nvme", offload_optimizer_nvme_path="/tmp")
    assert disk.offload_optimizer == "nvme"
    with pytest.raises(ConfigurationError, match="offload_optimizer"):
        DeepSpeedPlugin(zero_stage=2, offload_optimizer="gpu")
