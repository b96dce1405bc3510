"""Collectives on several ranks: values, and mismatches that are errors on every rank."""

import re

import pytest
import torch

from runtime.collectives import gather, gather_object, pad_across_processes, reduce
from runtime.errors import UsageError


@pytest.mark.multiprocess
def test_values_and_mismatches_on_two_ranks(run_ranks) -> None:
    script = """
    from runtime import broadcast, broadcast_object_list, gather, gather_object, pad_across_processes, reduce
    from runtime.errors import DistributedError, UsageError
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(collective_deadline_s=20)])
    rank = accelerator.process_index
    t = torch.tensor([rank + 1.0, 10.0])
    got = {}
    nested = gather({"a": t, "b": [torch.tensor(rank), torch.tensor([rank == 0])]})
    got["nested"] = [nested["a"].tolist(), nested["b"][0].tolist(), nested["b"][1].tolist()]
    got["bf16"] = gather(torch.tensor([rank + 0.5], dtype=torch.bfloat16)).tolist()
    got["sum"] = reduce(t, "sum").tolist()
    got["mean"] = reduce({"x": t}, "mean", scale=2.0)["x"].tolist()
    got["input"] = t.tolist()
    got["broadcast"] = broadcast(t, from_process=1).tolist()
    got["objects"] = gather_object([{"rank": rank}] * (rank + 1))
    got["list"] = broadcast_object_list([rank, {"of": rank}], from_process=1)
    got["padded"] = pad_across_processes(torch.ones(rank + 1, 2), dim=0, pad_index=-1).tolist()
    got["first"] = pad_across_processes(torch.ones(rank + 1), pad_first=True).tolist()
    uneven = accelerator.gather_for_metrics(torch.arange(rank * 3))
    got["uneven"] = uneven.tolist()
    got["empty"] = list(accelerator.gather_for_metrics(torch.zeros(0, 4)).shape)
    with accelerator.split_between_processes([1, 2, 3]) as share:
        got["share"] = share
    if rank == 1:
        accelerator.set_trigger()
    got["trigger"] = [accelerator.check_trigger(), accelerator.check_trigger()]

    order = HERE / "order.txt"
    try:
        with accelerator.main_process_first():
            if rank == 0:
                order.write_text("main was first")
                raise KeyError("of the main process")
            got["order"] = order.read_text()
    except KeyError:
        got["order"] = "raised"

    errors = []
    for attempt in (
        lambda: gather(torch.ones(rank + 1)),
        lambda: gather({"loss": t} if rank else {"accuracy": t}),
        lambda: reduce(torch.ones(2, dtype=torch.float64 if rank else torch.float32)),
        lambda: gather(t) if rank else reduce(t),
        lambda: broadcast_object_list([1] * (rank + 1)),
        lambda: gather([t, "text"]),
    ):
        try:
            attempt()
            errors.append("none")
        except (DistributedError, UsageError) as error:
            errors.append(str(error))
    got["after"] = reduce(t, "sum").tolist()
    say(got=got, errors=errors)
    """
    said = run_ranks(script).said
    for rank, one in enumerate(said):
        got = one["got"]
        assert got["nested"] == [[1.0, 10.0, 2.0, 10.0], [0, 1], [True, False]]
        assert got["bf16"] == [0.5, 1.5]
        assert got["sum"] == got["after"] == [3.0, 20.0]
        assert got["mean"] == [3.0, 20.0]
        assert got["input"] == [rank + 1.0, 10.0]
        assert got["broadcast"] == [2.0, 10.0]
        assert got["objects"] == [{"rank": 0}, {"rank": 1}, {"rank": 1}]
        assert got["list"] == [1, {"of": 1}]
        assert got["padded"] == [[[1, 1], [-1, -1]], [[1, 1], [1, 1]]][rank]
        assert got["first"] == [[0, 1], [1, 1]][rank]
        assert got["uneven"] == [0, 1, 2]
        assert got["empty"] == [0, 4]
        assert got["share"] == [[1, 2], [3]][rank]
        assert got["trigger"] == [True, False]
        assert got["order"] == ["raised", "main was first"][rank]
        shapes, keys, dtypes, operations, lengths, text = one["errors"]
        assert "rank 0: data float32[1]; rank 1: data float32[2]" in shapes
        assert "pad_across_processes" in shapes
        assert "data['accuracy']" in keys
        assert "data['loss']" in keys
        assert "rank 0: data float32[2]; rank 1: data float64[2]" in dtypes
        assert "rank 0 to reduce at script.py:" in operations
        assert "rank 1 to gather at script.py:" in operations
        assert "rank 0: 1; rank 1: 2" in lengths
        assert "data[1] is str" in text


@pytest.mark.multiprocess
def test_a_rank_alone_in_a_collective_fails_the_job_and_is_named(run_ranks) -> None:
    script = """
    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        accelerator.gather(torch.ones(1))
    """
    ended = run_ranks(script, ok=False)
    assert ended.returncode != 0
    assert re.search(r"rank 0 is in gather at script\.py:\d+, but rank 1 has ended", ended.output), ended.output


@pytest.mark.multiprocess
def test_metrics_count_every_sample_once_on_three_ranks(run_ranks) -> None:
    script = """
    class Numbers(IterableDataset):
        def __init__(self, count):
            self.count = count
        def __iter__(self):
            return iter(range(self.count))

    accelerator = Accelerator(cpu=True)
    got = {}
    seen, objects, nested, correct = [], [], [], []
    for batch in accelerator.prepare(DataLoader(torch.arange(10), batch_size=2)):
        right = (batch > 1).float()
        seen += accelerator.gather_for_metrics(batch).tolist()
        correct += accelerator.gather_for_metrics({"r": [right]})["r"][0].tolist()
        objects += accelerator.gather_for_metrics([{"id": int(i)} for i in batch])
    got["seen"], got["accuracy"] = sorted(seen), sum(correct) / len(correct)
    got["objects"] = sorted(item["id"] for item in objects)
    for dispatch in (False, True):
        for count in (0, 1, 5, 8):
            accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
            loader = accelerator.prepare(DataLoader(Numbers(count), batch_size=2))
            steps, ids = 0, []
            for batch in loader:
                assert batch.numel() == 2
                steps += 1
                ids += accelerator.gather_for_metrics(batch).tolist()
            got[f"{dispatch} {count}"] = [steps, ids]
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(torch.arange(11), batch_size=5, drop_last=True))
    got["dropped"] = [i for batch in loader for i in accelerator.gather_for_metrics(batch).tolist()]
    say(**got)
    """
    for said in run_ranks(script, ranks=3).said:
        assert said["seen"] == said["objects"] == list(range(10))
        assert said["accuracy"] == pytest.approx(0.8)
        for dispatch in (False, True):
            for count, steps in ((0, 0), (1, 1), (5, 1), (8, 2)):
                assert said[f"{dispatch} {count}"] == [steps, list(range(count))]
        assert said["dropped"] == []


def test_one_process_sees_the_same_shapes(fresh_process: None) -> None:
    assert gather(torch.tensor(3.0)).tolist() == [3.0]
    assert gather({"a": torch.ones(2)})["a"].tolist() == [1.0, 1.0]
    assert reduce(torch.ones(2), "mean", scale=3.0).tolist() == [3.0, 3.0]
    assert gather_object(["a"]) == ["a"]
    assert pad_across_processes(torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(UsageError, match="reduction 'product'"):
        reduce(torch.ones(1), "product")
