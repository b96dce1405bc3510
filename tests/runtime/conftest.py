"""Running scripts on several ranks, and a process state of its own for each test on one."""

import json
import os
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.rank_server import RankServer

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


@pytest.fixture(scope="session")
def rank_server() -> Iterator[RankServer]:
    server = RankServer(_SOURCE)
    yield server
    server.close()


@pytest.fixture
def run_ranks(tmp_path: Path, rank_server: RankServer) -> RunRanks:
    """Run a script on ranks as torchrun starts them, in a session of their own, killed as a whole at the deadline."""

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
        job = rank_server.run(
            path,
            str(directory),
            ranks=ranks,
            deadline_s=deadline_s,
            environment=environment or {},
            output=directory / "output.txt",
        )
        if job.returncode is None:
            pytest.fail(f"the job did not end within {deadline_s} s:\n{job.output}")
        said = [json.loads(file.read_text()) for file in sorted(directory.glob("said.rank*.json"))]
        if ok:
            assert job.returncode == 0, job.output
            assert len(said) == ranks, job.output
        return Ended(job.returncode, job.output, said)

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
