"""Using DeepSpeed: the document's sample, choosing it at launch, and what is refused with one clear sentence."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.multiprocess

SAMPLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader
from runtime import set_seed

set_seed(1)
model = nn.Linear(3, 1)
start = model.weight.detach().clone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataloader = DataLoader(torch.randn(24, 3), batch_size=2)

from runtime import Accelerator

accelerator = Accelerator(
    mixed_precision='bf16',
    deepspeed_plugin={
        "zero_stage": 2,  # ZeRO-2
        "offload_optimizer": False,
        "gradient_accumulation_steps": 4
    }
)

# Same code as before!
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

steps = []
for batch in dataloader:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    steps.append(optimizer.num_steps)
moved = not torch.equal(accelerator.unwrap_model(model).weight.detach().float(), start)
say(steps=steps, kind=str(accelerator.distributed_type), moved=moved, length=accelerator.gradient_accumulation_steps)
"""


def test_the_documents_sample_runs_as_written(run_ranks) -> None:
    ended = run_ranks(SAMPLE, environment={"FORERUN_DEVICE": "cpu"})
    for said in ended.said:
        assert said["steps"] == [0, 0, 0, 1, 1, 2]  # windows of four, the last one short
        assert said["moved"]
        assert said["kind"].endswith("DEEPSPEED")
        assert said["length"] == 4
    assert ended.output.strip() == ""  # DeepSpeed keeps silent


CHOSEN = """
accelerator = Accelerator(cpu=True)
model = nn.Linear(3, 1)
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(torch.randn(24, 3), batch_size=2)
)
norms = []
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).square().mean() * 100)
        before = accelerator.get_state_dict(model)
        optimizer.step()
        optimizer.zero_grad()
        after = accelerator.get_state_dict(model)
        norms.append(sum(float((after[n] - before[n]).square().sum()) for n in after) ** 0.5 / 0.1 if after else 0.0)
say(
    strategy=accelerator._prepared.strategy.name, stage=model.zero_optimization_stage(), steps=optimizer.num_steps,
    precision=accelerator.mixed_precision, offload=str(model.zero_offload_optimizer() is not None), norms=norms,
)
"""


def test_a_launch_chooses_it_and_the_script_stays_as_it_is(run_ranks, tmp_path: Path) -> None:
    launched = {"FORERUN_STRATEGY": "deepspeed", "FORERUN_ZERO_STAGE": "3", "FORERUN_GRADIENT_CLIPPING": "0.5"}
    said = run_ranks(CHOSEN, environment=launched).said[0]
    assert (said["strategy"], said["stage"], said["steps"], said["precision"]) == ("deepspeed", 3, 6, "no")
    assert said["norms"] == pytest.approx([0.5] * 6, rel=1e-3)  # each step is clipped
    file = tmp_path / "deepspeed_config.json"
    file.write_text(
        json.dumps(
            {
                "fp16": {"enabled": False},
                "bf16": {"enabled": True},
                "zero_optimization": {
                    "stage": 2,
                    "offload_optimizer": {"device": "cpu"},
                    "allgather_bucket_size": 5e8,
                    "reduce_bucket_size": 5e6,
                },
                "train_batch_size": 8,
                "train_micro_batch_size_per_gpu": 2,
            }
        )
    )
    launched = {"FORERUN_STRATEGY": "deepspeed", "FORERUN_DEEPSPEED_CONFIG_FILE": str(file)}
    said = run_ranks(CHOSEN, environment=launched).said[0]
    assert (said["strategy"], said["stage"], said["steps"], said["precision"]) == ("deepspeed", 2, 3, "bf16")
    assert said["offload"] == "True"


