"""Checkpoints of jobs with several ranks."""

import json
from pathlib import Path

import pytest

from runtime.checkpoint.manifest import saved_rng_ranks

pytestmark = pytest.mark.multiprocess


def test_the_main_process_alone_may_save_and_all_load(run_ranks, tmp_path: Path) -> None:
    script = """
    set_seed(5, device_specific=False)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(collective_deadline_s=15)])
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    def step():
        optimizer.zero_grad()
        accelerator.backward(model(torch.ones(1, 2) * (1 + accelerator.process_index)).sum())
        optimizer.step()
    def weights():
        return [p.tolist() for p in model.parameters()]
    step()
    saved = weights()
    if accelerator.is_main_process:
        accelerator.save_state("checkpoint/")
    accelerator.load_state("checkpoint/")
    same = weights() == saved
    torch.rand(3 + accelerator.process_index)
    accelerator.save_state("everybody")
    drawn = torch.rand(2).tolist()
    step()
    after = weights()
    for _ in range(3):
        step()
        accelerator.load_state("everybody")
    redrawn = torch.rand(2).tolist()
    step()
    say(same=same, drawn=drawn, redrawn=redrawn, again=weights() == after)
    """
    said = run_ranks(script).said
    for rank in said:
        assert rank["same"]
        assert rank["again"]
        assert rank["drawn"] == rank["redrawn"]
    assert said[0]["drawn"] != said[1]["drawn"]
    assert saved_rng_ranks(tmp_path / "checkpoint") == [0]
    assert saved_rng_ranks(tmp_path / "everybody") == [0, 1]
    assert not (tmp_path / "checkpoint" / "own.rank1.manifest.json").exists()
    assert json.loads((tmp_path / "everybody" / "manifest.json").read_text())["world_size"] == 2


def test_a_failed_save_raises_on_every_rank_and_a_lone_higher_rank_is_found(run_ranks, tmp_path: Path) -> None:
    script = """
    from runtime.errors import CheckpointError, DistributedError
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(collective_deadline_s=3)])
    model = accelerator.prepare(nn.Linear(2, 2))
    accelerator.save_state("checkpoint")
    from runtime.checkpoint.disk import Disk
    real = Disk.write
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")
    errors = []
    if accelerator.is_main_process:
        Disk.write = full
    try:
        accelerator.save_state("checkpoint")
    except CheckpointError as error:
        errors.append(str(error))
    Disk.write = real
    accelerator.load_state("checkpoint")
    accelerator.wait_for_everyone()
    if not accelerator.is_main_process:
        try:
            accelerator.save_state("lonely")
        except DistributedError as error:
            errors.append(str(error))
    (HERE / f"done{accelerator.process_index}").touch()
    import time
    end = time.monotonic() + 20
    while not all((HERE / f"done{r}").exists() for r in (0, 1)) and time.monotonic() < end:
        time.sleep(0.05)
    say(errors=errors)
    """
    main, other = (said["errors"] for said in run_ranks(script).said)
    assert len(main) == 1
    assert "No space left on device" in main[0]
    assert "rank 0 could not save" in other[0]
    assert "No space left on device" in other[0]
    assert "rank 1 is in save_state at script.py:" in other[1]
    assert not (tmp_path / "lonely").exists()


def test_an_object_that_one_rank_cannot_load_stops_all(run_ranks) -> None:
    script = """
    class Fails:
        def state_dict(self):
            return {"a": 1}
        def load_state_dict(self, state):
            if accelerator.process_index == 1:
                raise IndexError("no such place")
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(collective_deadline_s=15)])
    accelerator.prepare(nn.Linear(2, 2))
    accelerator.register_for_checkpointing(Fails())
    accelerator.save_state("checkpoint")
    try:
        accelerator.load_state("checkpoint")
    except Exception as error:
        say(kind=type(error).__name__, words=str(error))
    accelerator.wait_for_everyone()
    """
    first, second = run_ranks(script).said
    assert first["kind"] == "CheckpointError"
    assert "rank 1 could not load" in first["words"]
    assert "no such place" in first["words"]
    assert second == {"kind": "IndexError", "words": "no such place"}


def test_sharded_tensors_in_an_object_of_the_script_are_refused_by_place_on_all_ranks(run_ranks) -> None:
    script = """
    from runtime import FullyShardedDataParallelPlugin
    accelerator = Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin())
    model = accelerator.prepare(nn.Linear(2, 2))
    class Average:
        def state_dict(self):
            return {"weight": model.weight.detach().clone()}
        def load_state_dict(self, state):
            pass
    accelerator.register_for_checkpointing(Average())
    try:
        accelerator.save_state("checkpoint")
    except Exception as error:
        say(kind=type(error).__name__, words=str(error))
    """
    for rank in run_ranks(script).said:
        assert rank["kind"] == "CheckpointError"
        assert "custom_0['weight'] is a tensor that is a DTensor" in rank["words"]
