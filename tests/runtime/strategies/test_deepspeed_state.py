"""ZeRO in checkpoints: whole tensors by name, from any stage and number of ranks to any other strategy, bit by bit."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.multiprocess

NET = """
from runtime.errors import ForerunError
CHECKPOINTS = HERE / "checkpoints"
CONFIGURATIONS = {
    "ddp": {},
    "fsdp2": dict(fsdp_plugin={}),
    "zero0": dict(deepspeed_plugin={"zero_stage": 0}),
    "zero1": dict(deepspeed_plugin={"zero_stage": 1}),
    "zero2": dict(deepspeed_plugin={"zero_stage": 2, "offload_optimizer": True}),
    "zero3": dict(deepspeed_plugin={"zero_stage": 3}),
    "zero3s": dict(
        deepspeed_plugin={"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "zero_stage": 3}
    ),
}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.three, self.five = nn.Parameter(torch.tensor([1.0, 2.0, 3.0])), nn.Parameter(torch.linspace(0, 1, 5))
        self.frozen = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]).bfloat16(), requires_grad=False)
        self.words, self.line, self.out = nn.Embedding(7, 5), nn.Linear(5, 5), nn.Linear(5, 7, bias=False)
        self.out.weight = self.words.weight  # tied
        self.same = nn.Parameter(self.three.detach().clone())  # equal values, not tied
        self.register_buffer("seen", torch.arange(3))
    def forward(self, x):
        x = torch.tanh(self.line(self.words(x)) + self.five)
        return self.out(x * self.three.sum() * self.same.sum() * self.frozen.float().sum() * 0.05)

def build(name, kind="AdamW"):
    accelerator = Accelerator(cpu=True, **CONFIGURATIONS[name])
    set_seed(3)
    model = Net()
    groups = [
        {"params": [model.line.weight, model.frozen, model.three], "lr": 0.02},
        {"params": [model.words.weight, model.five, model.line.bias, model.same]},
    ]
    optimizer = (
        torch.optim.AdamW(groups, lr=0.01) if kind == "AdamW" else torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return accelerator, *accelerator.prepare(model, optimizer, scheduler)

DATA = torch.randint(0, 7, (64,), generator=torch.Generator().manual_seed(1))

def train(accelerator, model, optimizer, scheduler, steps):
    losses, size = [], 12 // accelerator.num_processes
    for step in steps:
        start = step * 12 + accelerator.process_index * size
        x = DATA[start : start + size]
        loss = nn.functional.cross_entropy(model(x), (x + 1) % 7)
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(float(accelerator.reduce(loss.detach(), "mean")))
    return losses

def state_of(accelerator, model, optimizer):
    strategy = accelerator._prepared.strategy
    weights = accelerator.get_state_dict(model)
    states = strategy.optimizer_state_dict(optimizer.optimizer)
    flat = {
        str(place): {name: torch.as_tensor(value).flatten().tolist() for name, value in state.items()}
        for place, state in states.get("state", {}).items()
    }
    return [
        {name: [str(value.dtype), value.flatten().tolist(), list(value.shape)] for name, value in weights.items()},
        flat,
        [group["lr"] for group in states.get("param_groups", [])],
    ]
"""

SAVE = (
    NET
    + """
saved = {}
for name in SOURCES:
    for kind in ("AdamW", "SGD"):
        accelerator, *prepared = build(name, kind)
        train(accelerator, *prepared, range(3))
        accelerator.save_state(CHECKPOINTS / f"{name}_{kind}")
        state = state_of(accelerator, *prepared[:2])
        saved[f"{name}_{kind}"] = [state, train(accelerator, *prepared, range(3, 5))]
say(**saved)
"""
)

LOAD = (
    NET
    + """
loaded = {}
for source in SOURCES:
    for name in TARGETS:
        kind = "SGD" if name == "zero1" else "AdamW"
        accelerator, *prepared = build(name, kind)
        accelerator.load_state(CHECKPOINTS / f"{source}_{kind}")
        model = accelerator.unwrap_model(prepared[0])
        state = state_of(accelerator, *prepared[:2])
        losses = train(accelerator, *prepared, range(3, 5))
        loaded[f"{source}_{kind} {name}"] = [state, losses, model.out.weight is model.words.weight]
say(**loaded)
"""
)


def _check(saved: dict, loaded: dict, num: int) -> None:
    assert len(loaded) == num
    for key, (state, losses, tied) in loaded.items():
        before, expected = saved[key.split()[0]]
        assert state == before, key
        assert losses == pytest.approx(expected, rel=1e-6), key
        assert tied, key


def test_any_stage_and_number_of_ranks_to_any_strategy(run_ranks) -> None:
    sources = ["zero2", "zero3s", "ddp", "fsdp2"]
    saved = run_ranks(f"SOURCES = {sources}\n" + SAVE).said[0]
    weights, states, _ = saved["zero3s_AdamW"][0]
    assert weights["frozen"][0] == "torch.bfloat16"
    assert weights["frozen"][2] == [4]
    assert weights["out.weight"] == weights["words.weight"]
    assert states["0"]["step"] == [3.0]
    assert [saved[f"{name}_AdamW"][0] for name in sources] == [saved["ddp_AdamW"][0]] * 4
    targets = ["ddp", "fsdp2", "zero0", "zero1", "zero2", "zero3", "zero3s"]
    two = run_ranks(f"SOURCES, TARGETS = {['zero3s']}, {targets}\n" + LOAD).said[0]
    _check(saved, two, 7)
    three = run_ranks(f"SOURCES, TARGETS = {['zero2', 'fsdp2']}, {['zero1', 'zero3s', 'ddp']}\n" + LOAD, ranks=3)
    _check(saved, three.said[0], 6)
    one = run_ranks(f"SOURCES, TARGETS = {['zero3s', 'ddp']}, {['zero3', 'zero2']}\n" + LOAD, ranks=1).said[0]
    _check(saved, one, 4)


def test_what_cannot_be_carried_over_is_refused_and_changes_nothing(run_ranks) -> None:
    script = (
        NET
        + """
def refusal(function):
    try:
        function()
    except ForerunError as error:
        return f"{type(error).__name__}: {error}"
    return "none"

said = {}
accelerator, model, optimizer, scheduler = build("ddp")
train(accelerator, model, optimizer, scheduler, range(2))
inner = accelerator.unwrap_model(model)
optimizer.optimizer.state[inner.three]["step"] += 1
accelerator.save_state(CHECKPOINTS / "steps")
optimizer.optimizer.state[inner.three]["step"] -= 1
optimizer.optimizer.state[inner.line.weight]["exp_avg"] = torch.zeros(5, 1)
accelerator.save_state(CHECKPOINTS / "shape")
for name in ("zero1", "zero3s"):
    accelerator, model, optimizer, scheduler = build(name)
    train(accelerator, model, optimizer, scheduler, range(2))
    before = state_of(accelerator, model, optimizer)
    for what in ("steps", "shape"):
        said[f"{name} {what}"] = refusal(lambda: accelerator.load_state(CHECKPOINTS / what))
    said[f"{name} kept"] = state_of(accelerator, model, optimizer) == before
accelerator = Accelerator(cpu=True, deepspeed_plugin={"zero_stage": 2})
other = nn.Linear(5, 4)
step = torch.optim.AdamW(other.parameters())
other, step, _ = accelerator.prepare(other, step, torch.optim.lr_scheduler.LambdaLR(step, lambda k: 1.0))
said["model"] = refusal(lambda: accelerator.load_state(CHECKPOINTS / "steps"))
accelerator, model, optimizer, scheduler = build("zero2", "SGD")
said["kind"] = refusal(lambda: accelerator.load_state(CHECKPOINTS / "steps"))
say(**said)
"""
    )
    said = run_ranks(script).said[0]
    for name in ("zero1", "zero3s"):
        assert "exp_avg of parameter 0 has shape [5, 1], the parameter [5, 5]" in said[f"{name} shape"]
        assert "step of the optimizer's state differ between parameters 0 and 2" in said[f"{name} steps"]
    assert "is missing" in said["model"]
    assert "SGD" in said["kind"]
    assert "AdamW" in said["kind"]
    for name in ("zero1", "zero3s"):
        assert said[f"{name} kept"], name


RESUMED = (
    NET
    + """
import warnings

def prepare(stage, precision):
    accelerator = Accelerator(
        cpu=True, mixed_precision=precision, gradient_accumulation_steps=2, deepspeed_plugin={"zero_stage": stage}
    )
    set_seed(3)
    model = Net()
    return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.01))

