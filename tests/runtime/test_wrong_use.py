"""Using the Accelerator in an order that cannot work: one sentence, before anything is lost."""

from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError, UsageError


def test_backward_before_prepare(fresh_process: None) -> None:
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    with pytest.raises(UsageError, match=r"backward\(\) before prepare\(\)"):
        accelerator.backward(model(torch.ones(1, 1)).sum())
    assert model.weight.grad is None
    model = accelerator.prepare(model)
    accelerator.backward(model(torch.ones(1, 1)).sum())
    assert model.weight.grad is not None


@pytest.mark.multiprocess
def test_an_optimizer_over_foreign_parameters(run_ranks: Any) -> None:
    script = """
    from runtime.errors import UsageError
    accelerator = Accelerator()
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    other.bias.requires_grad_(False)
    optimizer = torch.optim.SGD([*model.parameters(), *other.parameters()], lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    before = other.weight.item()
    accelerator.backward((model(torch.ones(1, 1)) + other(torch.ones(1, 1))).sum())
    try:
        optimizer.step()
    except UsageError as error:
        words = str(error)
    say(words=words, unchanged=other.weight.item() == before)
    """
    for said in run_ranks(script).said:
        assert "1 of 3 parameters of SGD belong to no prepared model" in said["words"]
        assert said["unchanged"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"fsdp_plugin": {"sharding": "FULL_SHARD"}}, "sharding"),
        ({"deepspeed_plugin": {"zero_stge": 2}}, "zero_stge"),
        ({"rng_types": ["torsh"]}, "torsh"),
        ({"dynamo_backend": "inductr"}, "inductr"),
        ({"parallelism_config": 4}, "parallelism_config=4"),
        ({"comm": 1}, "no argument comm"),
    ],
)
def test_unknown_keys_are_named(settings: dict[str, Any], words: str, fresh_process: None) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Accelerator(cpu=True, **settings)


def test_axes_and_hooks_of_later_versions_are_refused_by_name() -> None:
    from runtime import DistributedDataParallelKwargs, ParallelismConfig

    with pytest.raises(ConfigurationError, match="tp_size=2: this version has no tensor"):
        ParallelismConfig(tp_size=2)
    with pytest.raises(ConfigurationError, match=r"comm_hook=fp16.*this version does not have"):
        DistributedDataParallelKwargs(comm_hook="fp16")


def test_a_pickled_accelerator_has_the_same_settings_and_nothing_prepared(fresh_process: None) -> None:
    import pickle

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3, mixed_precision="bf16")
    accelerator.prepare(nn.Linear(1, 1))
    other = pickle.loads(pickle.dumps(accelerator))
    assert (other.gradient_accumulation_steps, other.mixed_precision) == (3, "bf16")
    assert [part.name for part in other._prepared.parts()] == ["progress", "window"]
