"""Collectives of ranks that bring different things: named on every rank, and usable afterwards."""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

SCRIPT = """
from collections import namedtuple
from runtime import broadcast, broadcast_object_list, gather, gather_object, pad_across_processes, reduce
from runtime.errors import DistributedError, UsageError
accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(collective_deadline_s=20)])
rank = accelerator.process_index
one = torch.ones(2)
Pair = namedtuple("Pair", ["a", "b"])

order = {"a": torch.tensor(1.0 + rank), "b": torch.tensor(2.0)}
order = order if rank else dict(reversed(order.items()))
got = {name: value.item() for name, value in reduce(order, "mean").items()}
got["pair"] = gather(Pair(one, {"x": [one, (one,)]})).b["x"][1][0].tolist()
got["half"] = reduce(torch.full((2,), 1.5, dtype=torch.bfloat16), "mean").tolist()
got["flags"] = reduce(torch.tensor([True, rank == 1]), "sum").tolist()

attempts = {
    "keys": lambda: gather({"loss": {"a": one} if rank else {"b": one}}),
    "missing": lambda: reduce({"a": one, "b": one} if rank else {"a": one}),
    "length": lambda: gather([one] * (rank + 1)),
    "dtype": lambda: gather({"x": [one.double() if rank else one]}),
    "dims": lambda: gather(one.view(1, 2) if rank else one),
    "pad dims": lambda: pad_across_processes(one.view(1, 2) if rank else one),
    "broadcast": lambda: broadcast({"x": torch.ones(rank + 1)}),
    "metric keys": lambda: accelerator.gather_for_metrics({"f1": one} if rank else {"recall": one}),
    "metric rows": lambda: accelerator.gather_for_metrics(torch.ones(2, rank + 1)),
    "objects or tensors": lambda: accelerator.gather_for_metrics(["text"] if rank else one),
    "object lists": lambda: broadcast_object_list([0] * (rank + 1)),
    "objects and barrier": lambda: gather_object([1]) if rank else accelerator.wait_for_everyone(),
}
errors = {}
for name, attempt in attempts.items():
    try:
        attempt()
    except (DistributedError, UsageError) as error:
        errors[name] = str(error)
    assert reduce(torch.tensor(1.0), "sum").item() == 2.0, "usable afterwards"

first = []
for who in (accelerator.main_process_first, accelerator.local_main_process_first):
    try:
        with who():
            raise KeyError(f"of rank {rank}")
    except KeyError as error:
        first.append(str(error))
    accelerator.wait_for_everyone()
say(got=got, errors=errors, first=first)
"""


def test_each_rank_hears_what_the_others_brought(run_ranks: Any) -> None:
    for rank, said in enumerate(run_ranks(SCRIPT).said):
        assert said["got"]["a"] == 1.5
        assert said["got"]["b"] == 2.0
        assert said["got"]["pair"] == [1.0] * 4
        assert said["got"]["half"] == [1.5, 1.5]
        assert said["got"]["flags"] == [2, 1]
        expected = {
            "keys": ["rank 0: data['loss']['b']", "rank 1: data['loss']['a']"],
            "missing": ["rank 0: data['a'] float32[2]; rank 1: data['a'] float32[2], data['b'] float32[2]"],
            "length": ["data[1]"],
            "dtype": ["data['x'][0] float32[2]; rank 1: data['x'][0] float64[2]"],
            "dims": ["data float32[2]; rank 1: data float32[1, 2]"],
            "pad dims": ["data float32[2]; rank 1: data float32[1, 2]"],
            "broadcast": ["float32[1]; rank 1: data['x'] float32[2]"],
            "metric keys": ["data['recall']", "data['f1']"],
            "metric rows": ["float32[2, 1]; rank 1: data float32[2, 2]"],
            "objects or tensors": ["rank 0 to gather_for_metrics at script.py:", "of objects at script.py:"],
            "object lists": ["rank 0: 1; rank 1: 2"],
            "objects and barrier": ["rank 0 to wait_for_everyone at", "rank 1 to gather_object at"],
        }
        for name, words in expected.items():
            for word in words:
                assert word in said["errors"][name], name
        assert said["first"] == [f"'of rank {rank}'"] * 2
