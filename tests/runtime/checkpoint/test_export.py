"""Exported weights: Hugging Face's conventions, ties, sizes of shards, and a former export that outlives a failure."""

import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model
from torch import nn

from runtime import Accelerator
from runtime.checkpoint.export import parse_size, plan_shards, write_weights
from runtime.checkpoint.weights import weights_of
from runtime.errors import CheckpointError, UsageError

pytestmark = pytest.mark.usefixtures("fresh_process")


class Tied(nn.Module):
    """An embedding whose weight the last layer uses; `other` has equal values and is not tied."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 7, bias=False)
        self.words = nn.Embedding(7, 4)
        self.other = nn.Linear(4, 7, bias=False)
        self.last.weight = self.words.weight
        self.other.weight.data.copy_(self.words.weight.data)


def load_export(directory: Path) -> dict[str, torch.Tensor]:
    """What a reader of the convention finds: the only file first, then the index."""
    only = directory / "model.safetensors"
    if only.is_file():
        return load_file(only)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    tensors = {}
    for name, file in index["weight_map"].items():
        with safe_open(directory / file, framework="pt") as opened:
            tensors[name] = opened.get_tensor(name)
    return tensors


def layers(value: float = 0.0) -> dict[str, torch.Tensor]:
    return {f"layer{i}": torch.full((10,), value + i) for i in range(5)}


def export(state: dict[str, Any], directory: Path, **options: Any) -> Path:
    weights, rest = weights_of(state)
    return write_weights(weights, directory, rest=rest, **options)


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5 * 10**9), ("500MiB", 500 * 2**20), ("1.5 kb", 1500), (7, 7), ("12", 12)]
)
def test_sizes_are_read(text: int | str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "5 parsecs", 0, -1, "0MB", True, "1e9"])
def test_other_sizes_are_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="max_shard_size"):
        parse_size(text)


def test_shards_keep_the_order_and_the_size() -> None:
    weights, _ = weights_of({"a": torch.zeros(3), "b": torch.zeros(2), "huge": torch.zeros(9), "c": torch.zeros(1)})
    names = [[weight.name for weight in shard] for shard in plan_shards(weights, 20)]
    assert names == [["a", "b"], ["huge"], ["c"]]


def test_shards_have_the_conventional_names_and_an_index(tmp_path: Path) -> None:
    state = layers() | {"half": torch.ones(3, dtype=torch.bfloat16)}
    target = export(state, tmp_path, max_shard_size=80)
    assert target.name == "model.safetensors.index.json"
    index = json.loads(target.read_text())
    assert index["metadata"]["total_size"] == 5 * 40 + 6
    assert sorted(os.listdir(tmp_path)) == [
        *(f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)),
        "model.safetensors.index.json",
    ]
    assert set(index["weight_map"]) == set(state)
    loaded = load_export(tmp_path)
    assert all(torch.equal(loaded[name], value) and loaded[name].dtype == value.dtype for name, value in state.items())


@pytest.mark.parametrize("size", ["5GB", 100])
@pytest.mark.parametrize("safe", [True, False])
def test_tied_weights_are_stored_once_and_tied_again(tmp_path: Path, safe: bool, size: Any) -> None:
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(Tied())
    accelerator.save_model(model, tmp_path, size, safe)
    fresh = Tied()
    if safe and size == "5GB":
        missing, unexpected = load_model(fresh, tmp_path / "model.safetensors")
        assert (missing, unexpected) == (set(), [])
        with safe_open(tmp_path / "model.safetensors", framework="pt") as opened:
            assert opened.metadata() == {"format": "pt", "words.weight": "last.weight"}
    elif safe:
        stored = load_export(tmp_path)
        assert set(stored) == {"last.weight", "other.weight"}
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
        assert index["metadata"] == {"total_size": 2 * 7 * 4 * 4, "tied": {"words.weight": "last.weight"}}
        fresh.load_state_dict(stored | {name: stored[kept] for name, kept in index["metadata"]["tied"].items()})
    else:
        for file in sorted(tmp_path.glob("*.bin")):
            fresh.load_state_dict(torch.load(file, weights_only=True), strict=size == "5GB")
    assert fresh.last.weight is fresh.words.weight
    assert torch.equal(fresh.words.weight, model.words.weight)
    assert torch.equal(fresh.other.weight, model.other.weight)
    with torch.no_grad():
        fresh.words.weight.mul_(2)
    assert torch.equal(fresh.last.weight, 2 * fresh.other.weight)


def test_views_of_one_memory_are_each_written_whole(tmp_path: Path) -> None:
    memory = torch.arange(6.0)
    state = {"all": memory, "start": memory[:2], "turned": memory.view(2, 3).t(), "empty": memory[:0]}
    export(state, tmp_path)
    loaded = load_export(tmp_path)
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def test_transformers_loads_an_export(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=11, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    for size, files in (("1MB", 1), (2000, 3)):
        directory = tmp_path / str(size)
        config.save_pretrained(directory)
        accelerator = Accelerator(cpu=True)
        accelerator.save_model(accelerator.prepare(model), directory, size)
        assert len(list(directory.glob("*.safetensors"))) >= files
        loaded = GPT2LMHeadModel.from_pretrained(directory, local_files_only=True)
        expected = model.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in loaded.state_dict().items())
        assert loaded.lm_head.weight is loaded.transformer.wte.weight


def test_what_is_no_tensor_is_refused_by_name_or_goes_to_the_other_format(tmp_path: Path) -> None:
    state = {"a": torch.zeros(2), "norm._extra_state": {"scale": 2.0}}
    with pytest.raises(CheckpointError, match=r"norm\._extra_state"):
        export(state, tmp_path)
    assert os.listdir(tmp_path) == []
    export(state, tmp_path, safe=False)
    assert torch.load(tmp_path / "pytorch_model.bin", weights_only=True)["norm._extra_state"] == {"scale": 2.0}


@pytest.mark.parametrize("before", [40, 80, 1000])
@pytest.mark.parametrize("after", [40, 80, 1000])
def test_a_new_export_leaves_nothing_of_the_former_one(tmp_path: Path, before: int, after: int) -> None:
    (tmp_path / "config.json").write_text("{}")
    export(layers(), tmp_path, max_shard_size=before)
    export(layers(10), tmp_path, max_shard_size=after)
    fresh = tmp_path / "fresh"
    export(layers(10), fresh, max_shard_size=after)
    assert sorted(os.listdir(tmp_path)) == sorted([*os.listdir(fresh), "config.json", "fresh"])
    assert torch.equal(load_export(tmp_path)["layer1"], torch.full((10,), 11.0))


def test_torch_format_replaces_safetensors(tmp_path: Path) -> None:
    export(layers(), tmp_path, max_shard_size=80)
    export(layers(), tmp_path, safe=False)
    assert os.listdir(tmp_path) == ["pytorch_model.bin"]


@pytest.mark.parametrize("before", [80, 1000])
@pytest.mark.parametrize("after", [80, 1000])
def test_a_failure_anywhere_leaves_one_whole_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int
) -> None:
    """The disk fails at the n-th system call, for every n: a reader finds the old weights or the new, never both."""
    outcomes = []
    for fail_at in itertools.count():
        directory = tmp_path / str(fail_at)
        export(layers(), directory, max_shard_size=before)
        calls = itertools.count()

        def failing(real: Any, calls: Any = calls, fail_at: int = fail_at) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                if next(calls) >= fail_at:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real(*args, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("replace", "fsync", "unlink", "link"):
                patch.setattr(os, name, failing(getattr(os, name)))
            error = None
            try:
                export(layers(100), directory, max_shard_size=after)
            except CheckpointError as raised:
                error = str(raised)
        assert error is None or "No space left" in error
        values = {float(tensor[0]) // 100 for tensor in load_export(directory).values()}
        assert len(values) == 1
        outcomes.append(values.pop())
        if error is None and next(calls) <= fail_at:
            break
    assert outcomes[0] == 0.0
    assert outcomes[-1] == 1.0
    assert outcomes == sorted(outcomes)


def test_every_weight_is_read_once_also_after_a_failure(tmp_path: Path) -> None:
    """Other ranks take part in the reading, so that one which stopped would leave them waiting."""
    from dataclasses import replace

    read: list[str] = []
    weights, _ = weights_of(layers())
    counted = [
        replace(w, read=lambda w=w: read.append(w.name) or w.read())  # type: ignore[misc, func-returns-value]
        for w in weights
    ]
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be written"):
        write_weights(counted, tmp_path / "file" / "below", max_shard_size=80)
    assert read == list(layers())


def test_at_most_one_shard_is_in_memory(tmp_path: Path) -> None:
    from dataclasses import replace
    from weakref import WeakSet

    alive: WeakSet[torch.Tensor] = WeakSet()
    most = 0

    def read() -> torch.Tensor:
        nonlocal most
        tensor = torch.zeros(10)
        alive.add(tensor)
        most = max(most, len(alive))
        return tensor

    weights, _ = weights_of(layers())
    write_weights([replace(w, read=read) for w in weights], tmp_path, max_shard_size=80)
    assert most == 2
