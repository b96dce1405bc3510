"""The plugin's settings: the document's spellings, others' spellings, and refusals that name the right one."""

from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, ShardingStrategy

from runtime.accelerator import Accelerator
from runtime.env import read_environment
from runtime.errors import ConfigurationError
from runtime.mesh import ParallelDims
from runtime.strategies.registry import choose_strategy
from runtime.strategies.sharding_options import FullyShardedDataParallelPlugin as Plugin
from runtime.strategies.sharding_options import as_plugin, settle


def _environment(world_size: int = 2, **words: str) -> Any:
    return read_environment({"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size), **words})


def test_the_documents_spelling_is_accepted() -> None:
    plugin = Plugin(sharding_strategy="FULL_SHARD", auto_wrap_policy="TRANSFORMER_AUTO_WRAP", cpu_offload=False)
    assert (plugin.sharding_strategy, plugin.reshard_after_forward) == ("FULL_SHARD", True)
    assert plugin.auto_wrap_policy == "TRANSFORMER_BASED_WRAP"
    assert plugin.cpu_offload is False


@pytest.mark.parametrize(
    ("word", "name", "reshards"),
    [
        ("shard_grad_op", "SHARD_GRAD_OP", False),
        (1, "FULL_SHARD", True),
        ("5", "HYBRID_SHARD_ZERO2", False),
        (ShardingStrategy.HYBRID_SHARD, "HYBRID_SHARD", True),
        (ShardingStrategy._HYBRID_SHARD_ZERO2, "HYBRID_SHARD_ZERO2", False),
        ("ShardingStrategy.FULL_SHARD", "FULL_SHARD", True),
        (None, "FULL_SHARD", True),
    ],
)
def test_a_strategy_has_several_spellings(word: Any, name: str, reshards: bool) -> None:
    plugin = Plugin(sharding_strategy=word)
    assert (plugin.sharding_strategy, plugin.reshard_after_forward) == (name, reshards)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sharding_stategy": "FULL_SHARD"}, ["'sharding_stategy'", "did you mean sharding_strategy"]),
        ({"cpu_ofload": True, "wibble": 1}, ["did you mean cpu_offload", "unknown key 'wibble'"]),
        ({"sharding_strategy": "FULL"}, ["'FULL'", "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD, HYBRID_SHARD_ZERO2"]),
        ({"sharding_strategy": "NO_SHARD"}, ["that is DDP"]),
        ({"auto_wrap_policy": "AUTO"}, ["'AUTO'", "TRANSFORMER_AUTO_WRAP, SIZE_BASED_WRAP, NO_WRAP"]),
        (
            {"sharding_strategy": "FULL_SHARD", "reshard_after_forward": False},
            ["FULL_SHARD with reshard_after_forward"],
        ),
        ({"cpu_offload": "yes please"}, ["cpu_offload='yes please'", "True, False"]),
        ({"min_num_params": 0}, ["min_num_params=0"]),
        ({"mixed_precision_policy": "fp8"}, ["'fp8'", "no, bf16, fp16"]),
        ({"activation_checkpointing": True, "auto_wrap_policy": None}, ["no module to checkpoint"]),
        ({"fsdp_version": 1}, ["FSDP1 is not in this version"]),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, ["whole tensors", "'FULL_STATE_DICT'"]),
        ({"use_orig_params": False, "ignored_modules": [1]}, ["always keeps", "shards all parameters"]),
    ],
)
def test_wrong_settings_are_all_named_with_what_is_right(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Plugin(**settings)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_settings_that_fsdp2_fulfils_anyway_are_accepted() -> None:
    Plugin(fsdp_version=2, use_orig_params=True, sync_module_states=True, backward_prefetch="BACKWARD_PRE")
    Plugin(mixed_precision_policy=MixedPrecisionPolicy(), state_dict_type="FULL_STATE_DICT", ignored_modules=None)


def test_a_dict_will_do_and_other_things_are_refused() -> None:
    assert as_plugin({"cpu_offload": True}).cpu_offload
    with pytest.raises(ConfigurationError, match="fsdp_plugin is a str"):
        as_plugin("FULL_SHARD")


def test_the_launch_chooses_by_its_variables_and_the_script_wins() -> None:
    words = {
        "FORERUN_STRATEGY": "fsdp",
        "FORERUN_FSDP_VERSION": "2",
        "FORERUN_FSDP_OFFLOAD_PARAMS": "true",
        "FORERUN_FSDP_RESHARD_AFTER_FORWARD": "SHARD_GRAD_OP",
        "FORERUN_FSDP_AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "FORERUN_FSDP_MIN_NUM_PARAMS": "7",
        "FORERUN_FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP": "A, B",
    }
    chosen = choose_strategy(_environment(**words), {"fsdp_plugin": None})
    plugin = chosen.options.plugin
    assert chosen.name == "fsdp2"
    assert (plugin.cpu_offload, plugin.sharding_strategy, plugin.min_num_params) == (True, "SHARD_GRAD_OP", 7)
    assert plugin.auto_wrap_policy == "SIZE_BASED_WRAP"
    assert plugin.transformer_cls_names_to_wrap == ("A", "B")
    given = choose_strategy(_environment(**words), {"fsdp_plugin": Plugin()})
    assert not given.options.plugin.cpu_offload
    assert choose_strategy(_environment(), {"fsdp_plugin": None}).name == "ddp"
    with pytest.raises(ConfigurationError, match="FORERUN_STRATEGY='zero'"):
        choose_strategy(_environment(FORERUN_STRATEGY="zero"), {"fsdp_plugin": None})
    with pytest.raises(ConfigurationError, match="unknown key 'ofload_params'"):
        choose_strategy(_environment(FORERUN_STRATEGY="fsdp", FORERUN_FSDP_OFLOAD_PARAMS="true"), {})


def test_replicas_and_shards_must_fit_the_strategy_and_the_processes() -> None:
    hybrid = Plugin(sharding_strategy="HYBRID_SHARD")
    assert settle(hybrid, _environment(4), ParallelDims(2, 2)).dims == ParallelDims(2, 2)
    two_machines = read_environment({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"})
    assert settle(hybrid, two_machines, None).dims == ParallelDims(2, 4)
    for plugin, dims, word in (
        (hybrid, None, "1 replica"),
        (hybrid, ParallelDims(1, 4), "1 replica"),
        (Plugin(), ParallelDims(2, 2), "2 replica"),
        (Plugin(), ParallelDims(1, 3), "is not the world size 4"),
        (Plugin(), ParallelDims(1, 2, tensor=2), "tensor: this version has no backend"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            settle(plugin, _environment(4), dims)
        assert word in str(refused.value)
    with pytest.raises(ConfigurationError, match="parallelism_config with data_shard under strategy ddp"):
        choose_strategy(_environment(4), {}, dims=ParallelDims(data_shard=2))


def test_one_process_runs_the_same_script(fresh_process: None) -> None:
    accelerator = Accelerator(cpu=True, fsdp_plugin={"sharding_strategy": "HYBRID_SHARD"})
    assert accelerator.distributed_type == "FSDP"
    assert isinstance(accelerator.unwrap_model(accelerator.prepare(nn.Linear(2, 2))), nn.Linear)