REFUSED = """
from runtime.errors import ForerunError

def refusal(function):
    try:
        function()
    except ForerunError as error:
        return f"{type(error).__name__}: {error}"
    return "none"

def make(**settings):
    return Accelerator(cpu=True, deepspeed_plugin={"zero_stage": 2, **settings})

def adam(*models):
    return torch.optim.AdamW([p for model in models for p in model.parameters()])

said = {}
accelerator = make()
model, other = nn.Linear(3, 3), nn.Linear(3, 3)
said["foreign"] = refusal(lambda: accelerator.prepare(model, adam(other)))
said["spans"] = refusal(lambda: accelerator.prepare(model, other, adam(model, other)))
said["two"] = refusal(lambda: accelerator.prepare(model, adam(model), adam(model)))
said["flat"] = refusal(lambda: accelerator.prepare(model, torch.optim.Adafactor(model.parameters())))
lonely = accelerator.prepare(nn.Linear(3, 3))
said["apart"] = refusal(lambda: accelerator.prepare(adam(lonely)))
scalar = nn.Module()
scalar.scale = nn.Parameter(torch.tensor(1.0))
said["scalar"] = refusal(lambda: accelerator.prepare(scalar, adam(scalar)))
double = nn.Linear(3, 3).double()
said["double"] = refusal(lambda: accelerator.prepare(double, adam(double)))
said["kept"] = all(p.grad is None and p.shape[0] == 3 for p in model.parameters())

model, optimizer = accelerator.prepare(model, adam(model))
parameters = list(model.parameters())
accelerator.backward(model(torch.ones(2, 3)).sum())
said["value"] = refusal(lambda: accelerator.clip_grad_value_(parameters, 1.0))
said["norm"] = refusal(lambda: accelerator.clip_grad_norm_(parameters, 1.0, norm_type=1))
said["some"] = refusal(lambda: accelerator.clip_grad_norm_(parameters[:1], 1.0))
said["closure"] = refusal(lambda: optimizer.step(lambda: 1.0))
said["join"] = refusal(lambda: accelerator.join_uneven_inputs([model]).__enter__())
said["select"] = refusal(lambda: accelerator.select_deepspeed_plugin("b"))
accelerator.clip_grad_norm_(parameters, 1.0)
accelerator.backward(model(torch.ones(2, 3)).sum())
said["order"] = refusal(optimizer.step)
optimizer.zero_grad(discard=True)

said["fp16"] = refusal(lambda: Accelerator(cpu=True, mixed_precision="fp16", deepspeed_plugin={"zero_stage": 1}))
said["key"] = refusal(lambda: make(zero_stge=1))
said["both"] = refusal(lambda: Accelerator(cpu=True, fsdp_plugin={}, deepspeed_plugin={}))
said["steps"] = refusal(
    lambda: Accelerator(cpu=True, gradient_accumulation_steps=2, deepspeed_plugin={"gradient_accumulation_steps": 4})
)
micro = make(train_micro_batch_size_per_gpu=2)
model = nn.Linear(3, 3)
said["batch"] = refusal(lambda: micro.prepare(model, adam(model), DataLoader(torch.ones(12, 3), batch_size=3)))
said["bad"] = refusal(
    lambda: make(train_batch_size=16, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=2)
)
auto = Accelerator(
    cpu=True, deepspeed_plugin={"train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto"}
)
auto.prepare(model, adam(model), DataLoader(torch.ones(12, 3), batch_size=3))
accelerator = Accelerator(cpu=True)
said["other"] = refusal(lambda: accelerator.select_deepspeed_plugin("b"))
say(**said)
"""


def test_wrong_use_is_refused_with_one_clear_sentence(run_ranks) -> None:
    expected = {
        "foreign": "2 of 2 parameters of AdamW belong to no model prepared with it",
        "spans": "AdamW spans several models",
        "two": "AdamW is a second optimizer of its model",
        "flat": "Adafactor under DeepSpeed: it looks at whole parameters",
        "apart": "belong to no model prepared with it",
        "scalar": "scale has no dimensions",
        "double": "weight is float64, bias is float64",
        "value": "clip_grad_value_ under DeepSpeed",
        "norm": "norm_type=1 under DeepSpeed",
        "some": "not those of one prepared model",
        "closure": "optimizer.step(closure) under DeepSpeed",
        "join": "join_uneven_inputs under DeepSpeed",
        "select": "no DeepSpeed plugin is called 'b'",
        "order": "backward() between clip_grad_norm_() and step()",
        "fp16": "mixed_precision='fp16' under strategy deepspeed",
        "key": "unknown key 'zero_stge' (did you mean zero_stage?)",
        "both": "deepspeed_plugin and fsdp_plugin together",
        "steps": "gradient_accumulation_steps=2, but 4 in deepspeed_plugin",
        "batch": "is 2 (train_micro_batch_size_per_gpu of deepspeed_plugin), but the loader's batch is 3",
        "bad": "16 != 2 x 2 x 2 = 8",
        "other": "this strategy has one set of options",
    }
    for said in run_ranks(REFUSED).said:
        assert said.pop("kept")
        assert sorted(said) == sorted(expected)
        for name, words in expected.items():
            assert words in said[name], said[name]
            assert "Next: " in said[name], said[name]
