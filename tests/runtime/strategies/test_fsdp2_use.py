"""What FSDP2 does beside arithmetic: precision, passes, meta-device models, wrong use. One job shows all."""

import pytest

pytestmark = pytest.mark.multiprocess

SCRIPT = """
from runtime import FullyShardedDataParallelPlugin as Plugin, ParallelDims
from runtime.errors import ForerunError
from runtime.strategies.base import StrategyContext
from runtime.strategies.passes import Place
from runtime.strategies.registry import get_strategy
from runtime.strategies.sharding_options import ShardingOptions

found = {}

class Block(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.line = nn.Linear(width, width)
    def forward(self, x):
        found.setdefault("inside", str(self.line.weight.dtype))
        return x + self.line(self.norm(x))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.last = nn.Linear(4, 3)
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)

def whole(model):
    return torch.cat([p.detach().full_tensor().float().reshape(-1) for p in model.parameters()])

def refusal(function):
    try:
        function()
    except ForerunError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"

# bf16: computed in bf16, kept, reduced and returned in float32.
accelerator = Accelerator(cpu=True, mixed_precision="bf16", fsdp_plugin={"sharding_strategy": "FULL_SHARD"})
rank = accelerator.process_index
set_seed(3)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
output = model(torch.ones(2, 4))
accelerator.backward(output.square().mean())
found["output"] = str(output.dtype)
found["kept"] = sorted({str(p.dtype) for p in model.parameters()})
found["gradients"] = sorted({str(p.grad.dtype) for p in model.parameters()})

# Wrong use.
alone = Net()
late = torch.optim.SGD(alone.parameters(), lr=0.1)
sharded = accelerator.prepare(alone)
found["late"] = refusal(lambda: accelerator.prepare(late))
found["over_prepared"] = refusal(lambda: accelerator.prepare(torch.optim.SGD(sharded.parameters(), lr=0.1)))
early = torch.optim.SGD(Net().parameters(), lr=0.1)
found["early"] = refusal(lambda: accelerator.prepare_optimizer(early))
found["join"] = refusal(lambda: accelerator.join_uneven_inputs([sharded]).__enter__())
found["different"] = refusal(lambda: accelerator.prepare(nn.Linear(2, 3 + rank)))
found["names"] = refusal(
    lambda: Accelerator(cpu=True, fsdp_plugin=Plugin(transformer_cls_names_to_wrap="Bloc")).prepare(Net())
)

# An optimizer that has stepped before keeps its state.
used = nn.Linear(4, 4)
stepped = torch.optim.AdamW(used.parameters(), lr=0.1)
used(torch.ones(1, 4)).sum().backward()
stepped.step()
moment = stepped.state[used.weight]["exp_avg"].clone()
used, prepared = accelerator.prepare(used, stepped)
found["moment"] = bool(torch.equal(stepped.state[used.weight]["exp_avg"].full_tensor(), moment))

# Gradients that no_sync left on their rank are cleared too.
with accelerator.no_sync(sharded):
    accelerator.backward(sharded(torch.ones(1, 4)).sum())
held = accelerator._prepared.strategy.local_gradients(list(sharded.parameters()))
optimizer_of_it = accelerator.prepare(torch.optim.SGD(sharded.parameters(), lr=0.1))
optimizer_of_it.zero_grad()
left = accelerator._prepared.strategy.local_gradients(list(sharded.parameters()))
found["held"] = [len(held) > 0, len(left)]

# fp16: an overflow in one rank's batch stops the step on both.
half = Accelerator(cpu=True, mixed_precision="fp16", fsdp_plugin=Plugin())
small = nn.Linear(2, 2)
steps = torch.optim.SGD(small.parameters(), lr=0.1)
small, steps = half.prepare(small, steps)
before = whole(small)
half.backward(small(torch.ones(1, 2)).sum() * (float("inf") if rank else 1.0))
steps.step()
found["overflow"] = [half.optimizer_step_was_skipped, bool(torch.equal(before, whole(small)))]
steps.zero_grad()
half.backward(small(torch.ones(1, 2)).sum())
steps.step()
found["after_overflow"] = [half.optimizer_step_was_skipped, bool(torch.equal(before, whole(small)))]

# Models on the meta device: on all ranks, and on all but rank 0.
with torch.device("meta"):
    empty = Net()
optimizer = torch.optim.AdamW(empty.parameters(), lr=0.1)
full = Accelerator(cpu=True, fsdp_plugin=Plugin())
built, optimizer = full.prepare(empty, optimizer)
values = built.layers[1].line.weight.detach().full_tensor()
found["built"] = [bool(values.abs().sum() > 0), built.layers[0].norm.weight.detach().full_tensor().tolist()]
full.backward(built(torch.ones(2, 4)).square().mean())
optimizer.step()
found["stepped"] = bool((built.layers[1].line.weight.detach().full_tensor() != values).any())
loaded = Net()
given = torch.cat([p.detach().reshape(-1) for p in loaded.parameters()])
torch.distributed.broadcast(given, src=0)
if rank:
    with torch.device("meta"):
        loaded = Net()
found["from_first"] = bool(torch.equal(whole(full.prepare(loaded)), given))

class Stubborn(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
with torch.device("meta"):
    stubborn = nn.Sequential(nn.Linear(3, 3), Stubborn())
found["stubborn"] = refusal(lambda: full.prepare(stubborn))
with torch.device("meta"):
    stubborn = nn.Sequential(Stubborn())
own = Plugin(param_init_fn=lambda module: nn.init.constant_(module.scale, 7.0))
found["own_init"] = whole(Accelerator(cpu=True, fsdp_plugin=own).prepare(stubborn)).tolist()

# A toy pass on each layer, composed with sharding: training is the same, and the wrapper is really there.
class Doubled(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        return 2 * self.inner(x)

class Toy:
    place = Place.TENSOR
    def apply(self, unit, mesh):
        assert mesh.size() == 2
        return Doubled(unit)

torch.manual_seed(5)
plain, toy = Net(), Net()
toy.load_state_dict(plain.state_dict())
options = ShardingOptions(Plugin(activation_checkpointing=True), ParallelDims(1, 2))
strategy = get_strategy("fsdp2", StrategyContext(torch.device("cpu"), 2, options, passes=(Toy(),)))
toy_optimizer = torch.optim.SGD(toy.parameters(), lr=0.1)
toy = strategy.prepare_model(toy)
strategy.prepare_optimizer(toy_optimizer)
plain.layers = nn.ModuleList(Doubled(layer) for layer in plain.layers)
plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
x = torch.randn(6, 4)
for step in range(3):
    own = x[rank * 3:rank * 3 + 3]
    strategy.train_step(own, forward=lambda b: toy(b).square().mean(), backward=lambda loss: loss.backward())
    norm = strategy.clip_grad_norm(toy.parameters(), max_norm=1.0, norm_type=2.0)
    toy_optimizer.step()
    toy_optimizer.zero_grad()
    plain(x).square().mean().backward()
    plain_norm = nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    plain_optimizer.step()
    plain_optimizer.zero_grad()
expected = torch.cat([p.detach().reshape(-1) for p in plain.parameters()])
found["toy"] = dict(
    drift=float((whole(toy) - expected).abs().max()),
    norm=float(norm) / float(plain_norm),
    kinds=[type(layer).__name__ for layer in toy.layers],
    calls=[layer.calls for layer in toy.layers],
    names=sorted(strategy.state_dict(toy)) == ([] if rank else sorted(plain.state_dict())),
)
say(**found)
"""


