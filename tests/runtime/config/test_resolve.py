"""Argument > command line > environment > file > default, and what cannot hold together."""

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from runtime.config.choices import Choices, choose, dims_of
from runtime.config.loader import load
from runtime.config.resolve import Resolved, from_arguments, from_command_line, from_environment, resolve
from runtime.errors import ConfigurationError

Write = Callable[..., Path]


def _resolved(
    write: Write, *, cli: dict[str, str] | None = None, env: dict[str, str] | None = None, file: str = ""
) -> Resolved:
    sources = [from_command_line(cli or {}), from_environment(env or {})]
    return resolve(sources, load(write(file)) if file else None)


def _choices(write: Write, **sources: Any) -> Choices:
    return choose(_resolved(write, **sources))


@pytest.mark.parametrize("given", [set(c) for n in range(5) for c in combinations(range(4), n)])
def test_the_strongest_source_decides_and_the_others_are_remembered(given: set[int], write: Write) -> None:
    """Every subset of the four sources."""
    texts = ("2", "3", "4", "5")
    names = ("argument", "command line", "environment", "file")
    places = ("num_processes=", "--num-processes", "FORERUN_NUM_PROCESSES", "config.yaml:2")
    sources = [
        from_arguments({"num_processes": 2} if 0 in given else {}),
        from_command_line({"num_processes": texts[1]} if 1 in given else {}),
        from_environment({"FORERUN_NUM_PROCESSES": texts[2]} if 2 in given else {}),
    ]
    file = load(write("num_machines: 1\n" + ("num_processes: 5\n" if 3 in given else "")))
    value = resolve(sources, file)["num_processes"]
    order = sorted(given)
    if not order:
        assert (value.value, value.origin, value.place) == (None, "default", "")
        return
    assert (value.value, value.origin) == (int(texts[order[0]]), names[order[0]])
    assert value.place.endswith(places[order[0]])
    assert [given.value for given in value.overruled] == [int(texts[index]) for index in order[1:]]


