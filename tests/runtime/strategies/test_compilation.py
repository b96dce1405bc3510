"""torch.compile as a pass: forwards are compiled, names, state and hooks stay."""

from typing import Any

import pytest
import torch
from torch import nn

from runtime.accelerator import Accelerator
from runtime.errors import ConfigurationError
from runtime.strategies.compilation import Compilation, TorchDynamoPlugin, settle_compilation


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module.forward, "_torchdynamo_orig_callable")


# torch's tracer looks at .grad of every tensor, and warns of its own looking.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("regional", [False, True])
def test_a_compiled_model_computes_the_same_under_the_same_names(regional: bool, fresh_process: None) -> None:
    plugin = TorchDynamoPlugin(backend="eager", use_regional_compilation=regional)
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin)
    model, x = Layered(), torch.randn(3, 2)
    names, expected = list(model.state_dict()), model(x)
    prepared = accelerator.prepare(model)
    assert _is_compiled(prepared) != regional
    assert all(_is_compiled(layer) == regional for layer in prepared.layers)
    assert torch.equal(prepared(x), expected)
    assert list(prepared.state_dict()) == names
    assert _is_compiled(accelerator.unwrap_model(prepared)) != regional
    plain = accelerator.unwrap_model(prepared, keep_torch_compile=False)
    assert not any(map(_is_compiled, plain.modules()))
    assert torch.equal(plain(x), expected)


def test_nothing_is_compiled_where_nothing_is_asked_for() -> None:
    for plugin, backend in ((None, None), (None, "no"), (TorchDynamoPlugin(), None), (None, "NO")):
        assert settle_compilation(plugin, backend) is None
    assert settle_compilation(TorchDynamoPlugin("inductor", disable=True), None) is None
    assert isinstance(settle_compilation(None, "INDUCTOR"), Compilation)


def test_unknown_backends_and_two_answers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"no backend 'inductr' here.*inductor"):
        settle_compilation(None, "inductr")
    with pytest.raises(ConfigurationError, match="and a dynamo_plugin"):
        settle_compilation(TorchDynamoPlugin("eager"), "eager")


@pytest.mark.multiprocess
def test_compiled_training_equals_plain_training_under_ddp_and_fsdp2(run_ranks: Any) -> None:
    script = """
    import warnings
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
    import tests.runtime.strategies.test_compilation as here
    def train(**settings):
        accelerator = Accelerator(**settings)
        set_seed(0)
        model = here.Layered()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer = accelerator.prepare(model, optimizer)
        compiled = [name for name, m in accelerator.unwrap_model(model).named_modules() if here._is_compiled(m)]
        losses = []
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 2) * (accelerator.process_index + 1)).square().sum()
            accelerator.backward(loss)
            optimizer.step()
            losses.append(accelerator.gather(loss.detach()).tolist())
        return compiled, losses
    got = {}
    for name, settings in (("ddp", {}), ("fsdp2", {"fsdp_plugin": {}})):
        plain, compiled = train(**settings), train(dynamo_backend="eager", **settings)
        got[name] = [compiled[0], plain[0], torch.allclose(torch.tensor(plain[1]), torch.tensor(compiled[1]))]
    accelerator = Accelerator(fsdp_plugin={}, dynamo_backend="eager")
    say(**got, without_units=here._is_compiled(accelerator.prepare(nn.Linear(2, 2))))
    """
    for said in run_ranks(script).said:
        assert said["ddp"] == [[""], [], True]
        assert said["fsdp2"] == [["layers.0", "layers.1"], [], True]
        assert said["without_units"]
