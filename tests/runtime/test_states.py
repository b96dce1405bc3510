"""The state objects of the Accelerate API, and what runs on some processes alone."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from runtime.accelerator import Accelerator
from runtime.accelerator_state import AcceleratorState
from runtime.errors import StateResetError, UsageError
from runtime.gradient_state import GradientState
from runtime.mesh import ParallelDims, ParallelismConfig, parallel_dims
from runtime.options import GradientAccumulationPlugin
from runtime.state import DistributedType, PartialState

pytestmark = pytest.mark.usefixtures("fresh_process")


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceleratorState, "_settled", None)
    monkeypatch.setattr(GradientState, "_newest", None)


def test_the_accelerators_settings_are_seen_without_it() -> None:
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    state = AcceleratorState()
    assert (state.mixed_precision, state.distributed_type) == ("bf16", DistributedType.NO)
    assert state.process_index == accelerator.process_index == 0
    with pytest.raises(UsageError, match="mixed_precision='fp16'"):
        AcceleratorState(mixed_precision="fp16")


def test_a_state_before_any_accelerator_is_the_launchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_MIXED_PRECISION", "fp16")
    assert AcceleratorState(cpu=True).mixed_precision == "fp16"


def test_after_a_reset_old_objects_say_so_and_new_ones_work() -> None:
    accelerator = Accelerator(cpu=True)
    AcceleratorState._reset_state()
    with pytest.raises(StateResetError, match="_reset_state"):
        accelerator.prepare(nn.Linear(1, 1))
    assert not hasattr(accelerator.state, "mixed_precision")
    PartialState._reset_state()
    with pytest.raises(AttributeError, match="make a new Accelerator or PartialState"):
        _ = accelerator.device
    again = Accelerator(cpu=True)
    again.prepare(nn.Linear(1, 1))


def test_the_gradient_state_shows_window_and_loader() -> None:
    assert GradientState(GradientAccumulationPlugin(num_steps=7)).num_steps == 7
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, loader = accelerator.prepare(nn.Linear(1, 1), DataLoader(torch.ones(3, 1), batch_size=1))
    seen = []
    for x in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(x).sum())
        state = GradientState()
        assert state.active_dataloader is loader
        assert state.dataloader_references == [None, loader]
        seen.append((state.sync_gradients, state.end_of_dataloader, state.remainder))
    assert seen == [(False, False, 0), (True, False, 0), (True, True, 0)]
    state = accelerator.gradient_state
    assert (state.active_dataloader, state.in_dataloader, state.end_of_dataloader) == (None, False, False)
    assert (state.remainder, state.num_steps, state.plugin_kwargs) == (-1, 2, {"num_steps": 2})


def test_decorators_take_a_function_or_give_a_decorator() -> None:
    accelerator = Accelerator(cpu=True)
    assert accelerator.on_process(lambda: 1, process_index=0)() == 1
    assert accelerator.on_process(process_index=1)(lambda: 1)() is None
    assert accelerator.on_local_process(local_process_index=0)(lambda: 1)() == 1
    assert accelerator.on_main_process()(lambda: 1)() == 1
    assert accelerator.on_local_main_process(lambda: 1)() == 1
    with pytest.raises(UsageError, match="process_index"):
        accelerator.on_process(lambda: 1)


def test_degrees_in_the_words_of_the_api() -> None:
    assert parallel_dims(ParallelismConfig()) == ParallelDims()
    assert parallel_dims(ParallelismConfig(dp_shard_size=2)) == ParallelDims(1, 2)
    assert parallel_dims(ParallelismConfig(dp_replicate_size=2, dp_shard_size=4)) == ParallelDims(2, 4)


@pytest.mark.multiprocess
def test_ranks_of_the_mesh_and_shared_generators(run_ranks: Any) -> None:
    script = """
    from runtime import ParallelismConfig, reduce, synchronize_rng_states, prepare_data_loader
    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
    accelerator = Accelerator(fsdp_plugin={"sharding_strategy": "HYBRID_SHARD"}, parallelism_config=config)
    ranks = [accelerator.data_parallel_rank, accelerator.data_parallel_shard_rank]
    mesh = list(accelerator.torch_device_mesh.mesh_dim_names)
    kind = [accelerator.distributed_type.value, accelerator.state.distributed_type.value, accelerator.multi_device]
    torch.manual_seed(accelerator.process_index)
    synchronize_rng_states(["torch"])
    drawn = torch.rand(1).item()
    other = Accelerator(rng_types=["torch"])
    torch.manual_seed(accelerator.process_index)
    for _ in other.prepare(DataLoader(torch.arange(4), batch_size=1)):
        drawn_in_loop = torch.rand(1).item()
    largest = reduce(torch.tensor([float(accelerator.process_index)]), "max").item()
    share = prepare_data_loader(DataLoader(range(8), batch_size=2), num_processes=2, process_index=1)
    alone = [batch.tolist() for batch in share]
    say(ranks=ranks, mesh=mesh, kind=kind, drawn=[drawn, drawn_in_loop], largest=largest, alone=alone)
    """
    said = run_ranks(script, ranks=4).said
    assert [one["ranks"] for one in said] == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert said[0]["mesh"] == ["data_replicate", "data_shard"]
    assert said[0]["kind"] == ["FSDP", "FSDP", False]
    assert len({tuple(one["drawn"]) for one in said}) == 1
    assert {one["largest"] for one in said} == {3.0}
    assert said[0]["alone"] == [[2, 3], [6, 7]]
