"""S1, S2, S5, S8, S9 and S11 of the source document: the four lines, precision, FSDP, accumulation, equal seeds.

What the document leaves open is supplied: a data set of 64 rows of 10 numbers, and, where the sample takes the
model's output for its loss, a model that returns one. S1 names torch.nn.Transformer(), whose forward takes two
sequences and returns no loss: a small module of that name stands in. S5's fp8 has a test of its own.
"""

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

SUPPLIED = """
set_seed(42)
dataset = torch.randn(64, 10)

class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(10, 2)
    def forward(self, batch):
        return (self.linear(batch).float() - 0.1).square().mean()  # a loss is best computed in float32

def plain(model, batches, *, window=1, epochs=1, loss_of=lambda output: output, build=torch.optim.Adam):
    'Weights after the same training in plain torch; a window is a list of batches of all ranks together.'
    optimizer = build(model.parameters())
    for _ in range(epochs):
        for first in range(0, len(batches), window):
            optimizer.zero_grad()
            some = batches[first:first + window]
            (sum(loss_of(model(batch)) for batch in some) / len(some)).backward()
            optimizer.step()
    return weights(model)

def weights(model):
    'Whole tensors, also where the model is sharded.'
    held = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return torch.cat([p.detach().reshape(-1) for p in held]).tolist()

def together(size):
    'The batches of all ranks in one step, each of `size` rows for a rank.'
    return list(dataset.split(size * accelerator.num_processes))
"""

S1 = """
import torch
from accelerate import Accelerator

accelerator = Accelerator()

model = torch.nn.Transformer()
optimizer = torch.optim.Adam(model.parameters())
dataloader = torch.utils.data.DataLoader(dataset)

model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

for batch in dataloader:
    optimizer.zero_grad()
    loss = model(batch)
    accelerator.backward(loss)
    optimizer.step()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_s1_the_four_line_conversion_trains_as_plain_torch_does(run_sample: Any, ranks: int) -> None:
    said = run_sample(
        S1,
        ranks=ranks,
        supplied=SUPPLIED
        + """
torch.nn.Transformer = Loss
torch.manual_seed(1)
""",
        checked="""
        torch.manual_seed(1)
        say(got=weights(model), expected=plain(Loss(), together(1)))
        """,
    )
    for rank in said:
        assert rank["got"] == pytest.approx(rank["expected"], abs=1e-6)
    assert all(rank["got"] == said[0]["got"] for rank in said)


S2 = """
# train.py
import torch
from accelerate import Accelerator  # +1

accelerator = Accelerator()  # +2

model = torch.nn.Linear(10, 2)
optimizer = torch.optim.Adam(model.parameters())
dataloader = torch.utils.data.DataLoader(dataset, batch_size=32)

model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)  # +3

for epoch in range(10):
    for batch in dataloader:
        # No .to('cuda') needed - automatic!
        optimizer.zero_grad()
        loss = model(batch).mean()
        accelerator.backward(loss)  # +4
        optimizer.step()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_s2_one_script_on_one_and_several_processes(run_sample: Any, ranks: int) -> None:
    said = run_sample(
        S2,
        ranks=ranks,
        supplied=SUPPLIED + "\ntorch.manual_seed(1)\n",
        checked="""
        torch.manual_seed(1)
        expected = plain(torch.nn.Linear(10, 2), together(32), epochs=10, loss_of=lambda output: output.mean())
        say(got=weights(model), expected=expected, device=str(batch.device), steps=optimizer.num_steps)
        """,
    )
    for rank in said:
        assert rank["got"] == pytest.approx(rank["expected"], abs=1e-5)
        assert rank["steps"] == 10 * 2 / ranks
        assert rank["device"] == "cpu"


S5 = """
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision={precision!r})

model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

# Everything else is automatic!
for batch in dataloader:
    with accelerator.autocast():  # Optional, done automatically
        loss = model(batch)
    accelerator.backward(loss)
"""


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_s5_mixed_precision_with_scaling_where_it_is_needed(run_sample: Any, precision: str) -> None:
    said = run_sample(
        S5.format(precision=precision),
        supplied=SUPPLIED
        + """
dataset = dataset / 10  # so that gradients times the first scale stay below fp16's largest number
model = Loss()
seen = []
model.linear.register_forward_hook(lambda module, inputs, output: seen.append(str(output.dtype)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataloader = torch.utils.data.DataLoader(dataset, batch_size=16)
import copy
twin = copy.deepcopy(model)
""",
        checked="""
        sum(twin(batch) for batch in together(16)).backward()
        optimizer.step()  # the sample shows no step; it unscales what has been gathered
        before = torch.cat([p.detach().reshape(-1) for p in twin.parameters()])
        change = (before - torch.tensor(weights(model))) / 0.1
        expected = torch.cat([p.grad.reshape(-1) for p in twin.parameters()])
        scale = None if accelerator.scaler is None else accelerator.scaler.get_scale()
        say(dtypes=sorted(set(seen)), parameters=str(next(model.parameters()).dtype), loss=str(loss.dtype),
            worst=(change - expected).abs().max().item(), scale=scale)
        """,
    )
    for rank in said:
        name = {"fp16": "torch.float16", "bf16": "torch.bfloat16"}[precision]
        assert name in rank["dtypes"]
        assert rank["parameters"] == rank["loss"] == "torch.float32"
        assert rank["scale"] == (65536.0 if precision == "fp16" else None)
        assert rank["worst"] < 0.05