def test_precision_wrong_use_meta_models_and_a_pass(run_ranks) -> None:
    for found in run_ranks(SCRIPT).said:
        assert found["inside"] == "torch.bfloat16"
        assert found["kept"] == found["gradients"] == ["torch.float32"]
        assert found["output"] == "torch.float32"

        for name in ("late", "early"):
            assert found[name].startswith("UsageError: 10 of 10 parameters of SGD belong to no model prepared with it")
            assert "model, optimizer = accelerator.prepare(model, optimizer)" in found[name]
        assert found["over_prepared"] == "nothing"
        assert found["join"].startswith("UsageError: join_uneven_inputs under FSDP2")
        assert (
            "weight is ([3, 2], 'torch.float32') on rank 0, ([4, 2], 'torch.float32') on rank 1" in found["different"]
        )
        assert "the model has no Bloc. Allowed: Block, LayerNorm, Linear, ModuleList, Net" in found["names"]

        assert found["moment"]
        assert found["held"] == [True, 0]
        assert found["overflow"] == [True, True]
        assert found["after_overflow"] == [False, False]

        assert found["built"] == [True, [1.0] * 4]
        assert found["stepped"]
        assert found["from_first"]
        assert "without reset_parameters(): 1 (Stubborn)" in found["stubborn"]
        assert found["own_init"] == [7.0] * 3

        assert found["toy"]["drift"] < 1e-6
        assert found["toy"]["norm"] == pytest.approx(1.0, rel=1e-5)
        assert found["toy"]["kinds"] == ["FSDPDoubled"] * 2
        assert found["toy"]["calls"] == [6, 6]  # three steps, and activations computed again
        assert found["toy"]["names"]