def test_the_same_value_from_two_sources_overrules_nothing(write: Write) -> None:
    resolved = _resolved(write, cli={"num_processes": "2"}, file="num_processes: 2\n")
    assert resolved["num_processes"].overruled == ()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("FORERUN_NUM_PROCESES", "did you mean FORERUN_NUM_PROCESSES?"),
        ("FORERUN_MIXED_PRECISON", "did you mean FORERUN_MIXED_PRECISION?"),
        ("FORERUN_GPU_ID", "did you mean FORERUN_GPU_IDS?"),
    ],
)
def test_a_misspelt_variable_is_an_error(name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is no variable of forerun") as refused:
        from_environment({name: "1"})
    assert said in str(refused.value)


def test_variables_of_others_are_left_alone() -> None:
    ours = ("STATE_DIR", "KEYS_DIR", "DATABASE_URL", "RUN", "RUN_DIR", "SMOKE_STEPS", "NO_SKIPS", "HTTP_TOKEN")
    others = {f"FORERUN_{name}": "x" for name in ours}
    assert from_environment({**others, "NUM_PROCESSES": "x", "forerun_cpu": "x"}).values == {}


def test_unknown_and_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigurationError) as refused:
        from_arguments({"num_proceses": 2, "mixed_precision": True, "cpu": "maybe"})
    for word in ("num_proceses, did you mean num_processes?", "mixed_precision= 'true'", "cpu= 'maybe'"):
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("sources", "both"),
    [
        ({"cli": {"cpu": "true", "multi_gpu": "true"}}, ("cpu true (--cpu)", "multi_gpu true (--multi-gpu)")),
        ({"cli": {"cpu": "1", "device": "cuda"}}, ("cpu true (--cpu)", "device cuda (--device)")),
        ({"cli": {"use_fsdp": "1", "use_deepspeed": "1"}}, ("use_deepspeed true", "use_fsdp true")),
        ({"file": "use_cpu: true\ndistributed_type: MULTI_GPU\n"}, ("cpu true", "config.yaml:1", "config.yaml:2")),
        ({"file": "fp16: true\nmixed_precision: bf16\n"}, ("mixed_precision bf16", "fp16 true", "config.yaml:1")),
        (
            {"cli": {"num_processes": "2"}, "file": "distributed_type: NO\n"},
            ("num_processes 2 (--num-processes)", "distributed_type NO", "config.yaml:1"),
        ),
        (
            {"env": {"FORERUN_MACHINE_RANK": "1"}, "file": "num_machines: 1\n"},
            ("machine_rank 1 (FORERUN_MACHINE_RANK)", "num_machines 1", "config.yaml:1"),
        ),
        (
            {"cli": {"num_processes": "3"}, "file": "num_machines: 2\n"},
            ("num_processes 3 (--num-processes)", "num_machines 2"),
        ),
        (
            {"cli": {"cpu": "true"}, "file": "gpu_ids: 0,1\n"},
            ("cpu true (--cpu)", "gpu_ids 0,1", "config.yaml:1"),
        ),
        ({"cli": {"multi_gpu": "true", "num_processes": "1"}}, ("num_processes 1", "multi_gpu true")),
    ],
)
def test_two_that_cannot_both_hold_are_named_with_their_places(
    sources: dict[str, Any], both: tuple[str, ...], write: Write
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        _choices(write, **sources)
    for word in both:
        assert word in str(refused.value)


def test_a_stronger_source_settles_what_a_weaker_one_says_otherwise(write: Write) -> None:
    choices = _choices(write, cli={"cpu": "true"}, file="distributed_type: MULTI_GPU\nnum_processes: 2\n")
    assert (choices.device, choices.strategy, choices.num_processes) == ("cpu", "", 2)
    assert choices.overruled[0].startswith("distributed_type MULTI_GPU (")
    assert choices.overruled[0].endswith("gives way to cpu true (--cpu)")


def test_multi_gpu_on_the_command_line_is_stronger_than_a_file_for_one_process(write: Write) -> None:
    choices = _choices(write, cli={"multi_gpu": "true", "num_processes": "8"}, file="distributed_type: NO\n")
    assert (choices.device, choices.strategy, choices.num_processes) == ("cuda", "", 8)


def test_a_false_flag_claims_nothing(write: Write) -> None:
    choices = _choices(write, cli={"cpu": "false"}, file="distributed_type: MULTI_CPU\nuse_deepspeed: false\n")
    assert (choices.device, choices.strategy) == ("cpu", "")


@pytest.mark.parametrize(
    ("kind", "device", "strategy", "refused"),
    [
        ("NO", "", "single", ""),
        ("MULTI_CPU", "cpu", "", ""),
        ("MULTI_GPU", "cuda", "", ""),
        ("XLA", "xla", "", ""),
        ("DEEPSPEED", "", "deepspeed", ""),
        ("FSDP", "", "fsdp", ""),
        ("MEGATRON_LM", "", "megatron_lm", "strategy megatron_lm"),
        ("MULTI_NPU", "npu", "", "no device kind of this version"),
    ],
)
def test_each_distributed_type_means_a_device_and_a_strategy(
    kind: str, device: str, strategy: str, refused: str, write: Write
) -> None:
    choices = _choices(write, file=f"distributed_type: {kind}\n")
    assert (choices.device, choices.strategy) == (device, strategy)
    assert refused in "; ".join(choices.unavailable)
    assert bool(choices.unavailable) is bool(refused)


def test_what_is_not_built_is_refused_with_what_to_do(write: Write) -> None:
    file = "compute_environment: SLURM\nmixed_precision: fp8\n"
    file += "dynamo_backend: inductor\ntpu_use_sudo: yes\n"
    said = "; ".join(_choices(write, file=file, cli={"enable_cpu_affinity": "on"}).unavailable)
    for word in (
        "compute_environment SLURM",
        "mixed_precision fp8",
        "call torch.compile",
        "enable_cpu_affinity true",
        "TPU pods",
    ):
        assert word in said
    assert (
        _choices(
            write, file="num_machines: 1\nenable_cpu_affinity: no\ndynamo_backend: no\ntpu_use_sudo: no\n"
        ).unavailable
        == ()
    )


def test_a_deepspeed_json_is_recognised_and_its_numbers_checked(files: Path) -> None:
    """S7 and C23: the same verdict in a dry run and at a launch, before anything starts."""

    def batches(name: str, ranks: str) -> Any:
        return choose(resolve([from_command_line({"num_processes": ranks})], load(files / name))).batches

    with pytest.raises(ConfigurationError) as refused:
        batches("ds_bad.json", "2")
    for word in ("16 != 2 x 2 x 2 = 8", "ds_bad.json (train_batch_size)", "--num-processes"):
        assert word in str(refused.value)
    assert batches("ds_bad.json", "4").formula == "16 = 2 x 2 x 4"
    assert batches("ds_part.json", "2").derived == ("accumulation 2 = 8 / (2 x 2)",)
    choices = choose(resolve([], load(files / "ds_auto.json")))
    assert choices.strategy == "deepspeed"
    assert choices.unavailable == ()
    assert choices.variables == {
        "FORERUN_STRATEGY": "deepspeed",
        "FORERUN_DEEPSPEED_CONFIG_FILE": str(files / "ds_auto.json"),
        "FORERUN_GRADIENT_ACCUMULATION_STEPS": "4",
    }


@pytest.mark.parametrize("text", ['{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}'])
def test_what_is_said_beside_a_deepspeed_json_must_agree_with_it(text: str, write: Write) -> None:
    path = write(text, "ds.json")
    for name, value in (("mixed_precision", "fp16"), ("zero_stage", "3")):
        with pytest.raises(ConfigurationError) as refused:
            choose(resolve([from_command_line({name: value})], load(path)))
        assert f"{name} {value} (--{name.replace('_', '-')})" in str(refused.value)
        assert "ds.json (" in str(refused.value)
    agreed = choose(resolve([from_command_line({"mixed_precision": "bf16", "zero_stage": "2"})], load(path)))
    assert agreed.precision == "bf16"
    main = write(f"distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: {path.name}\n")
    assert choose(resolve([], load(main))).precision == "bf16"
    other = write('{"fp16": {"enabled": true}}', "other.json")
    with pytest.raises(ConfigurationError, match="two DeepSpeed configurations"):
        choose(resolve([from_command_line({"deepspeed_config_file": str(other)})], load(path)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"zero_optimisation": {}, "bf16": {}}', "unknown key zero_optimisation, did you mean zero_optimization?"),
        (
            '{"zero_optimization": {"stge": 2}}',
            "unknown key zero_optimization.stge, did you mean zero_optimization.stage?",
        ),
        (
            '{"zero_optimization": {"stage": 4}}',
            "zero_optimization.stage is '4', allowed: a whole number from 0 to 3, or auto",
        ),
        ('{"zero_optimization": {"offload_optimizer": {"device": "gpu"}}}', "offload_optimizer.device is 'gpu'"),
        ('{"train_batch_size": "sixteen"}', "train_batch_size is 'sixteen'"),
        ('{"fp16": {"enabled": true}, "bf16": {"enabled": "True"}}', "fp16 and bf16 are both enabled"),
        ('{"zero_optimization": [2]}', "zero_optimization is no mapping"),
    ],
)
def test_a_wrong_deepspeed_json_is_refused_by_name(text: str, said: str, write: Write) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(write(text, "ds.json"))
    assert said in str(refused.value)


