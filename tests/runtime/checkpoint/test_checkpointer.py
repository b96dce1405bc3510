"""Saving and loading the training state on one process."""

import io
import os
import pickle
import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from runtime.accelerator import Accelerator
from runtime.checkpoint.disk import Disk
from runtime.checkpoint.manifest import describe, read_manifest
from runtime.errors import CheckpointError, UsageError
from runtime.files import write_json_atomic
from runtime.layout import RunLayout
from runtime.options import DataLoaderConfiguration, ProjectConfiguration
from runtime.records import read_events
from runtime.seeding import set_seed

pytestmark = pytest.mark.usefixtures("fresh_process")


class Counter:
    def __init__(self) -> None:
        self.count: Any = 0

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Training:
    """A small training with dropout, shuffling, momentum, a schedule and an fp16 scaler."""

    def __init__(self, **options: Any) -> None:
        set_seed(3)
        self.accelerator = Accelerator(
            cpu=True,
            dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=True),
            gradient_accumulation_steps=2,
            **options,
        )
        model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        data: Any = torch.linspace(-1, 1, 24).unsqueeze(1)
        self.model, self.optimizer, self.loader, self.scheduler = self.accelerator.prepare(
            model, optimizer, DataLoader(data, batch_size=2, shuffle=True), scheduler
        )
        self.counter = Counter()
        self.accelerator.register_for_checkpointing(self.counter)

    def run(self, epochs: int, *, stop_after: int | None = None, save_to: Path | None = None) -> list[float]:
        losses: list[float] = []
        while self.loader.epoch < epochs:
            for x in self.loader:
                with self.accelerator.accumulate(self.model):
                    loss = (self.model(x) - x + random.random() + np.random.rand()).square().mean()
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
                losses.append(loss.item())
                self.counter.count += 1
                if save_to is not None and self.accelerator.sync_gradients:
                    self.accelerator.save_state(save_to)
                if stop_after is not None and len(losses) == stop_after:
                    return losses
        return losses


@pytest.mark.parametrize("precision", ["no", "fp16"])
@pytest.mark.parametrize("stop_after", [6, 9, 12, 16])
def test_a_resumed_training_equals_the_uninterrupted_one(tmp_path: Path, stop_after: int, precision: str) -> None:
    whole = Training(mixed_precision=precision)
    expected = whole.run(2)

    first = Training(mixed_precision=precision)
    begun = first.run(2, stop_after=stop_after)
    first.accelerator.save_state(tmp_path / "checkpoint")

    second = Training(mixed_precision=precision)
    set_seed(99)
    second.accelerator.load_state(tmp_path / "checkpoint")
    assert begun + second.run(2) == expected
    assert second.counter.count == whole.counter.count
    assert second.optimizer.num_steps == whole.optimizer.num_steps
    assert second.scheduler.get_last_lr() == whole.scheduler.get_last_lr()
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_saving_does_not_disturb_the_training(tmp_path: Path) -> None:
    expected = Training().run(2)
    watched = Training()
    assert watched.run(2, save_to=tmp_path / "checkpoint") == expected


def test_loading_in_the_middle_of_a_window_forgets_the_window(tmp_path: Path) -> None:
    whole = Training()
    expected = whole.run(1)
    training = Training()
    begun = training.run(1, stop_after=4)
    training.accelerator.save_state(tmp_path / "checkpoint")
    training.run(1, stop_after=3)
    training.accelerator.load_state(tmp_path / "checkpoint")
    assert begun + training.run(1) == expected


class Malice:
    def __reduce__(self) -> Any:
        return os.mkdir, (str(Path(os.environ["MALICE"])),)


@pytest.mark.parametrize("victim", ["state.rank0.json", "state.rank0.safetensors", "own.rank0.json"])
def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str) -> None:
    monkeypatch.setenv("MALICE", str(tmp_path / "executed"))
    training = Training()
    path = training.accelerator.save_state(tmp_path / "checkpoint")
    training.accelerator._saver.close()
    for content in (pickle.dumps({"count": Malice()}), _torch_file({"count": Malice()})):
        (path / victim).write_bytes(content)
        with pytest.raises(CheckpointError, match="is damaged: " + victim):
            training.accelerator.load_state(path)
        _accept(path, victim)
        with pytest.raises(CheckpointError, match=victim if victim.endswith("json") else "does not fit"):
            training.accelerator.load_state(path)
        assert not (tmp_path / "executed").exists()


def _torch_file(value: Any) -> bytes:
    written = io.BytesIO()
    torch.save(value, written)
    return written.getvalue()