S8 = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

fsdp_plugin = FullyShardedDataParallelPlugin(
    sharding_strategy="FULL_SHARD",  # ZeRO-3 equivalent
    auto_wrap_policy="TRANSFORMER_AUTO_WRAP",
    cpu_offload=False
)

accelerator = Accelerator(
    mixed_precision='bf16',
    fsdp_plugin=fsdp_plugin
)

model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
"""

TRANSFORMER = """
class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in "ab")
        self.head = nn.Linear(8, 1)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return (self.head(x) - 1).square().mean()

def train(model, optimizer, dataloader):
    losses = []
    for epoch in range(3):
        for batch in dataloader:
            optimizer.zero_grad()
            loss = model(batch)
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.reduce(loss.detach(), "mean").item())
    return losses
"""


def test_s8_fsdp_shards_the_transformers_layers(run_sample: Any) -> None:
    said = run_sample(
        S8,
        supplied=SUPPLIED
        + TRANSFORMER
        + """
model = Tiny()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
dataloader = torch.utils.data.DataLoader(torch.randn(16, 4, 8), batch_size=4)
whole = sum(p.numel() for p in model.parameters())
""",
        checked="""
        losses = train(model, optimizer, dataloader)
        from torch.distributed.fsdp import FSDPModule
        units = [type(module.__class__.__bases__[-1]).__name__ and name for name, module in model.named_modules()
                 if isinstance(module, FSDPModule)]
        held = sum(p.to_local().numel() for p in model.parameters())
        say(losses=losses, units=units, share=held / whole, kind=str(accelerator.distributed_type))
        """,
    )
    for rank in said:
        assert rank["units"] == ["", "blocks.0", "blocks.1"]
        assert 0.45 < rank["share"] < 0.55
        assert "FSDP" in rank["kind"]
        assert rank["losses"] == said[0]["losses"]
        assert rank["losses"][-1] < rank["losses"][0]


S9 = """
from accelerate import Accelerator

accelerator = Accelerator(gradient_accumulation_steps=4)

model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

for batch in dataloader:
    with accelerator.accumulate(model):  # Handles accumulation
        optimizer.zero_grad()
        loss = model(batch)
        accelerator.backward(loss)
        optimizer.step()
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_s9_accumulation_with_zero_grad_first(run_sample: Any, ranks: int) -> None:
    said = run_sample(
        S9,
        ranks=ranks,
        supplied=SUPPLIED
        + """
import copy
model = Loss()
twin = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters())
dataset = dataset[:40]
dataloader = torch.utils.data.DataLoader(dataset, batch_size=4)
""",
        checked="""
        say(got=weights(model), expected=plain(twin, together(4), window=4), steps=optimizer.num_steps)
        """,
    )
    for rank in said:
        assert rank["got"] == pytest.approx(rank["expected"], abs=1e-6)
        assert rank["steps"] == {1: 3, 2: 2}[ranks]


S11 = """
from accelerate.utils import set_seed
set_seed(42)
"""


def test_s11_the_same_seed_gives_fsdp_and_ddp_the_same_losses(run_sample: Any) -> None:
    said = run_sample(
        S11,
        supplied=SUPPLIED + TRANSFORMER,
        checked="""
        from runtime import FullyShardedDataParallelPlugin
        losses = {}
        for name, options in (("ddp", {}), ("fsdp", {"fsdp_plugin": FullyShardedDataParallelPlugin()})):
            set_seed(42)
            accelerator = Accelerator(cpu=True, **options)
            model = Tiny()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            dataloader = DataLoader(torch.randn(16, 4, 8), batch_size=4, shuffle=True)
            losses[name] = train(*accelerator.prepare(model, optimizer, dataloader))
        say(**losses)
        """,
    )
    for rank in said:
        assert rank["ddp"] == pytest.approx(rank["fsdp"], rel=1e-5)
        assert len(set(rank["ddp"])) == 6
