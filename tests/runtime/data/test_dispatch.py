"""Streams that rank 0 reads for all: ends, errors and positions are everybody's."""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

STREAMS = """
import random
from torch.utils.data import get_worker_info
from runtime import gather_object
from runtime.errors import DistributedError

class Numbers(IterableDataset):
    def __init__(self, count, broken_at=None):
        self.count, self.broken_at = count, broken_at
    def __iter__(self):
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, self.count, step):
            if number == self.broken_at:
                raise KeyError(f"sample {number} is broken")
            yield number

def prepare(count, *, workers=0, **options):
    config = {name: options.pop(name) for name in list(options) if name in ("even_batches", "split_batches",
        "dispatch_batches", "use_stateful_dataloader")}
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config),
                              kwargs_handlers=[InitProcessGroupKwargs(collective_deadline_s=20)])
    data = count if isinstance(count, IterableDataset) else Numbers(count)
    loader = DataLoader(data, batch_size=2, num_workers=workers, **options)
    return accelerator, accelerator.prepare(loader)
"""


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_tail_of_a_stream_is_whole_and_the_same_with_and_without_dispatching(run_ranks: Any, ranks: int) -> None:
    script = (
        STREAMS
        + """
got = {}
for count in (0, 1, 5, 8):
    for drop_last in (False, True):
        for split in (False, True):
            for dispatch in (False, True):
                if split and Accelerator(cpu=True).num_processes != 2:
                    continue
                accelerator, loader = prepare(count, dispatch_batches=dispatch, split_batches=split,
                                              drop_last=drop_last)
                steps, seen = 0, []
                for batch in loader:
                    assert len(batch) > 0
                    steps += 1
                    seen += accelerator.gather_for_metrics(batch).tolist()
                got[f"{count} {drop_last} {split} {dispatch}"] = [steps, seen]
for workers in (0, 2):
    accelerator, loader = prepare(7, dispatch_batches=True, even_batches=False, workers=workers)
    got[f"uneven {workers}"] = gather_object([i for batch in loader for i in batch.tolist()])
say(**got)
"""
    )
    said = run_ranks(script, ranks=ranks).said
    assert all(rank == said[0] for rank in said)
    for name, got in said[0].items():
        if name.startswith("uneven"):
            assert sorted(got) == list(range(7))
            continue
        count, drop_last, split, dispatch = name.split()
        _steps, seen = got
        full = int(count)
        if drop_last == "True":
            full = full // 2 * 2 if split == "True" else full // (2 * ranks) * 2 * ranks
        assert sorted(seen) == list(range(full)), name
        assert got == said[0][f"{count} {drop_last} {split} {dispatch == 'False'}"], name


def test_positions_errors_and_lonely_ranks_of_dispatched_streams(run_ranks: Any) -> None:
    script = (
        STREAMS
        + """
got = {}
options = dict(dispatch_batches=True, use_stateful_dataloader=True)
for workers in (0, 2):
    accelerator, loader = prepare(13, workers=workers, **options)
    whole = [batch.tolist() for batch in loader]
    accelerator, loader = prepare(13, workers=workers, **options)
    passes = iter(loader)
    begun = [next(passes).tolist() for _ in range(2)]
    state = loader.state_dict()
    passes.close()
    accelerator, loader = prepare(13, workers=workers, **options)
    loader.load_state_dict(state)
    got[f"resumed {workers}"] = begun + [batch.tolist() for batch in loader] == whole
    by_itself = prepare(13, workers=workers, dispatch_batches=False)[1]
    got[f"alike {workers}"] = [batch.tolist() for batch in by_itself] == whole

accelerator, loader = prepare(Numbers(20, broken_at=9), dispatch_batches=True)
taken = 0
try:
    for batch in loader:
        taken += 1
except (KeyError, DistributedError) as error:
    got["broken"] = [type(error).__name__, str(error)]
accelerator.wait_for_everyone()

accelerator, loader = prepare(20, dispatch_batches=True)
try:
    for number, batch in enumerate(loader):
        if accelerator.process_index == 0 and number == 1:
            break
    accelerator.wait_for_everyone()
except DistributedError as error:
    got["alone"] = str(error)
say(**got)
"""
    )
    first, second = run_ranks(script).said
    for rank in (first, second):
        assert all(rank[f"{what} {workers}"] for what in ("resumed", "alike") for workers in (0, 2)), rank
        assert "rank 0 to wait_for_everyone at script.py:" in rank["alone"]
        assert "rank 1 to the next dispatched batch at script.py:" in rank["alone"]
    assert first["broken"] == ["KeyError", "'sample 9 is broken'"]
    assert second["broken"][0] == "DistributedError"
    assert "rank 0 could not read the next dispatched batch: KeyError: 'sample 9 is broken'" in second["broken"][1]
