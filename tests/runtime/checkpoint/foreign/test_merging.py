"""Whole weights from other libraries' sharded folders: the same values under the same names, one shard at a time."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model

from runtime.checkpoint.export import write_weights
from runtime.checkpoint.foreign.recognise import read_foreign
from runtime.checkpoint.merging import Mergeable, find_weights
from runtime.errors import CheckpointError

pytestmark = pytest.mark.multiprocess


def merge(source: Path, target: Path, **options: Any) -> Mergeable:
    found = find_weights(source)
    write_weights(found.weights, target, rest=found.rest, **options)
    return found


@pytest.mark.parametrize("folder", ["sharded/pytorch_model_fsdp_0", "sharded", "full", "ddp", "bin"])
def test_accelerate_s_folders(accelerate_folders: Path, tmp_path: Path, net: ModuleType, folder: str) -> None:
    is_sharded = folder.startswith("sharded")
    found = merge(accelerate_folders / folder, tmp_path / "out")
    assert found.written_by == ("torch" if is_sharded else "accelerate")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    aliases = {alias: stored[weight.name] for weight in found.weights for alias in weight.aliases}
    (expected,) = read_foreign(accelerate_folders / folder.split("/")[0], rank=0).models
    assert stored.keys() | aliases.keys() == expected.keys()
    assert all(torch.equal({**stored, **aliases}[name], value) for name, value in expected.items())
    model, _, _ = net.build()
    if folder in ("ddp", "bin"):
        assert load_model(model, tmp_path / "out" / "model.safetensors") == (set(), [])
        assert model.last.weight is model.words.weight
    else:
        model.load_state_dict(stored)  # torch's and Accelerate's sharded folders hold both names


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_s_folders(deepspeed_folders: Path, tmp_path: Path, net: ModuleType, stage: int) -> None:
    found = merge(deepspeed_folders / f"stage{stage}", tmp_path / "out", max_shard_size=100)
    assert found.written_by == "deepspeed"
    assert "float32" in found.notes[0]
    stored: dict[str, torch.Tensor] = {}
    for path in (tmp_path / "out").glob("*.safetensors"):
        stored |= load_file(path)
    expected = torch.load(deepspeed_folders / f"stage{stage}.pt", weights_only=True)
    assert stored["frozen"].dtype == torch.bfloat16
    aliases = {alias: weight.name for weight in found.weights for alias in weight.aliases}
    assert set(stored) | set(aliases) == set(expected) | {"frozen"}
    assert {*aliases, *aliases.values()} == {"words.weight", "last.weight"}
    assert all(torch.equal(stored[aliases.get(name, name)], value) for name, value in expected.items())


def test_an_optimizer_s_folder_is_no_model(accelerate_folders: Path) -> None:
    with pytest.raises(CheckpointError, match="holds an optimizer's state"):
        find_weights(accelerate_folders / "sharded" / "optimizer_0")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_what_torch_saved_under_other_names_keeps_them(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    saved = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "epoch": torch.tensor(3)}
    dcp.save(saved, checkpoint_id=tmp_path / "dcp", no_dist=True)
    merge(tmp_path / "dcp", tmp_path / "out")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(stored["model.weight"], saved["model"]["weight"])  # type: ignore[index]
    assert int(stored["epoch"]) == 3
