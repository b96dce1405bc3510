"""Starting an example under torchrun, as its author would."""

import csv
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import prepare_data

EXAMPLES = Path(prepare_data.__file__).parent
Torchrun = Callable[..., str]
Rows = Callable[[Path], list[dict[str, str]]]


@pytest.fixture
def torchrun(tmp_path: Path) -> Torchrun:
    def run(script: str, *arguments: str, num_processes: int = 2) -> str:
        engine = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
        finished = subprocess.run(
            [*engine, str(EXAMPLES / script), *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=90,
            check=False,
        )
        assert finished.returncode == 0, finished.stderr[-3000:]
        return finished.stdout

    return run


@pytest.fixture
def rows() -> Rows:
    """Reads a CSV file into one dict per row."""

    def read(path: Path) -> list[dict[str, str]]:
        with path.open(newline="") as handle:
            return list(csv.DictReader(handle))

    return read


@pytest.fixture
def digits(tmp_path: Path) -> list[str]:
    """The data options of the digits example, the files written."""
    return data_options("digits", tmp_path / "data")


@pytest.fixture
def diabetes(tmp_path: Path) -> list[str]:
    return data_options("diabetes", tmp_path / "data")


def data_options(data_set: str, directory: Path) -> list[str]:
    paths = prepare_data.prepare(data_set, directory)
    return [text for path in paths for text in (f"--{path.stem}", str(path))]
