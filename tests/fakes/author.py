"""A training author at a shell: writes scripts and launches them, in a directory of their own."""

import subprocess
import sys
from pathlib import Path

from runtime.config.order import RunResult
from runtime.env import current_environment
from runtime.layout import RunLayout
from runtime.procfs import marked_pids
from runtime.run_files import read_order, read_result

DEADLINE_S = 55.0


class Author:
    """Whoever types `forerun launch`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.prefix: tuple[str, ...] = ()

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "runtime.cli", "launch", *arguments],
            cwd=self.directory,
            env={**current_environment(), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def launch(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        with self.start(*arguments, **environment) as process:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        return process.returncode, stdout, stderr

    def write(self, text: str, name: str = "train.py") -> None:
        (self.directory / name).write_text(text)

    def runs(self) -> list[RunLayout]:
        return [RunLayout(path) for path in sorted(self.directory.glob("forerun-runs/*"))]

    def result(self) -> RunResult:
        (layout,) = self.runs()
        result = read_result(layout)
        assert result is not None
        order = read_order(layout)
        assert order is not None
        assert marked_pids(order.run_id) == []
        return result
