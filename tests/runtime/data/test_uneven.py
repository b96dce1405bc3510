"""Exact mode: no sample is repeated, ranks take different numbers of batches, and nobody is left waiting."""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

NUMBERS = """
import time
from runtime.errors import DistributedError, UsageError

class Numbers(IterableDataset):
    def __init__(self, count):
        self.count = count
    def __iter__(self):
        return iter(range(self.count))

def prepare(kind, count, deadline_s=20, size=2):
    config = DataLoaderConfiguration(even_batches=False, dispatch_batches=True if "dispatched" in kind else None)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    data = torch.arange(count) if "map" in kind else Numbers(count)
    return accelerator, accelerator.prepare(DataLoader(data, batch_size=size))
"""


def test_metrics_in_an_uneven_loop_see_every_sample_once(run_ranks: Any) -> None:
    script = (
        NUMBERS
        + """
got = {}
for kind in ("map", "stream", "dispatched-map", "dispatched-stream"):
    for count in (0, 1, 5, 7):
        accelerator, loader = prepare(kind, count)
        steps, rows, objects, sums = 0, [], [], []
        for batch in loader:
            steps += 1
            gathered = accelerator.gather_for_metrics({"row": [batch], "double": 2.0 * batch, "sum": batch.sum()})
            assert gathered["double"].tolist() == (2.0 * gathered["row"][0]).tolist()
            rows += gathered["row"][0].tolist()
            sums += gathered["sum"].tolist()
            objects += accelerator.gather_for_metrics([f"sample {int(i)}" for i in batch])
        total = int(accelerator.reduce(torch.tensor(steps), "sum"))
        got[f"{kind} {count}"] = [rows, objects, sum(sums), total]
accelerator, loader = prepare("map", 7)
for number, batch in enumerate(loader):
    if number == 1:
        break
got["left"] = accelerator.gather(torch.tensor([number])).tolist()
say(**got)
"""
    )
    for ranks in (2, 3):
        said = run_ranks(script, ranks=ranks).said
        for name, one in said[0].items():
            if name == "left":
                assert one == {2: [1, 1], 3: [1, 0, 0]}[ranks], "a loop that is left early keeps nobody"
                continue
            count = int(name.split()[1])
            seen = sorted({i for rank in said for i in rank[name][0]})
            assert seen == list(range(count)), name
            most = max((rank[name] for rank in said), key=lambda got: len(got[0]))
            assert sorted(most[0]) == list(range(count)), name
            assert sorted(most[1]) == sorted(f"sample {i}" for i in range(count)), name
            assert most[2] == sum(range(count)), name
            assert most[3] == -(-count // 2), name


def test_training_on_an_uneven_stream_is_named_within_the_deadline(run_ranks: Any) -> None:
    script = (
        NUMBERS
        + """
import datetime
accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False), kwargs_handlers=[
    InitProcessGroupKwargs(timeout=datetime.timedelta(seconds=8), collective_deadline_s=3)])
model, loader = accelerator.prepare(nn.Linear(1, 1), DataLoader(Numbers(18), batch_size=2))
steps = 0
for batch in loader:
    steps += 1
    accelerator.backward(model(batch.float().view(-1, 1)).mean())
"""
    )
    ended = run_ranks(script, ok=False, deadline_s=40)
    assert ended.returncode != 0
    assert "rank 1 finished its loader after 4 batches, but rank 0 did not within 3 s" in ended.output


def test_joining_an_uneven_stream_trains_alike_and_refuses_items(run_ranks: Any) -> None:
    script = (
        NUMBERS
        + """
got = []
for accumulation in (1, 2):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.01), DataLoader(Numbers(18), batch_size=2))
    refused, steps = "", 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in loader:
            steps += 1
            with accelerator.accumulate(model):
                loss = model(batch.float().view(-1, 1)).square().mean()
                if steps == 1:
                    try:
                        accelerator.backward(loss, num_items=2)
                    except UsageError as error:
                        refused = str(error)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    got.append([steps, refused, [p.item() for p in model.parameters()]])
say(got=got)
"""
    )
    first, second = run_ranks(script).said
    for one, other in zip(first["got"], second["got"], strict=True):
        assert (one[0], other[0]) == (5, 4)
        assert "num_items" in one[1]
        assert one[2] == other[2]
