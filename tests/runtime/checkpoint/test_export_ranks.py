"""Exports of several ranks: each strategy gives the same files, ties included, and a failure reaches every rank."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

from runtime.checkpoint.merging import find_weights
from tests.runtime.checkpoint.test_export import Tied, load_export
from tests.runtime.conftest import RunRanks

pytestmark = pytest.mark.multiprocess

EXPORT = """
from runtime import FullyShardedDataParallelPlugin as Plugin
from runtime.errors import CheckpointError

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 7, bias=False)
        self.words = nn.Embedding(7, 4)
        self.other = nn.Linear(4, 7, bias=False)
        self.last.weight = self.words.weight
        self.other.weight.data.copy_(self.words.weight.data)
    def forward(self, x):
        x = self.words(x)
        return self.last(x) + self.other(x)

PLUGINS = {
    "ddp": {},
    "fsdp2": {"fsdp_plugin": Plugin(auto_wrap_policy=lambda m: isinstance(m, (nn.Embedding, nn.Linear)))},
    "zero2": {"deepspeed_plugin": {"zero_stage": 2}},
    "zero3": {"deepspeed_plugin": {"zero_stage": 3}},
}
errors = {}
for name in NAMES:
    accelerator = Accelerator(cpu=True, **PLUGINS[name])
    torch.manual_seed(0)
    model = Tied()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.save_model(model, f"{name}")
    accelerator.save_model(model, f"{name}_parts", 100)
    accelerator.save_model(model, f"{name}_bin", safe_serialization=False)
    accelerator.save_state(f"{name}_state")
    Path("in_the_way").touch()
    try:
        accelerator.save_model(model, "in_the_way/below")
    except CheckpointError as error:
        errors[name] = str(error)
say(errors=errors)
"""


@pytest.mark.parametrize("names", [("ddp", "fsdp2"), ("zero2", "zero3")])
def test_every_strategy_exports_the_same(tmp_path: Path, run_ranks: RunRanks, names: tuple[str, ...]) -> None:
    ended = run_ranks(f"NAMES = {names!r}\n{EXPORT}", ranks=2)
    torch.manual_seed(0)
    model = Tied()
    for name in names:
        stored = load_file(tmp_path / name / "model.safetensors")
        assert set(stored) == {"last.weight", "other.weight"}
        parts = load_export(tmp_path / f"{name}_parts")
        assert len(list((tmp_path / f"{name}_parts").glob("*.safetensors"))) == 2
        assert all(torch.equal(parts[key], value) for key, value in stored.items())
        fresh = Tied()
        assert load_model(fresh, tmp_path / name / "model.safetensors") == (set(), [])
        assert fresh.last.weight is fresh.words.weight
        whole = torch.load(tmp_path / f"{name}_bin" / "pytorch_model.bin", weights_only=True)
        again = Tied()
        again.load_state_dict(whole)
        for loaded in (fresh, again):
            assert all(torch.equal(value, model.state_dict()[key]) for key, value in loaded.state_dict().items())
        merged = find_weights(tmp_path / f"{name}_state")
        values = {weight.name: weight.read() for weight in merged.weights}
        assert {*values, *(alias for weight in merged.weights for alias in weight.aliases)} == set(whole)
        assert len(values) == 2
        assert all(torch.equal(value, whole[key]) for key, value in values.items())
        failed = [name in said["errors"] for said in ended.said]
        assert failed == [True, name != "ddp"], "under DDP rank 0 alone writes, and the others do not wait"


def test_a_model_without_parameters_of_its_own_is_exported(tmp_path: Path) -> None:
    from runtime.checkpoint.export import write_weights
    from runtime.checkpoint.weights import weights_of

    weights, rest = weights_of(nn.ReLU().state_dict())
    assert write_weights(weights, tmp_path, rest=rest).name == "model.safetensors"
    assert load_export(tmp_path) == {}
