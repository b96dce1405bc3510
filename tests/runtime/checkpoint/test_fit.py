"""What does not fit is refused by name before anything changes; what is tied stays tied; hooks; digests."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.checkpoint.manifest import complete_digests, read_manifest, verify
from runtime.checkpoint.plain import same
from runtime.checkpoint.reader import read_parts
from runtime.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_process")


class Net(nn.Module):
    """Tied, frozen, half, buffers (one not persistent), and a parameter equal to another but not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.last = nn.Linear(4, 7, bias=False)
        self.last.weight = self.words.weight
        self.other = nn.Linear(4, 7, bias=False)
        self.other.weight.data.copy_(self.words.weight.data)
        self.frozen = nn.Parameter(torch.randn(4).bfloat16(), requires_grad=False)
        self.norm = nn.BatchNorm1d(7)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(self.last(self.words(x)) + self.other(self.words(x)))
        return found


def _start(optimizer_class: Any = torch.optim.AdamW, groups: int = 1, **options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(4)
    accelerator = Accelerator(cpu=True)
    model = Net()
    parameters = [p for p in model.parameters() if p.requires_grad]
    cut = [parameters] if groups == 1 else [parameters[:1], parameters[1:]]
    optimizer = optimizer_class([{"params": group} for group in cut], **({"lr": 0.1} | options))
    return accelerator, *accelerator.prepare(model, optimizer)


def _train(accelerator: Any, model: Any, optimizer: Any, steps: int = 2) -> None:
    for _ in range(steps):
        accelerator.backward(model(torch.tensor([1, 2, 6])).square().mean())
        optimizer.step()
        optimizer.zero_grad()


def test_tied_frozen_and_buffers_come_back_as_they_were(tmp_path: Path) -> None:
    accelerator, model, optimizer = _start()
    _train(accelerator, model, optimizer)
    path = accelerator.save_state(tmp_path / "saved")
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    other, twin, _ = _start()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.fill_(3)
    other.load_state(path)
    assert all(same(value, saved[name]) for name, value in twin.state_dict().items())
    assert twin.last.weight is twin.words.weight
    assert twin.other.weight is not twin.words.weight
    assert twin.frozen.dtype == torch.bfloat16
    part = read_parts(path, ["model_0"])["model_0"]
    assert part["last.weight"] is part["words.weight"]
    assert "scratch" not in part


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer_class": torch.optim.SGD}, "optimizer_0 .* is the state of AdamW, and here is SGD"),
        ({"optimizer_class": torch.optim.Adam}, "is the state of AdamW, and here is Adam"),
        ({"groups": 2}, "optimizer_0 .* parameter groups have"),
    ],
)
def test_another_optimizer_is_refused_and_nothing_changes(tmp_path: Path, change: Any, words: str) -> None:
    accelerator, model, optimizer = _start()
    _train(accelerator, model, optimizer)
    path = accelerator.save_state(tmp_path / "saved")
    other, twin, its = _start(**change)
    _train(other, twin, its, 1)
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    state = json.dumps(its.state_dict(), default=lambda leaf: leaf.tolist())
    drawn = torch.get_rng_state()
    with pytest.raises(CheckpointError, match=words):
        other.load_state(path)
    assert all(same(value, before[name]) for name, value in twin.state_dict().items())
    assert json.dumps(its.state_dict(), default=lambda leaf: leaf.tolist()) == state
    assert torch.equal(torch.get_rng_state(), drawn)


def test_objects_of_the_checkpoint_that_are_not_here_are_named(tmp_path: Path) -> None:
    accelerator, model, optimizer = _start()
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1))
    _train(accelerator, model, optimizer)
    path = accelerator.save_state(tmp_path / "saved")
    other, _, its = _start()
    with pytest.raises(CheckpointError, match="holds scheduler_0, and no such object"):
        other.load_state(path)
    other.prepare(torch.optim.lr_scheduler.ExponentialLR(its.optimizer, 0.5))
    with pytest.raises(CheckpointError, match="is the state of StepLR, and here is ExponentialLR"):
        other.load_state(path)
    evaluating = Accelerator(cpu=True)
    evaluated = evaluating.prepare(Net())
    evaluating.load_state(path)  # weights alone are enough where nothing is trained
    assert same(evaluated.words.weight.data, model.words.weight.data)
    assert scheduler.state_dict()["step_size"] == 1


def test_hooks_save_and_load_in_their_own_way(tmp_path: Path) -> None:
    accelerator, model, optimizer = _start()
    _train(accelerator, model, optimizer)
    seen: list[Any] = []

    def save(models: list[Any], weights: list[Any], directory: str) -> None:
        assert models == [model]
        (Path(directory) / "mine").mkdir()
        torch.save(weights.pop(), Path(directory) / "mine" / "weights.bin")

    def load(models: list[Any], directory: str) -> None:
        models.pop().load_state_dict(torch.load(Path(directory) / "mine" / "weights.bin", weights_only=True))
        seen.append(directory)

    saving = accelerator.register_save_state_pre_hook(save)
    path = accelerator.save_state(tmp_path / "saved")
    saving.remove()
    manifest = read_manifest(path)
    assert manifest is not None
    assert "mine/weights.bin" in [file.path for file in manifest.files]
    assert "model_0" not in read_parts(path)
    other, twin, _ = _start()
    with pytest.raises(CheckpointError, match="has no model_0"):
        other.load_state(path)
    loading = other.register_load_state_pre_hook(load)
    other.load_state(path)
    assert seen == [str(path)]
    assert all(same(value, model.state_dict()[name]) for name, value in twin.state_dict().items())
    loading.remove()
    whole = accelerator.save_state(tmp_path / "whole")
    other.load_state(whole)
    assert len(seen) == 1
    (path / "mine" / "weights.bin").write_bytes(b"damaged")
    other.register_load_state_pre_hook(load)
    with pytest.raises(CheckpointError, match=r"mine/weights\.bin"):
        other.load_state(path)
    assert len(seen) == 1


def test_sha256_is_completed_in_the_background_and_by_whoever_needs_it(tmp_path: Path) -> None:
    accelerator, _, _ = _start()
    path = accelerator.save_state(tmp_path / "saved")
    accelerator._saver.close()
    manifest = read_manifest(path)
    assert manifest is not None
    for file in manifest.files:
        assert file.sha256 == hashlib.sha256((path / file.path).read_bytes()).hexdigest()
    data = manifest.as_dict()
    for entry in data["files"]:
        entry["sha256"] = None
    (path / "manifest.json").write_text(json.dumps(data))
    assert complete_digests(path) == manifest
    assert read_manifest(path) == manifest
    data["files"][0]["sha256"] = "0" * 64
    (path / "manifest.json").write_text(json.dumps(data))
    changed = read_manifest(path)
    assert changed is not None
    with pytest.raises(CheckpointError, match="SHA-256"):
        verify(path, changed.files, sha256=True)


def test_the_manifest_names_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "launch.json").write_text(json.dumps({"plan_digest": "ab" * 32}))
    monkeypatch.setenv("FORERUN_RUN_DIR", str(tmp_path))
    accelerator, _, _ = _start()
    manifest = read_manifest(accelerator.save_state())
    assert manifest is not None
    assert manifest.plan_digest == "ab" * 32
    assert manifest.versions["torch"] == torch.__version__
