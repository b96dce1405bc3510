"""Checkpoints of sharded state: other numbers of ranks, other strategies, tied weights, and a rank that saves alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_model
from torch import nn

pytestmark = pytest.mark.multiprocess

MODEL = """
from runtime import FullyShardedDataParallelPlugin as Plugin

class Small(nn.Module):
    # Five rows, two rows and one row: with three and four ranks some hold nothing.
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 2)])
        self.last = nn.Linear(2, 1)
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)

torch.manual_seed(8)
X = torch.randn(6, 3)
Y = X.sum(1, keepdim=True)

def start(plugin):
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return accelerator, *accelerator.prepare(model, optimizer)

def train(accelerator, model, optimizer, steps):
    losses = []
    for _ in range(steps):
        loss = (model(X) - Y).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses

def whole(accelerator, model, optimizer):
    strategy = accelerator._prepared.strategy
    return accelerator.get_state_dict(model), strategy.optimizer_state_dict(optimizer.optimizer)

def equal(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right

def same_as_saved(accelerator, model, optimizer):
    weights, state = whole(accelerator, model, optimizer)
    if not accelerator.is_main_process and not accelerator._prepared.strategy.replicated:
        return True
    saved = torch.load(HERE / "saved.pt", weights_only=True)
    same = equal(dict(weights), dict(saved["weights"])) and equal(state, saved["state"])
    return bool(same and state["state"][0]["step"] == 3)
"""

SAVE = (
    MODEL
    + """
accelerator, model, optimizer = start(Plugin())
train(accelerator, model, optimizer, 3)
accelerator.save_state("sharded")
weights, state = whole(accelerator, model, optimizer)
if accelerator.is_main_process:
    torch.save({"weights": dict(weights), "state": state}, HERE / "saved.pt")
compared = accelerator._saver._checkpointer.matches(Path("sharded"), accelerator._prepared.parts())
expected = train(accelerator, model, optimizer, 2)
changed = accelerator._saver._checkpointer.matches(Path("sharded"), accelerator._prepared.parts())

replicated, model, optimizer = start(None)
replicated.load_state("sharded")
under_ddp = [same_as_saved(replicated, model, optimizer)]
replicated.save_state("replicated")
under_ddp.append(train(replicated, model, optimizer, 2))

accelerator, model, optimizer = start(Plugin(auto_wrap_policy=None, sharding_strategy="SHARD_GRAD_OP"))
accelerator.load_state("replicated")
from_ddp = [same_as_saved(accelerator, model, optimizer), train(accelerator, model, optimizer, 2)]

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.last = nn.Linear(4, 7, bias=False)
        self.other = nn.Linear(4, 7, bias=False)
        self.last.weight = self.words.weight
        self.other.weight.data.copy_(self.words.weight.data)
    def forward(self, x):
        x = self.words(x)
        return self.last(x) + self.other(x)
policy = Plugin(auto_wrap_policy=lambda module: isinstance(module, (nn.Embedding, nn.Linear)))
tying = Accelerator(cpu=True, fsdp_plugin=policy)
tied = tying.prepare(Tied())
tying.save_model(tied, "tied")
tying.save_model(tied, "tied_bin", safe_serialization=False)
tying.save_state("tied_state")
with torch.no_grad():
    before = tied.words.weight.full_tensor()
    tied.words.weight.mul_(3.0)
    together = bool(torch.equal(tied.last.weight.full_tensor(), before * 3.0))
    apart = bool(torch.equal(tied.other.weight.full_tensor(), before))
tying.load_state("tied_state")
back = bool(torch.equal(tied.last.weight.full_tensor(), before) and tied.last.weight is tied.words.weight)

wrong = Accelerator(cpu=True, fsdp_plugin=Plugin())
odd = wrong.prepare(nn.Linear(3, 4))
kept = odd.weight.full_tensor().clone()
other_shape = {"weight": torch.zeros(4, 3), "bias": torch.zeros(5)}
from runtime.errors import CheckpointError
try:
    wrong._prepared.strategy.load_state_dict(odd, other_shape)
    refused = ""
except CheckpointError as error:
    refused = str(error)
say(compared=compared, changed=changed, expected=expected, under_ddp=under_ddp, from_ddp=from_ddp, together=together,
    apart=apart, back=back, refused=refused, kept=bool(torch.equal(odd.weight.full_tensor(), kept)))
"""
)

LOAD = (
    MODEL
    + """
results = []
for plugin in [Plugin(), *([None] if Accelerator(cpu=True).num_processes == 1 else [])]:
    accelerator, model, optimizer = start(plugin)
    accelerator.load_state("sharded")
    results.append([same_as_saved(accelerator, model, optimizer), train(accelerator, model, optimizer, 2)])
say(results=results, held=sum(p.numel() for p in model.parameters()))
"""
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"directory": tmp_path_factory.mktemp("saved"), "said": []}


@pytest.fixture
def saved(run_ranks, shared: dict[str, Any]) -> dict[str, Any]:
    """What the job that saved has said, and where; it runs once."""
    if not shared["said"]:
        shared["said"] = run_ranks(SAVE, directory=shared["directory"]).said
    return shared


def test_sharded_state_goes_on_under_ddp_and_back_bit_for_bit(saved: dict[str, Any]) -> None:
    expected = saved["said"][0]["expected"]
    assert not saved["said"][0]["changed"]
    for said in saved["said"]:
        assert said["compared"]
        assert said["under_ddp"][0]
        assert said["under_ddp"][1] == pytest.approx(expected, abs=1e-6)
        assert said["from_ddp"][0]
        assert said["from_ddp"][1] == pytest.approx(expected, abs=1e-6)
        assert "bias has shape [5], the model's [4]" in said["refused"]
        assert said["kept"]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_state_saved_on_two_ranks_goes_on_on_other_numbers(run_ranks, saved: dict[str, Any], ranks: int) -> None:
    for said in run_ranks(LOAD, ranks=ranks, directory=saved["directory"]).said:
        assert len(said["results"]) == (2 if ranks == 1 else 1)
        for same, losses in said["results"]:
            assert same
            assert losses == pytest.approx(saved["said"][0]["expected"], abs=1e-6)


def test_tied_weights_stay_tied_and_load_in_plain_torch(saved: dict[str, Any]) -> None:
    for said in saved["said"]:
        assert said["together"]
        assert said["apart"]
        assert said["back"]
    directory: Path = saved["directory"]

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(7, 4)
            self.last = nn.Linear(4, 7, bias=False)
            self.other = nn.Linear(4, 7, bias=False)
            self.last.weight = self.words.weight

    first, second = Tied(), Tied()
    load_model(first, directory / "tied" / "model.safetensors", strict=True)
    state = torch.load(directory / "tied_bin" / "pytorch_model.bin", weights_only=True)
    second.load_state_dict(state, strict=True)
    for model in (first, second):
        assert model.last.weight is model.words.weight
        assert torch.equal(model.other.weight, model.words.weight)
        assert model.other.weight is not model.words.weight
    assert torch.equal(first.words.weight, second.words.weight)
    with safe_open(directory / "tied" / "model.safetensors", "pt") as file:
        assert sorted([*file.keys(), *(k for k in file.metadata() if k != "format")]) == sorted(first.state_dict())


def test_a_save_by_the_main_process_alone_is_an_error_in_seconds_that_names_the_call(run_ranks) -> None:
    script = """
    import time
    from runtime.errors import DistributedError
    from runtime.checkpoint import checkpointer
    accelerator = Accelerator(cpu=True, fsdp_plugin={"cpu_offload": False})
    model = accelerator.prepare(nn.Linear(4, 4))
    calls = {
        "save_state": lambda: accelerator.save_state("lone"),
        "get_state_dict": lambda: accelerator.get_state_dict(model),
        "save_model": lambda: accelerator.save_model(model, "lone_model"),
    }
    errors, seconds = [], []
    for name, call in calls.items():
        started = time.monotonic()
        try:
            if accelerator.is_main_process:
                call()
            accelerator.wait_for_everyone()
        except DistributedError as error:
            errors.append(str(error))
        seconds.append(time.monotonic() - started)
    # Where the others do not even come to a collective of ours, a short deadline ends the wait.
    checkpointer.LONE_DEADLINE_S = 2.0
    started = time.monotonic()
    if accelerator.is_main_process:
        try:
            accelerator.save_state("lone")
        except DistributedError as error:
            errors.append(str(error))
        (HERE / "done").touch()
    else:
        while not (HERE / "done").exists() and time.monotonic() < started + 20:
            time.sleep(0.05)
    seconds.append(time.monotonic() - started)
    say(errors=errors, seconds=seconds, left=sorted(p.name for p in Path().glob("*lone*")))
    """
    first, second = run_ranks(script).said
    assert first["left"] == []
    for name, error in zip(("save_state", "get_state_dict", "save_model"), first["errors"], strict=False):
        assert f"rank 0 to {name} at script.py:" in error
        assert "rank 1 to wait_for_everyone at script.py:" in error
        assert "every rank holds a part of the state" in error
        assert "if accelerator.is_main_process" in error
    assert len(first["errors"]) == 4
    assert "rank 0 is in save_state at script.py:" in first["errors"][3]
    assert "rank 1 did not come within 2 s" in first["errors"][3]
    assert len(second["errors"]) == 3
    assert max(first["seconds"] + second["seconds"]) < 15


def test_of_replicas_of_a_shard_one_writes_it_and_it_loads_on_one_rank(run_ranks, tmp_path: Path) -> None:
    save = (
        MODEL
        + """
from runtime.mesh import ParallelDims
accelerator = Accelerator(cpu=True, fsdp_plugin=Plugin(sharding_strategy="HYBRID_SHARD"),
                          parallelism_config=ParallelDims(data_replicate=2, data_shard=2))
model, optimizer = accelerator.prepare(small := Small(), torch.optim.AdamW(small.parameters(), lr=0.05))
train(accelerator, model, optimizer, 3)
accelerator.save_state("sharded")
weights, state = whole(accelerator, model, optimizer)
if accelerator.is_main_process:
    torch.save({"weights": dict(weights), "state": state}, HERE / "saved.pt")
say(ok=accelerator._saver._checkpointer.matches(Path("sharded"), accelerator._prepared.parts()))
"""
    )
    assert all(said["ok"] for said in run_ranks(save, ranks=4).said)
    boxes = {rank: (tmp_path / "sharded" / f"state.rank{rank}.safetensors").exists() for rank in range(4)}
    assert boxes == {0: True, 1: True, 2: False, 3: False}
    (said,) = run_ranks(LOAD, ranks=1).said
    assert [same for same, _ in said["results"]] == [True, True]
