"""A DeepSpeed JSON: recognised by its keys, every key of its own known or refused, its numbers checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..batch_arithmetic import OPEN, BatchNumber, BatchSettings
from ..errors import ConfigurationError
from .file_syntax import Branch, Node, Scalar
from .option_kinds import Flag, Number, Whole, Word, WrongValue
from .option_table import nearest


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_OWN = _set(
    "zero_optimization train_batch_size train_micro_batch_size_per_gpu bf16 bfloat16 fp16 optimizer scheduler "
    "steps_per_print wall_clock_breakdown zero_allow_untested_optimizer gradient_predivide_factor "
    "prescale_gradients communication_data_type activation_checkpointing"
)
_TOP = _OWN | _set(
    "gradient_accumulation_steps gradient_clipping managed_gradient_accumulation seq_parallel_communication_data_type "
    "data_types checkpoint torch_autocast amp dump_state log_level memory_breakdown disable_allgather "
    "disable_python_gc gradient_allreduce_op dataloader_drop_last use_data_before_expert_parallelism "
    "zero_force_ds_cpu_optimizer flops_profiler comms_logger tensorboard wandb csv_monitor comet aio nebula elasticity "
    "autotuning curriculum_learning data_efficiency compression_training sparse_attention sparse_gradients "
    "tensor_parallel pipeline hybrid_engine weight_quantization compile expert_parallel vocabulary_size "
    "progressive_layer_drop eigenvalue checkpoint_parallel_write load_universal zero_quantized_weights"
)
_ZERO = _set(
    "stage contiguous_gradients reduce_scatter reduce_bucket_size use_multi_rank_bucket_allreduce "
    "allgather_partitions allgather_bucket_size overlap_comm compute_grad_norm load_from_fp32_weights "
    "elastic_checkpoint offload_param offload_optimizer zenflow sub_group_size cpu_offload_param "
    "cpu_offload_use_pin_memory cpu_offload prefetch_bucket_size stage3_prefetch_bucket_size "
    "param_persistence_threshold stage3_param_persistence_threshold model_persistence_threshold "
    "stage3_model_persistence_threshold max_live_parameters stage3_max_live_parameters max_reuse_distance "
    "stage3_max_reuse_distance gather_16bit_weights_on_model_save stage3_gather_16bit_weights_on_model_save "
    "stage3_gather_fp16_weights_on_model_save module_granularity_threshold stage3_module_granularity_threshold "
    "use_all_reduce_for_fetch_params stage3_use_all_reduce_for_fetch_params allgather_sequential "
    "stage3_allgather_sequential ignore_unused_parameters legacy_stage1 round_robin_gradients parameter_alignment "
    "zero_hpz_partition_size zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients "
    "memory_efficient_linear pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings "
    "enable_sanity_checks save_muon_momentum_buffer_in_memory leaf_module mics_shard_size "
    "mics_hierarchical_params_gather"
)
_OFFLOAD = _set(
    "device nvme_path buffer_count buffer_size max_in_cpu pin_memory pipeline pipeline_read pipeline_write fast_init "
    "ratio super_offload cpuadam_cores_perc"
)
_HALF = _set(
    "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis "
    "min_loss_scale fp16_master_weights_and_grads immediate_grad_update check_grad_overflow "
    "bf16_master_weights_and_grads bf16_optimizer_states"
)
_SECTIONS = {
    "zero_optimization": _ZERO,
    "zero_optimization.offload_optimizer": _OFFLOAD,
    "zero_optimization.offload_param": _OFFLOAD,
    "fp16": _HALF,
    "bf16": _HALF,
    "bfloat16": _HALF,
}
_KINDS: dict[str, Flag | Number | Whole | Word] = {
    "train_batch_size": Whole(1),
    "train_micro_batch_size_per_gpu": Whole(1),
    "gradient_accumulation_steps": Whole(1),
    "gradient_clipping": Number(),
    "zero_optimization.stage": Whole(0, 3),
    "zero_optimization.reduce_bucket_size": Whole(1),
    "zero_optimization.allgather_bucket_size": Whole(1),
    "zero_optimization.overlap_comm": Flag(),
    "zero_optimization.contiguous_gradients": Flag(),
    "zero_optimization.reduce_scatter": Flag(),
    "zero_optimization.offload_optimizer.device": Word(("none", "cpu", "nvme"), no_word="none"),
    "zero_optimization.offload_param.device": Word(("none", "cpu", "nvme"), no_word="none"),
    "zero_optimization.offload_optimizer.pin_memory": Flag(),
    "zero_optimization.offload_param.pin_memory": Flag(),
    "fp16.enabled": Flag(),
    "bf16.enabled": Flag(),
    "bfloat16.enabled": Flag(),
}
_AUTO = "auto"


@dataclass(frozen=True)
class DeepSpeedValue:
    value: Any
    place: str


@dataclass(frozen=True)
class DeepSpeedFile:
    """What of a DeepSpeed configuration matters to a launch.

    Attributes:
        precision: no, fp16 or bf16; None if the file leaves it open.
        batches: its three numbers; "auto" and absent ones are open.
    """

    path: Path
    precision: DeepSpeedValue | None
    zero_stage: DeepSpeedValue | None
    batches: BatchSettings

    def batches_on(
        self, ranks: int, *, dataloader: int | None = None, place: str = "the number of processes"
    ) -> BatchSettings:
        """The settings for settle_batches with this many data-parallel ranks and, if known, the loader's batch."""
        loader = OPEN if dataloader is None else BatchNumber(dataloader, "the script's loader")
        return replace(self.batches, ranks=BatchNumber(ranks, place), dataloader=loader)