def test_the_documents_deepspeed_json_is_read(write: Write) -> None:
    read = load(
        write(
            '{"fp16": {"enabled": false}, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2, '
            '"offload_optimizer": {"device": "cpu"}, "allgather_bucket_size": 5e8, "reduce_bucket_size": 5e8}}',
            "deepspeed_config.json",
        )
    )
    assert read.form == "deepspeed"
    assert {name: given.value for name, given in read.values.items()} == {
        "strategy": "deepspeed",
        "mixed_precision": "bf16",
        "zero_stage": 2,
    }


def test_workers_are_told_of_deepspeeds_settings(write: Write) -> None:
    told = _choices(write, file="", cli={"use_deepspeed": "1", "zero_stage": "3", "offload_param_device": "cpu"})
    assert told.variables == {
        "FORERUN_STRATEGY": "deepspeed",
        "FORERUN_ZERO_STAGE": "3",
        "FORERUN_OFFLOAD_PARAM_DEVICE": "cpu",
    }
    refused = _choices(write, file="", cli={"use_deepspeed": "1", "zero3_init_flag": "1"}).unavailable
    assert refused == (
        "zero3_init_flag true (--zero3-init-flag): the model is sharded when it is prepared: leave it out",
    )


def test_workers_are_told_of_the_strategy_and_its_settings(write: Write) -> None:
    file = "distributed_type: FSDP\nfsdp_config:\n  fsdp_offload_params: false\n  fsdp_version: 2\nzero_stage: 2\n"
    told = _choices(write, file=file, cli={"fsdp_offload_params": "on", "fsdp_transformer_layer_cls_to_wrap": "A,B"})
    assert told.variables == {
        "FORERUN_STRATEGY": "fsdp",
        "FORERUN_FSDP_OFFLOAD_PARAMS": "true",
        "FORERUN_FSDP_VERSION": "2",
        "FORERUN_FSDP_TRANSFORMER_LAYER_CLS_TO_WRAP": "A,B",
    }
    weaker = _choices(write, cli={"strategy": "auto"}, env={"FORERUN_STRATEGY": "fsdp"})
    assert weaker.variables == {"FORERUN_STRATEGY": "auto"}
    assert _choices(write, cli={"num_processes": "2"}).variables == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("fsdp_version: 2\n  fsdp_reshard_after_forward: true\n  fsdp_use_orig_params: true", ""),
        ("fsdp_version: 1", "fsdp_version 1 (config.yaml:3): FSDP1 is not in this version"),
        ("fsdp_sharding_strategy: NO_SHARD", "without sharding the strategy is ddp"),
        ("fsdp_forward_prefetch: true", "FSDP2 prefetches by itself"),
        ("fsdp_state_dict_type: SHARDED_STATE_DICT", "checkpoints hold whole tensors"),
        ("fsdp_activation_checkpointing_offload: true", "fsdp_activation_checkpointing_offload true"),
    ],
)
def test_settings_of_fsdp1_are_refused_before_a_launch(settings: str, said: str, write: Write) -> None:
    text = f"distributed_type: FSDP\nfsdp_config:\n  {settings}\n"
    unavailable = "; ".join(_choices(write, file=text).unavailable).replace(str(write("").parent) + "/", "")
    assert said in unavailable
    assert bool(unavailable) is bool(said)
    assert _choices(write, file=text.replace("FSDP\n", "MULTI_CPU\n")).unavailable == ()


@pytest.mark.parametrize(
    ("typed", "replicate", "shard"),
    [
        ({}, 8, 1),
        ({"use_fsdp": "true"}, 1, 8),
        ({"use_fsdp": "true", "fsdp_sharding_strategy": "HYBRID_SHARD"}, 2, 4),
        ({"use_fsdp": "true", "fsdp_reshard_after_forward": "hybrid_shard_zero2"}, 2, 4),
        ({"fsdp_sharding_strategy": "4"}, 8, 1),
    ],
)
def test_the_mesh_follows_from_the_strategy(typed: dict[str, str], replicate: int, shard: int, write: Write) -> None:
    resolved = _resolved(write, cli=typed)
    dims = dims_of(resolved, choose(resolved), world_size=8, local_world_size=4)
    assert (dims.data_replicate, dims.data_shard) == (replicate, shard)
