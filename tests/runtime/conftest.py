"""Running scripts on several ranks, and a process state of its own for each test on one."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).resolve().parents[2]
_PREAMBLE = """
import json, sys
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from runtime import Accelerator, DataLoaderConfiguration, InitProcessGroupKwargs, set_seed
torch.set_num_threads(1)
HERE = Path(sys.argv[1])

def say(**values):
    (HERE / f"said.rank{accelerator.process_index}.json").write_text(json.dumps(values))
"""


@dataclass(frozen=True)
class Ended:
    """How a job of several ranks ended. `said` holds what each rank passed to say()."""

    returncode: int
    output: str
    said: list[dict[str, Any]]


RunRanks = Callable[..., Ended]


@pytest.fixture
def run_ranks(tmp_path: Path) -> RunRanks:
    """Run a script under torch.distributed.run in a session of its own; the whole group is killed at the deadline."""

    def run(
        script: str,
        *,
        ranks: int = 2,
        deadline_s: float = 55.0,
        environment: dict[str, str] | None = None,
        ok: bool = True,
        directory: Path = tmp_path,
    ) -> Ended:
        path = directory / "script.py"
        path.write_text(_PREAMBLE + textwrap.dedent(script))
        for old in directory.glob("said.rank*.json"):
            old.unlink()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FORERUN_")}
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(ranks), str(path), str(directory)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=directory,
            env=kept
            | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(_SOURCE), "PYTHONWARNINGS": "error"}
            | (environment or {}),
        )
        try:
            output, _ = process.communicate(timeout=deadline_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            pytest.fail(f"the job did not end within {deadline_s} s:\n{output}")
        said = [json.loads(file.read_text()) for file in sorted(directory.glob("said.rank*.json"))]
        if ok:
            assert process.returncode == 0, output
            assert len(said) == ranks, output
        return Ended(process.returncode, output, said)

    return run


@pytest.fixture
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has not started the runtime yet, outside of any run."""
    from runtime.state import PartialState

    for name in [name for name in os.environ if name.startswith("FORERUN_")]:
        monkeypatch.delenv(name)
    before, PartialState._process = PartialState._process, None
    yield
    PartialState._process = before
