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
