"""What metrics are made of comes in many forms, and from loops of several Accelerators: each sample counts once."""

from typing import Any

_JOB = """
import numpy as np
from torch.utils.data import random_split
from runtime.errors import UsageError

accelerator = Accelerator(cpu=True)
rank, world = accelerator.process_index, accelerator.num_processes

def loader(n=5):
    return DataLoader(torch.arange(n), batch_size=2)

found = {name: [] for name in ("arrays", "dicts", "numbers", "columns", "helper", "adopted")}
for batch in accelerator.prepare(loader()):
    found["arrays"] += np.concatenate(accelerator.gather_for_metrics(batch.numpy(), use_gather_object=True)).tolist()
    dicts = accelerator.gather_for_metrics({"ids": batch.numpy(), "loss": 0.5}, use_gather_object=True)
    found["dicts"] += [int(i) for item in dicts for i in item["ids"]]
    found["numbers"] += accelerator.gather_for_metrics(0.5, use_gather_object=True)
    found["helper"] += Accelerator(cpu=True).gather_for_metrics(batch).tolist()

wide = torch.arange(3.0).view(1, 3) + 10 * rank
found["columns"] = accelerator.gather(wide[:, 1]).tolist() + accelerator.gather_for_metrics(wide[:, 2]).tolist()
found["broadcast"] = accelerator.reduce(wide[:, 1], "sum").tolist()
from runtime import broadcast
found["broadcast"] += broadcast(wide[:, 1]).tolist()

prepared = accelerator.prepare(loader())
second = Accelerator(cpu=True)
for batch in second.prepare(prepared):
    found["adopted"] += second.gather_for_metrics(batch).tolist()

torch.manual_seed(rank)
mine, _ = random_split(list(range(20)), [15, 5])
try:
    accelerator.prepare(DataLoader(mine, batch_size=2))
    found["split"] = "prepared"
except UsageError as error:
    found["split"] = str(error)
say(**found)
"""


def test_each_sample_counts_once_in_every_form(run_ranks: Any) -> None:
    """Five samples in batches of two on four ranks: one rank's batch is half a repetition, another's all of one."""
    for said in run_ranks(_JOB, ranks=4).said:
        for form in ("arrays", "dicts", "helper", "adopted"):
            assert sorted(said[form]) == [0, 1, 2, 3, 4], form
        assert said["numbers"] == [0.5] * 3
        assert said["columns"] == [1, 11, 21, 31, 2, 12, 22, 32]
        assert said["broadcast"] == [64, 1]
        assert "the ranks prepare loaders over different data: rank 0: Subset of 15" in said["split"]
        assert "set_seed" in said["split"]
