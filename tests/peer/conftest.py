"""Running the peer's bundled scripts on ranks, each once in a session."""

import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.rank_server import RankServer

_HERE = Path(__file__).resolve().parent
_SCRIPT = """
import json, sys, tempfile
from pathlib import Path
from typing import Any
sys.path.insert(0, {here!r})
import peer_script
import torch
torch.set_num_threads(1)
module, notes, left = peer_script.load({name!r})
from runtime import PartialState
rank, world_size = PartialState().process_index, PartialState().num_processes
{before}
module.main()
said = dict(held=notes.held, failed=notes.failed, left=left)
(Path(sys.argv[1]) / f"said.rank{{rank}}.json").write_text(json.dumps(said))
"""


@dataclass(frozen=True)
class Outcome:
    """What one rank noted.

    Attributes:
        held: number of assertions that held, by function.
        failed: those that did not, as (function, text) -> what they said, as (case, error).
        left: names that the script took from the peer.
    """

    held: dict[str, int]
    failed: dict[tuple[str, str], list[tuple[str, str]]]
    left: list[str]


RunPeer = Callable[..., list[Outcome]]


@pytest.fixture(scope="session")
def peer_server() -> Iterator[RankServer]:
    server = RankServer(_HERE.parents[1])
    yield server
    server.close()


@pytest.fixture
def run_peer(tmp_path: Path, peer_server: RankServer) -> RunPeer:
    """Run a script of accelerate.test_utils.scripts with our names; `before` is run in front of its main()."""

    def run(name: str, ranks: int, *, before: str = "", deadline_s: float = 55.0) -> list[Outcome]:
        path = tmp_path / "job.py"
        path.write_text(_SCRIPT.format(here=str(_HERE), name=name, before=textwrap.dedent(before)))
        job = peer_server.run(
            path,
            str(tmp_path),
            ranks=ranks,
            deadline_s=deadline_s,
            environment={"FORERUN_DEVICE": "cpu"},
            output=tmp_path / "output.txt",
        )
        assert job.returncode == 0, job.output
        said = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("said.rank*.json"))]
        assert len(said) == ranks, job.output
        return [Outcome(one["held"], _by_place(one["failed"]), one["left"]) for one in said]

    return run


def _by_place(failed: list[list[str]]) -> dict[tuple[str, str], list[tuple[str, str]]]:
    places: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for function, text, error, case in failed:
        places.setdefault((function, text), []).append((case, error))
    return places


@pytest.fixture
def fresh_accelerator(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An accelerator on the CPU of a process that has none yet."""
    from runtime import Accelerator, AcceleratorState, PartialState

    monkeypatch.setattr(PartialState, "_process", None)
    monkeypatch.setattr(AcceleratorState, "_settled", None)
    return Accelerator(cpu=True)