def looks_like_deepspeed(entries: Mapping[str, Node]) -> bool:
    """Whether the keys are those of a DeepSpeed configuration. (fp16 alone is an old key of Accelerate's.)"""
    if "compute_environment" in entries or "distributed_type" in entries or "forerun_config" in entries:
        return False
    return any(key in _OWN and not (key == "fp16" and isinstance(node, Scalar)) for key, node in entries.items())


def read_deepspeed(path: Path, tree: Branch) -> DeepSpeedFile:
    """Check the whole tree.

    Raises:
        ConfigurationError: a key is unknown, or a value is not of its kind; all are named.
    """
    found: dict[str, DeepSpeedValue] = {}
    problems: list[str] = []
    _walk(tree, "", _TOP, found, problems)
    if _is_on(found, "fp16") and (_is_on(found, "bf16") or _is_on(found, "bfloat16")):
        problems.append("fp16 and bf16 are both enabled")
    if problems:
        raise ConfigurationError(
            f"{path} (a DeepSpeed configuration): {'; '.join(problems)}", next_step="correct the file"
        )
    return DeepSpeedFile(
        path=path,
        precision=_precision(found),
        zero_stage=found.get("zero_optimization.stage"),
        batches=BatchSettings(
            train=_number(found, "train_batch_size"),
            micro=_number(found, "train_micro_batch_size_per_gpu"),
            accumulation=_number(found, "gradient_accumulation_steps"),
        ),
    )


def _walk(
    branch: Branch, prefix: str, known: frozenset[str], found: dict[str, DeepSpeedValue], problems: list[str]
) -> None:
    for key, node in (branch.entries or {}).items():
        name = f"{prefix}{key}"
        if key not in known:
            near = nearest(key, known)
            problems.append(f"unknown key {name}" + (f", did you mean {prefix}{near}?" if near else ""))
        elif name in _SECTIONS:
            if isinstance(node, Branch) and node.entries is not None:
                _walk(node, f"{name}.", _SECTIONS[name], found, problems)
            elif not (isinstance(node, Scalar) and (node.text is None or node.text.lower() in ("false", "none"))):
                problems.append(f"{name} is no mapping")
        elif name in _KINDS:
            _check(name, node, found, problems)


def _check(name: str, node: Node, found: dict[str, DeepSpeedValue], problems: list[str]) -> None:
    if isinstance(node, Scalar) and (node.text is None or node.text == _AUTO):
        return
    kind = _KINDS[name]
    try:
        if not isinstance(node, Scalar) or node.text is None:
            raise WrongValue(kind.allowed)
        found[name] = DeepSpeedValue(kind.parse(node.text), node.place)
    except WrongValue as error:
        seen = repr(node.text) if isinstance(node, Scalar) else "a mapping or list"
        problems.append(f"{name} is {seen}, allowed: {error}, or auto")


def _is_on(found: Mapping[str, DeepSpeedValue], name: str) -> bool:
    value = found.get(f"{name}.enabled")
    return value is not None and value.value is True


def _precision(found: Mapping[str, DeepSpeedValue]) -> DeepSpeedValue | None:
    for name, word in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        if _is_on(found, name):
            return DeepSpeedValue(word, found[f"{name}.enabled"].place)
    off = [found[f"{name}.enabled"] for name in ("bf16", "bfloat16", "fp16") if f"{name}.enabled" in found]
    return DeepSpeedValue("no", off[0].place) if len(off) > 1 else None


def _number(found: Mapping[str, DeepSpeedValue], name: str) -> BatchNumber:
    value = found.get(name)
    return OPEN if value is None else BatchNumber(value.value, value.place)
