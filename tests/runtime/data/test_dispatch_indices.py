"""Data sets with indices that rank 0 alone reads."""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess


def test_rank_0_alone_reads_and_all_take_what_they_would_have_read(run_ranks: Any) -> None:
    script = """
    class Read(torch.utils.data.Dataset):
        def __init__(self, size):
            self.size, self.reads = size, 0
        def __len__(self):
            return self.size
        def __getitem__(self, index):
            self.reads += 1
            return index

    def epochs(size, dispatch, **settings):
        data = Read(size)
        configuration = DataLoaderConfiguration(dispatch_batches=dispatch, data_seed=3, **settings)
        accelerator = Accelerator(dataloader_config=configuration)
        loader = accelerator.prepare(DataLoader(data, batch_size=2, shuffle=True))
        assert len(loader) == len(list(loader))
        batches, counted, last = [], [], []
        for batch in loader:
            batches.append(batch.tolist())
            last.append(accelerator.end_of_dataloader)
            counted += accelerator.gather_for_metrics(batch).tolist() if settings.get("even_batches", True) else []
        resumed = []
        for batch in accelerator.skip_first_batches(loader, 1):
            resumed.append(batch.tolist())
        return batches, sorted(counted), last, resumed, data.reads

    got = {}
    for size in (1, 4, 9):
        for settings in ({}, {"split_batches": True}, {"even_batches": False}):
            own, dealt = epochs(size, False, **settings), epochs(size, True, **settings)
            assert dealt[:4] == own[:4], (size, settings, own, dealt)
            assert settings == {"even_batches": False} or own[1] == list(range(size))
            got[f"{size} {settings}"] = dealt[4]
    accelerator = Accelerator()
    say(reads=got)
    """
    first, second = (said["reads"] for said in run_ranks(script).said)
    assert all(count > 0 for count in first.values())
    assert set(second.values()) == {0}


def test_an_error_of_rank_0s_data_reaches_the_others(run_ranks: Any) -> None:
    script = """
    from runtime.errors import DistributedError
    class Broken(torch.utils.data.Dataset):
        def __len__(self):
            return 8
        def __getitem__(self, index):
            if index > 3:
                raise KeyError("sample 4")
            return index
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=True))
    loader, seen, words = accelerator.prepare(DataLoader(Broken(), batch_size=1)), 0, ""
    try:
        for _ in loader:
            seen += 1
    except (KeyError, DistributedError) as error:
        words = f"{type(error).__name__} {error}"
    say(seen=seen, words=words)
    """
    first, second = run_ranks(script).said
    assert first["seen"] == second["seen"] == 2
    assert first["words"].startswith("KeyError")
    assert "rank 0 could not read" in second["words"]
    assert "sample 4" in second["words"]
