"""Saves on several ranks: in the background, in the middle of a window, on a full disk, beside what is in the way."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

HEAD = """
from runtime import ProjectConfiguration
from runtime.checkpoint.disk import Disk
from runtime.checkpoint.manifest import saved_rng_ranks
from runtime.errors import CheckpointError

def start(sharded=False, accumulation=1, **options):
    set_seed(3)
    plugin = {"cpu_offload": False, "auto_wrap_policy": None} if sharded else None
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, gradient_accumulation_steps=accumulation,
                              kwargs_handlers=[InitProcessGroupKwargs(collective_deadline_s=15)], **options)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.05))

def batches(accelerator, begin, end):
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(12, 2, 6, 3, generator=generator)
    for x in data[begin:end, accelerator.process_index % 2]:
        yield x, x.sum(1, keepdim=True)

def train(accelerator, model, optimizer, begin, end):
    losses = []
    for x, y in batches(accelerator, begin, end):
        with accelerator.accumulate(model):
            loss = (model(x) + 0.1 * torch.rand(1) - y).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses
"""

WINDOW = (
    HEAD
    + """
from runtime.errors import UsageError
results = {}
for sharded in (False, True):
    for background in (False, True):
        accelerator, model, optimizer = start(sharded, accumulation=4)
        expected = train(accelerator, model, optimizer, 0, 12)
        accelerator, model, optimizer = start(sharded, accumulation=4)
        begun = train(accelerator, model, optimizer, 0, 6)
        name = f"window-{sharded}-{background}"
        accelerator.save_state(name, async_save=background)
        rest = train(accelerator, model, optimizer, 6, 12)
        accelerator._saver.finish()
        second, model, optimizer = start(sharded, accumulation=4)
        second.load_state(name)
        resumed = train(second, model, optimizer, 6, 12)
        results[name] = [begun + rest == expected, begun + resumed == expected, saved_rng_ranks(Path(name)) == [0, 1]]
accelerator, model, optimizer = start(False, accumulation=4)
train(accelerator, model, optimizer, 0, 6)
if accelerator.is_main_process:
    accelerator.save_state("alone")
accelerator, model, optimizer = start(False, accumulation=4)
before = [p.tolist() for p in model.parameters()]
try:
    accelerator.load_state("alone")
    refused = ""
except CheckpointError as error:
    refused = str(error)
say(results=results, refused=refused, kept=before == [p.tolist() for p in model.parameters()])
"""
)


def test_a_resume_in_the_middle_of_a_window_is_bit_equal(run_ranks, tmp_path: Path) -> None:
    for said in run_ranks(WINDOW).said:
        assert len(said["results"]) == 4
        for name, equal in said["results"].items():
            assert equal == [True, True, True], name
        assert "accumulation window" in said["refused"]
        assert "rank 1 of 2 saved nothing of it" in said["refused"]
        assert said["kept"]
    other = """
    accelerator, model, optimizer = start(False, accumulation=4)
    accelerator.load_state("window-False-False")
    say(open=accelerator._prepared.windows.open_micro_batches, losses=train(accelerator, model, optimizer, 6, 12))
    """
    import textwrap

    (said,) = run_ranks(HEAD + textwrap.dedent(other), ranks=1).said
    assert said["open"] == 2
    assert len(said["losses"]) == 6


FULL = (
    HEAD
    + """
import time
accelerator, model, optimizer = start(SHARDED)
train(accelerator, model, optimizer, 0, 1)
accelerator.save_state("checkpoint")
saved = [float(p.detach().to_local().sum() if SHARDED else p.detach().sum()) for p in model.parameters()]
train(accelerator, model, optimizer, 1, 2)
real, errors, seconds = Disk.write, [], []
def full(*args, **kwargs):
    raise OSError(28, "No space left on device")
for culprit in range(2):
    for background in (False, True):
        if accelerator.process_index == culprit:
            Disk.write = full
        started = time.monotonic()
        try:
            accelerator.save_state("checkpoint", async_save=background)
            accelerator._saver.finish()
            errors.append("")
        except CheckpointError as error:
            errors.append(str(error))
        seconds.append(time.monotonic() - started)
        Disk.write = real
        accelerator.wait_for_everyone()
left = sorted(p.name for p in Path().iterdir() if "checkpoint" in p.name)
accelerator.load_state("checkpoint")
found = [float(p.detach().to_local().sum() if SHARDED else p.detach().sum()) for p in model.parameters()]
train(accelerator, model, optimizer, 2, 3)
accelerator.save_state("checkpoint")
accelerator.load_state("checkpoint")
say(errors=errors, seconds=seconds, same=found == saved, left=left)
"""
)


def test_a_disk_that_is_full_for_one_rank_is_an_error_on_all_that_need_it(run_ranks) -> None:
    for said in run_ranks("SHARDED = True\n" + FULL).said:
        assert all("No space left on device" in error for error in said["errors"]), said["errors"]
        assert max(said["seconds"]) < 10
        assert said["same"]
        assert said["left"] == ["checkpoint"]


def test_of_a_replicated_state_rank_0_needs_nobody(run_ranks) -> None:
    first, second = run_ranks("SHARDED = False\n" + FULL).said
    assert ["No space left" in error for error in first["errors"]] == [True, True, False, False]
    assert all("No space left" in error for error in second["errors"])
    assert all("rank 0 could not save" in error for error in second["errors"][:2])
    assert max(first["seconds"] + second["seconds"]) < 10


IN_THE_WAY = (
    HEAD
    + """
