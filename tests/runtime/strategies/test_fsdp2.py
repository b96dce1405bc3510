"""FSDP2 against one process and DDP: gradients, norms and losses, number by number."""

import pytest

pytestmark = pytest.mark.multiprocess

BLOCKS = """
from runtime import FullyShardedDataParallelPlugin as Plugin, ParallelDims
from runtime.errors import ForerunError
import torch.distributed as dist

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.line = nn.Linear(width, width)
    def forward(self, x):
        return x + torch.tanh(self.line(self.norm(x)))

class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.first = nn.Linear(3, width)
        self.layers = nn.ModuleList([Block(width), Block(width)])
        self.last = nn.Linear(width, 1)
    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])

def whole(tensors):
    return flat(t.detach().full_tensor() for t in tensors)
"""

SAME_GRADIENTS = (
    BLOCKS
    + """
torch.set_default_dtype(torch.float64)
set_seed(11)
DATA = torch.randn(56, 3)
TARGET = DATA.sum(1, keepdim=True)
sent = []
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
real = DefaultReduceScatter.__call__
def counted(*args, **kwargs):
    sent.append(1)
    return real(*args, **kwargs)
DefaultReduceScatter.__call__ = counted
results = {}
for name, settings, degrees in CONFIGURATIONS:
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=3, fsdp_plugin=Plugin(**settings), parallelism_config=degrees
    )
    plain = Net()
    model = Net()
    model.load_state_dict(plain.state_dict())
    if accelerator.process_index:
        nn.init.zeros_(model.first.weight)  # rank 0's weights count
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    reference = torch.optim.SGD(plain.parameters(), lr=0.05)
    world = accelerator.num_processes
    samples = list(zip(DATA, TARGET))[: 7 * 2 * world]  # of seven batches, the last window has one
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(samples, batch_size=2))
    worst, norms, when = 0.0, [], []
    window = []
    for step, (x, y) in enumerate(loader):
        batch = slice(step * 2 * world, (step + 1) * 2 * world)
        before = len(sent)
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            skipped = name == "skipped" and step in (2, 5)
            if not skipped:
                accelerator.backward((model(x) - y).square().mean())
                window.append(batch)
            with torch.no_grad():
                model(DATA[:1])  # an evaluation inside the window leaves it alone
            when.append(len(sent) > before)
            if accelerator.sync_gradients:
                reference.zero_grad()
                losses = [(plain(DATA[b]) - TARGET[b]).square().mean() for b in window]
                (sum(losses) / len(losses)).backward()
                expected_norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.3)
                norms.append(abs(float(norm) - float(expected_norm)) / float(expected_norm))
                got = whole(p.grad for p in model.parameters())
                worst = max(worst, float((got - flat(p.grad for p in plain.parameters())).abs().max()))
                reference.step()
                window = []
            optimizer.step()
    drift = float((whole(model.parameters()) - flat(p.detach() for p in plain.parameters())).abs().max())
    lengths = [(p.to_local().numel(), p.numel()) for p in model.parameters()]
    sharded = sum(own for own, _ in lengths) < 0.7 * sum(all_of_it for _, all_of_it in lengths)
    units = [type(m).__name__ for m in model.modules() if type(m).__name__.startswith("FSDP")]
    results[name] = dict(worst=worst, norm=max(norms), drift=drift, when=when, sharded=sharded, units=units)
say(**results)
"""
)


def _check(said: list[dict], names: list[str]) -> None:
    for rank in said:
        assert list(rank) == names
        for name, result in rank.items():
            assert result["worst"] < 1e-12, name
            assert result["norm"] < 1e-12, name
            assert result["drift"] < 1e-12, name
            assert result["sharded"], name
            if name != "skipped":
                assert result["when"] == [False, False, True, False, False, True, True], name


def test_a_windows_gradient_and_norm_equal_one_processs_under_every_setting(run_ranks) -> None:
    script = (
        """
DOCUMENT = dict(sharding_strategy="FULL_SHARD", auto_wrap_policy="TRANSFORMER_AUTO_WRAP", cpu_offload=False)
CONFIGURATIONS = [
    ("document", dict(DOCUMENT), None),
    ("skipped", dict(), None),
    ("grad_op", dict(sharding_strategy="SHARD_GRAD_OP"), None),
    ("by_name", dict(transformer_cls_names_to_wrap="Block", activation_checkpointing=True), None),
    ("by_size", dict(auto_wrap_policy="SIZE_BASED_WRAP", min_num_params=40), None),
    ("by_function", dict(auto_wrap_policy=lambda module: isinstance(module, torch.nn.Linear)), None),
    ("none", dict(auto_wrap_policy="NO_WRAP", sharding_strategy=2), None),
    ("offload", dict(cpu_offload=True), None),
]
"""
        + SAME_GRADIENTS
    )
    said = run_ranks(script).said
    names = ["document", "skipped", "grad_op", "by_name", "by_size", "by_function", "none", "offload"]
    _check(said, names)
    units = {name: result["units"] for name, result in said[0].items()}
    assert units["document"] == ["FSDPNet", "FSDPBlock", "FSDPBlock"]
    assert units["by_size"] == ["FSDPNet", "FSDPLinear", "FSDPLinear"]
    assert units["by_function"] == ["FSDPNet", *["FSDPLinear"] * 4]
    assert units["none"] == ["FSDPNet"]


def test_replicas_of_shards_on_four_ranks(run_ranks) -> None:
    script = (
        """
from runtime import ParallelDims
CONFIGURATIONS = [
    ("hybrid", dict(sharding_strategy="HYBRID_SHARD"), ParallelDims(data_replicate=2, data_shard=2)),
    ("hybrid2", dict(sharding_strategy="HYBRID_SHARD_ZERO2", cpu_offload=True), ParallelDims(data_shard=2)),
]
"""
        + SAME_GRADIENTS
    )
    _check(run_ranks(script, ranks=4).said, ["hybrid", "hybrid2"])