def go_on(accelerator, model, optimizer, steps):
    losses = []
    for step in steps:
        x = (torch.arange(6) + step + accelerator.process_index) % 7
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), (x + 1) % 7)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses

same = []
for stage, precision in ((2, "no"), (2, "bf16"), (3, "bf16")):
    for start in (4, 5):  # between two windows, and inside of one
        run = prepare(stage, precision)
        go_on(*run, range(start))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = run[0].save_state(CHECKPOINTS / f"{stage}{precision}{start}")
        expected = go_on(*run, range(start, 8))
        run = prepare(stage, precision)
        run[0].load_state(path)
        same.append(go_on(*run, range(start, 8)) == expected)
accelerator = run[0]
accelerator.save_model(run[1], CHECKPOINTS / "weights")
try:
    if accelerator.is_main_process:
        accelerator.save_state(CHECKPOINTS / "alone")
    else:
        accelerator.gather(torch.ones(1))
    alone = ""
except ForerunError as error:
    alone = str(error)
say(same=same, alone=alone)
"""
)


def test_a_resumed_run_equals_the_uninterrupted_one_and_no_rank_saves_alone(run_ranks, tmp_path: Path) -> None:
    said = run_ranks(RESUMED).said
    for rank in said:
        assert rank["same"] == [True] * 6
        assert "rank 0 to save_state" in rank["alone"]
    assert "under strategy deepspeed every rank holds a part of the state" in said[0]["alone"]
    weights = load_file(tmp_path / "checkpoints" / "weights" / "model.safetensors")
    assert weights["frozen"].dtype is torch.bfloat16
    assert weights["words.weight"].dtype is torch.float32
    assert {name: tuple(value.shape) for name, value in weights.items() if name in ("three", "five", "same")} == {
        "three": (3,),
        "five": (5,),
        "same": (3,),
    }
