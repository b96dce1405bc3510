"""Accelerate's folders: everything is carried over, and what is not is said."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from runtime import Accelerator
from runtime.checkpoint.foreign.recognise import foreign_kind, read_foreign
from runtime.errors import CheckpointError
from tests.runtime.conftest import RunRanks

pytestmark = [pytest.mark.multiprocess, pytest.mark.usefixtures("fresh_process")]

STEPS = 3


class Counter:
    n = 0

    def state_dict(self) -> dict[str, int]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.n = state["n"]


def reference(net: ModuleType, *, schedule_steps: int) -> list[float]:
    """Losses of the steps after the save; Accelerate steps a schedule once a process, this runtime once."""
    model, optimizer, schedule = net.build()
    losses = []
    for step in range(STEPS + 2):
        if step == STEPS and schedule_steps:
            schedule.last_epoch = STEPS
        loss = net.loss_of(model, step)
        loss.backward()
        optimizer.step()
        for _ in range(schedule_steps if step < STEPS else min(1, schedule_steps)):
            schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses[STEPS:]


def build_elsewhere(net: ModuleType) -> Any:
    """The same objects with other values."""
    model, optimizer, schedule = net.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    return model, optimizer, schedule


@pytest.mark.parametrize("folder", ["ddp", "bin"])
def test_a_folder_of_save_state_goes_on(
    accelerate_folders: Path, net: ModuleType, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = accelerate_folders / folder
    assert foreign_kind(directory) == "accelerate"
    accelerator = Accelerator(cpu=True)
    model, optimizer, schedule = accelerator.prepare(*build_elsewhere(net))
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    accelerator.load_state(directory)
    assert float(torch.rand(())) == float((accelerate_folders / "drawn0").read_text()), "rank 0's random states"
    assert counter.n == 7
    assert optimizer.num_steps == STEPS
    assert schedule.scheduler.last_epoch == STEPS
    assert "count 6 is 3 optimizer steps on 2 processes" in capsys.readouterr().err
    losses = []
    for step in (STEPS, STEPS + 1):
        loss = net.loss_of(model, step)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx(reference(net, schedule_steps=2), rel=1e-5)
    assert model.last.weight is model.words.weight


@pytest.mark.parametrize("folder", ["sharded", "full"])
def test_a_folder_of_sharded_training_goes_on(
    accelerate_folders: Path, net: ModuleType, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, _ = build_elsewhere(net)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.load_state(accelerate_folders / folder)
    assert "random_states_0.pkl is missing" in capsys.readouterr().err
    losses = []
    for step in (STEPS, STEPS + 1):
        loss = net.loss_of(model, step)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx(reference(net, schedule_steps=0), rel=1e-4)
    assert model.last.weight is model.words.weight


GOES_ON_UNDER_FSDP2 = """
import shutil
from runtime import FullyShardedDataParallelPlugin as Plugin
sys.path.insert(0, FOLDERS)
from net import build, loss_of

said = {}
for folder in ("sharded", "full"):
    accelerator = Accelerator(cpu=True, fsdp_plugin=Plugin())
    model, optimizer, _ = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.load_state(FOLDERS + "/" + folder)
    losses = []
    for step in (3, 4):
        loss = loss_of(model, step)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    said[folder] = losses
say(**said)
"""


def test_sharded_training_takes_it_up_on_other_numbers_of_ranks(
    accelerate_folders: Path, net: ModuleType, run_ranks: RunRanks
) -> None:
    ended = run_ranks(f"FOLDERS = {str(accelerate_folders)!r}\n{GOES_ON_UNDER_FSDP2}", ranks=3)
    for said in ended.said:
        for losses in said.values():
            assert losses == pytest.approx(reference(net, schedule_steps=0), rel=1e-4)


def test_other_objects_than_were_saved_are_refused_by_name(accelerate_folders: Path, net: ModuleType) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, _ = net.build()
    model, optimizer = accelerator.prepare(model, optimizer)
    with pytest.raises(CheckpointError, match=r"1 schedulers, and 0 are prepared; 1 registered objects, and 0"):
        accelerator.load_state(accelerate_folders / "ddp")
    other = Accelerator(cpu=True)
    model, _, _ = net.build()
    optimizer = torch.optim.AdamW([model.words.weight, model.other.weight])
    other.prepare(model, optimizer)
    with pytest.raises(CheckpointError, match="it has 2 groups of parameters"):
        other.load_state(accelerate_folders / "sharded")
    assert not optimizer.state


def test_a_hook_may_load_the_model_itself(accelerate_folders: Path, net: ModuleType) -> None:
    accelerator = Accelerator(cpu=True)
    model, optimizer, _ = build_elsewhere(net)
    model, optimizer = accelerator.prepare(model, optimizer)
    before = model.odd.detach().clone()
    seen = []
    accelerator.register_load_state_pre_hook(lambda models, directory: (seen.append(directory), models.clear()))
    accelerator.load_state(accelerate_folders / "full")
    assert seen == [str(accelerate_folders / "full")]
    assert torch.equal(model.odd, before)
    assert optimizer.num_steps == STEPS


def test_a_sampler_is_left_unread_and_named(accelerate_folders: Path, tmp_path: Path) -> None:
    directory = tmp_path / "folder"
    shutil.copytree(accelerate_folders / "ddp", directory)
    (directory / "sampler.bin").write_bytes(b"never opened")
    assert any(line.startswith("sampler.bin: ") for line in read_foreign(directory, rank=0).left_out)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"])
def test_a_cut_file_is_refused_by_name(accelerate_folders: Path, tmp_path: Path, name: str) -> None:
    directory = tmp_path / "folder"
    shutil.copytree(accelerate_folders / "ddp", directory)
    path = directory / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        read_foreign(directory, rank=0)


def test_a_cut_shard_is_refused_by_name(accelerate_folders: Path, tmp_path: Path) -> None:
    for number, case in enumerate(("cut", "missing", "no metadata")):
        directory = tmp_path / str(number)
        shutil.copytree(accelerate_folders / "sharded", directory)
        path = directory / "pytorch_model_fsdp_0" / ("__1_0.distcp" if number < 2 else ".metadata")
        if case == "cut":
            path.write_bytes(path.read_bytes()[:-10])
        else:
            path.unlink()
        with pytest.raises(CheckpointError, match=r"__1_0\.distcp|is no checkpoint of a library|\.metadata"):
            read_foreign(directory, rank=0)
