"""Ranks that log different metrics, or the same ones in another order: nothing is paired by position."""

from pathlib import Path

import pytest

from runtime.layout import RunLayout
from runtime.records import read_metrics
from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.multiprocess

_SCRIPT = """
from runtime.errors import DistributedError
from runtime.tracking import GeneralTracker
calls = []

class Own(GeneralTracker):
    name = "own"
    @property
    def tracker(self): return calls
    def log(self, values, step=None, **options): calls.append(dict(values))

class Everywhere(Own):
    name = "everywhere"
    main_process_only = False
    def log(self, values, step=None, **options): calls.append("everywhere")

accelerator = Accelerator(cpu=True, log_with=[Own(), Everywhere()])
accelerator.init_trackers("project")
rank = accelerator.process_index
mine = [{"a": 1.0}, {"b": 3.0}][rank]
accelerator.log(mine, step=1)
accelerator.log(mine, step=2, all_ranks=True)
accelerator.get_tracker("own", unwrap=True).append("seen")
try:
    accelerator.reduce({name: torch.tensor(value) for name, value in mine.items()}, "mean")
    refused = ""
except DistributedError as error:
    refused = str(error)
order = [{"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0}][rank]
mean = accelerator.reduce({name: torch.tensor(value) for name, value in order.items()}, "mean")
gathered = accelerator.gather({name: torch.tensor([value]) for name, value in order.items()})
nested = accelerator.reduce({"x": {name: torch.tensor(value) for name, value in order.items()}}, "sum")
say(calls=calls, refused=refused, mean={k: v.item() for k, v in mean.items()}, order=list(mean),
    gathered={k: v.tolist() for k, v in gathered.items()}, nested={k: v.item() for k, v in nested["x"].items()})
accelerator.end_training()
"""


def test_different_metrics_are_never_mixed(run_ranks: RunRanks, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    ended = run_ranks(_SCRIPT, environment={"FORERUN_RUN_DIR": str(run_dir)}, deadline_s=20)
    main, other = ended.said
    assert main["calls"] == [{"a": 1.0}, "everywhere", {"a": 1.0}, "everywhere", "seen"]
    assert other["calls"] == ["everywhere", "everywhere"]
    recorded = [
        [(r.name, r.value, r.step, r.rank) for _, r in read_metrics(RunLayout(run_dir).metrics(k))] for k in (0, 1)
    ]
    assert recorded == [[("a", 1.0, 1, 0), ("a", 1.0, 2, 0)], [("b", 3.0, 2, 1)]]
    for said in ended.said:
        assert "data['a']" in said["refused"]
        assert "data['b']" in said["refused"]
        assert said["mean"] == {"a": 1.0, "b": 2.0}
        assert said["gathered"] == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
        assert said["nested"] == {"a": 2.0, "b": 4.0}
    assert other["order"] == ["b", "a"]
