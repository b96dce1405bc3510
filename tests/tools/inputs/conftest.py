"""A small project whose plan is complete; tests change one thing at a time."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.domain.findings import Answer, Finding
from tools.domain.paths import AllowedRoots
from tools.domain.reports import InputReport
from tools.machine import MachineLimits, Nvml, NvmlMissing
from tools.validate_inputs import InputRequest, validate_inputs

SCRIPT = """
import argparse
from runtime import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--train")
parser.add_argument("--lr", type=float)
parser.add_argument("--max_steps", type=int)
parser.add_argument("--num_workers", type=int, default=0)
parser.add_argument("--seed", type=int)
parser.add_argument("--output")
parser.add_argument("--amp", action="store_true")
options = parser.parse_args()
"""
LIMITS = MachineLimits(2, "host", 8 * 2**30, 4 * 2**30, "host")


def no_driver() -> Nvml:
    raise NvmlMissing("no driver here", 12)


@dataclass
class Project:
    """Files below `root`, and a request that is complete."""

    root: Path
    store: Path
    request: dict[str, Any]

    def validate(
        self,
        *,
        answers: Sequence[Answer] = (),
        limits: MachineLimits = LIMITS,
        open_driver: Callable[[], Nvml] = no_driver,
        environment: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> InputReport:
        return validate_inputs(
            InputRequest.model_validate({**self.request, **changes}),
            roots=AllowedRoots.of([self.root]),
            snapshot_store=self.store,
            answers=answers,
            base_environment={"PATH": "/usr/bin:/bin", "HOME": "/nowhere"} if environment is None else environment,
            open_driver=open_driver,
            limits=limits,
            **(options or {}),
        )

    def without(self, setting: str) -> dict[str, Any]:
        return {name: value for name, value in self.request["settings"].items() if name != setting}

    def settings(self, **changes: Any) -> dict[str, Any]:
        return {**self.request["settings"], **changes}


def write_table(path: Path, first: int, *, rows: int = 12) -> None:
    lines = [f"{i},{i * 1.5},{i % 3}" for i in range(first, first + rows)]
    path.write_text("id,x,label\n" + "\n".join(lines) + "\n")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    root = tmp_path / "project"
    (root / "data").mkdir(parents=True)
    (root / "train.py").write_text(SCRIPT)
    write_table(root / "data/train.csv", 0)
    write_table(root / "data/test.csv", 100)
    request = {
        "script": "train.py",
        "args": ["--train", "data/train.csv", "--lr", "0.1", "--output", "{run_dir}/out"],
        "smoke_args": ["--train", "data/train.csv", "--max_steps", "12"],
        "data": ["train=data/train.csv", "holdout=data/test.csv"],
        "python": sys.executable,
        "settings": {"num_processes": 2, "device": "cpu", "seed": 3, "wall_time_s": 600},
        "evaluation": {"predictions": "{run_dir}/predictions.csv", "metrics": ["accuracy"], "baselines": ["majority"]},
    }
    return Project(root, tmp_path / "store", request)


def errors(report: InputReport) -> dict[str, Finding]:
    return {f.code: f for f in report.findings if f.level == "error"}


def codes(report: InputReport) -> set[str]:
    return {f.code for f in report.findings}


def found(report: InputReport, code: str) -> Finding:
    return next(f for f in report.findings if f.code == code)