def _accept(path: Path, victim: str) -> None:
    """Let the manifest say that the file is right."""
    manifest = read_manifest(path)
    assert manifest is not None
    files = [describe(path / file.path) if file.path == victim else file for file in manifest.files]
    write_json_atomic(path / "manifest.json", {**manifest.as_dict(), "files": [asdict(file) for file in files]})


def test_state_that_could_only_be_pickled_is_refused_when_saving(tmp_path: Path) -> None:
    training = Training()
    training.accelerator.save_state(tmp_path / "checkpoint")
    training.counter.count = [1, {"deep": Path("x")}]
    with pytest.raises(CheckpointError, match=r"custom_0\['count'\]\[1\]\['deep'\] is a pathlib"):
        training.accelerator.save_state(tmp_path / "checkpoint")
    training.counter.count = np.float64(7.0)
    training.accelerator.save_state(tmp_path / "checkpoint")
    training.accelerator.load_state(tmp_path / "checkpoint")
    assert training.counter.count == 7.0


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    training.accelerator.save_state(tmp_path / "checkpoint")
    training.counter.count = 5

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Disk, "write", full)
    with pytest.raises(CheckpointError, match=r"No space left on device; it needs \d+ bytes"):
        training.accelerator.save_state(tmp_path / "checkpoint")
    monkeypatch.undo()
    training.accelerator.load_state(tmp_path / "checkpoint")
    assert training.counter.count == 0
    assert os.listdir(tmp_path) == ["checkpoint"]


def test_another_model_is_refused_in_words(tmp_path: Path) -> None:
    training = Training()
    path = training.accelerator.save_state(tmp_path / "checkpoint")
    other = Accelerator(cpu=True)
    other.prepare(nn.Linear(3, 3))
    with pytest.raises(CheckpointError, match=r"model_0 of .* does not fit"):
        other.load_state(path)
    many = Accelerator(cpu=True)
    many.prepare(nn.Linear(1, 1), nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match="has no model_1"):
        many.load_state(path)


def test_named_checkpoints_are_numbered_limited_and_found(tmp_path: Path) -> None:
    options = {"project_config": ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)}
    training = Training(**options)
    for count in range(4):
        training.counter.count = count
        training.accelerator.save_state()
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["checkpoint_2", "checkpoint_3"]
    resumed = Training(**options)
    assert resumed.accelerator.load_state() == tmp_path / "checkpoints" / "checkpoint_3"
    assert resumed.counter.count == 3
    assert resumed.accelerator.save_iteration == 4


def test_in_a_run_checkpoints_lie_in_the_run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    training = Training()
    path = training.accelerator.save_state()
    assert path == tmp_path / "checkpoints" / "checkpoint_0"
    training.accelerator.load_state()
    events = [event.event for event in read_events(RunLayout(tmp_path).events)]
    assert events == ["run_started", "checkpoint_saved", "checkpoint_loaded"]


def test_without_any_path_saving_says_what_is_missing() -> None:
    with pytest.raises(CheckpointError, match="no path for the checkpoint"):
        Training().accelerator.save_state()


def test_registering_what_has_no_state_is_refused() -> None:
    with pytest.raises(UsageError, match="register_for_checkpointing of int"):
        Accelerator(cpu=True).register_for_checkpointing(3)


@pytest.mark.parametrize(("safe", "name"), [(True, "model.safetensors"), (False, "pytorch_model.bin")])
def test_weights_alone_are_exported(tmp_path: Path, safe: bool, name: str) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(2, 2))
    accelerator.save_model(model, tmp_path, safe_serialization=safe)
    if safe:
        from safetensors.torch import load_file

        loaded = load_file(tmp_path / name)
    else:
        loaded = torch.load(tmp_path / name, weights_only=True)
    assert torch.equal(loaded["weight"], model.weight)
    assert os.listdir(tmp_path) == [name]


def test_a_killed_process_never_leaves_a_checkpoint_that_does_not_load(tmp_path: Path) -> None:
    script = """
import sys, torch
from runtime import Accelerator
from runtime.checkpoint.checkpointer import Checkpointer
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(200, 200, bias=False))
for value in range(10_000):
    torch.nn.init.constant_(model.weight, value)
    accelerator.save_state(sys.argv[1])
    print(value, flush=True)
"""
    target = tmp_path / "checkpoint"
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", script, str(target)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        said = -1
        for line in process.stdout:
            said = int(line)
            if said == 7:
                break
        process.kill()
        said = max([said, *(int(line) for line in process.stdout)])
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(200, 200, bias=False))
    accelerator.load_state(target)
    values = model.weight.unique().tolist()
    assert len(values) == 1
    assert values[0] >= said