import os, time
project = ProjectConfiguration(str(HERE), automatic_checkpoint_naming=True)
accelerator, model, optimizer = start(project_config=project)
for _ in range(2):
    accelerator.save_state()
root = HERE / "checkpoints"
errors, seconds = [], []
def attempt():
    accelerator.wait_for_everyone()
    started = time.monotonic()
    try:
        errors.append("saved " + accelerator.save_state().name)
    except CheckpointError as error:
        errors.append(str(error))
    seconds.append(time.monotonic() - started)
    accelerator.wait_for_everyone()
if accelerator.is_main_process:
    (root / "checkpoint_2").mkdir()
    (root / "checkpoint_2" / "state.rank0.safetensors").write_bytes(b"half")
attempt()
if accelerator.is_main_process:
    (root / "checkpoint_3").write_text("a file")
attempt()
if accelerator.is_main_process:
    (root / "checkpoint_3").unlink()
    mkdir = Disk.make_directory
    def forbidden(self, path):
        raise PermissionError(13, "Permission denied")
    Disk.make_directory = forbidden
attempt()
if accelerator.is_main_process:
    Disk.make_directory = mkdir
attempt()
accelerator.load_state()
class Broken:
    def state_dict(self):
        raise RuntimeError("no state today")
    def load_state_dict(self, state):
        pass
accelerator.register_for_checkpointing(Broken())
try:
    accelerator.save_state()
    errors.append("saved")
except (CheckpointError, RuntimeError) as error:
    errors.append(str(error))
say(errors=errors, seconds=seconds, next=accelerator.save_iteration)
"""
)


def test_what_is_in_the_way_hangs_nobody(run_ranks) -> None:
    for rank, said in enumerate(run_ranks(IN_THE_WAY).said):
        partial, file, forbidden, after, broken = said["errors"]
        assert partial == "saved checkpoint_2"
        assert "checkpoint_3 is a file" in file
        assert "Permission denied" in forbidden
        assert after == "saved checkpoint_3"
        assert "no state today" in broken
        assert max(said["seconds"]) < 10
        if rank:
            assert all("rank 0 could not save" in words for words in (file, forbidden, broken))


def test_damage_that_one_rank_sees_stops_all_before_anything_is_loaded(run_ranks) -> None:
    script = (
        HEAD
        + """
results = []
for sharded, victim in ((True, "state.rank1.safetensors"), (True, "own.rank1.safetensors"), (False, "own.rank1.json")):
    accelerator, model, optimizer = start(sharded)
    train(accelerator, model, optimizer, 0, 1)
    name = f"{sharded}-{victim}"
    accelerator.save_state(name)
    accelerator._saver.close()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        content = bytearray((Path(name) / victim).read_bytes())
        content[-3] ^= 8
        (Path(name) / victim).write_bytes(content)
    accelerator.wait_for_everyone()
    train(accelerator, model, optimizer, 1, 2)
    before = [(p.to_local() if sharded else p).tolist() for p in model.parameters()]
    try:
        accelerator.load_state(name)
        results.append(["loaded", False])
    except CheckpointError as error:
        after = [(p.to_local() if sharded else p).tolist() for p in model.parameters()]
        results.append([str(error), before == after])
say(results=results)
"""
    )
    for said in run_ranks(script).said:
        for (words, kept), victim in zip(
            said["results"], ("state.rank1.safetensors", "own.rank1.safetensors", "own.rank1.json"), strict=True
        ):
            assert f"{victim} has other content" in words
            assert kept


def test_a_save_that_failed_in_the_background_does_not_end_in_success(run_ranks, tmp_path: Path) -> None:
    script = (
        HEAD
        + """
accelerator, model, optimizer = start()
accelerator.save_state("good", async_save=True)
accelerator._saver.finish()
def full(*args, **kwargs):
    raise OSError(28, "No space left on device")
Disk.write = full
accelerator.save_state("bad", async_save=True)
say(done=True)
"""
    )
    ended = run_ranks(script, ranks=1, ok=False)
    assert ended.returncode == 1
    assert "forerun: checkpoint bad could not be written: No space left on device" in ended.output
    assert (tmp_path / "good" / "manifest.json").exists()
    assert not (tmp_path / "bad").exists()
