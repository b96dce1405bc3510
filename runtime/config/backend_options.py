"""The options of strategies and other backends. Their sections in a file bear the names used here."""

from dataclasses import replace
from functools import partial
from typing import Any

from .option_kinds import Effect, Flag, Kind, Many, Number, Option, Text, Whole, Word

DEEPSPEED_OFFLOAD = ("none", "cpu", "nvme")
WRAP_POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
_SHARDING = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
_DYNAMO = (
    "no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt "
    "aot_torchxla_trace_once torhchxla_trace_once tvm hpu_backend neuron"
)
_GROUPS = {
    "deepspeed": "DeepSpeed",
    "fsdp": "FSDP",
    "megatron_lm": "Megatron-LM",
    "fp8": "FP8",
    "dynamo": "torch.compile",
    "parallelism_config": "Degrees of parallelism",
    "mpirun": "MPI",
    "ipex": "IPEX",
    "tpu_pod": "TPU",
    "sagemaker": "SageMaker",
}
_REMARKS = {
    "deepspeed": "",
    "fsdp": "",
    "megatron_lm": "the strategy megatron_lm is not in this version: single, ddp, fsdp and deepspeed are",
    "fp8": "fp8 is not in this version: no, bf16 and fp16 are",
    "dynamo": "call torch.compile in the script",
    "parallelism_config": "all processes are data-parallel in this version",
    "mpirun": "processes are started by torchrun on this machine",
    "ipex": "Intel's extension and GPUs are not in this version: leave it out, torch itself has what CPUs need",
    "tpu_pod": "TPU pods are not in this version",
    "sagemaker": "SageMaker is not in this version: put `forerun launch` into the job's own script",
}


def _row(
    section: str,
    name: str,
    kind: Kind,
    text: str,
    *,
    keys: tuple[str, ...] = (),
    effect: Effect = "absent",
    question: str = "",
    accepts: tuple[Any, ...] = (),
    remark: str = "",
) -> Option:
    """An option in a section; Accelerate's key is <section>_config.<name>, with the prefix or without."""
    mapping = section if section.endswith("_config") else f"{section}_config"
    names = dict.fromkeys((name, name.removeprefix(f"{section}_"), *keys))
    return Option(
        name,
        section,
        kind,
        text,
        peer=tuple(f"{mapping}.{key}" for key in names),
        effect=effect,
        remark=remark or _REMARKS[section],
        accepts=accepts,
        question=question,
        group=_GROUPS[section],
    )


def _top(section: str, name: str, kind: Kind, text: str, *, keys: tuple[str, ...] = ()) -> Option:
    """An option whose key in Accelerate's file is at the top level."""
    return Option(
        name,
        section,
        kind,
        text,
        peer=keys or (name,),
        effect="absent",
        remark=_REMARKS[section],
        group=_GROUPS[section],
    )


_fsdp = partial(_row, "fsdp", effect="built")
_deepspeed = partial(_row, "deepspeed", effect="built")
_SHARDS = tuple(word for word in _SHARDING if word != "NO_SHARD")
_NO_SHARD = "without sharding the strategy is ddp: say that"
_OFFLOAD = Word(DEEPSPEED_OFFLOAD, no_word="none", yes_word="cpu")
_DEEPSPEED = (
    _deepspeed("deepspeed_config_file", Text(), "A DeepSpeed JSON.", question="Path of a DeepSpeed JSON, or no?"),
    _deepspeed("zero_stage", Whole(0, 3), "ZeRO stage.", question="Which ZeRO stage?"),
    _deepspeed(
        "offload_optimizer_device",
        _OFFLOAD,
        "Where the optimizer's state lies.",
        question="Where to offload the optimizer's state?",
    ),
    _deepspeed(
        "offload_param_device",
        _OFFLOAD,
        "Where the parameters lie.",
        question="Where to offload the parameters?",
    ),
    _deepspeed("offload_optimizer_nvme_path", Text(), "Folder for offloading the optimizer."),
    _deepspeed("offload_param_nvme_path", Text(), "Folder for offloading parameters."),
    _deepspeed("gradient_clipping", Number(), "Norm that gradients are clipped to; 0: the script clips."),
    _deepspeed(
        "zero3_init_flag",
        Flag(),
        "Build the model already sharded.",
        accepts=(False,),
        remark="the model is sharded when it is prepared: leave it out",
    ),
    _row(
        "deepspeed",
        "zero3_save_16bit_model",
        Flag(),
        "Save whole weights with stage 3.",
        effect="none",
        remark="save_model always saves whole weights",
    ),
    _row("deepspeed", "deepspeed_hostfile", Text(), "Hosts and slots: all machines and their ranks.", effect="built"),
    _row("deepspeed", "deepspeed_exclusion_filter", Text(), "Those left out: NAME[:SLOT,...]@...", effect="built"),
    _row("deepspeed", "deepspeed_inclusion_filter", Text(), "Those to take alone; the same form.", effect="built"),
    _row(
        "deepspeed",
        "deepspeed_multinode_launcher",
        Word(("pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm")),
        "What starts the other machines: standard, you do, with the same command on each.",
        effect="built",
        accepts=("standard", "nossh"),
        remark="the same command is started on every machine: say standard, or leave it out",
    ),
    _row(
        "deepspeed",
        "deepspeed_moe_layer_cls_names",
        Many(),
        "Classes of mixture-of-experts layers.",
        remark="mixture-of-experts layers are not in this version: leave it out",
    ),
)
_FSDP = (
    _fsdp("fsdp_version", Whole(1, 2), "2.", accepts=(2,), remark="FSDP1 is not in this version: say 2"),
    _fsdp(
        "fsdp_reshard_after_forward",
        Word(("true", "false", *_SHARDING), no_word="false", yes_word="true"),
        "Shard again after the forward pass.",
        question="Shard the parameters again after the forward pass?",
        accepts=("true", "false", *_SHARDS),
        remark=_NO_SHARD,
    ),
    _fsdp(
        "fsdp_sharding_strategy",
        Word((*_SHARDING, "1", "2", "3", "4", "5")),
        "FSDP1's word for it.",
        accepts=(*_SHARDS, "1", "2", "4", "5"),
        remark=_NO_SHARD,
    ),
    _fsdp(
        "fsdp_offload_params",
        Flag(),
        "Keep parameters and gradients in host memory.",
        question="Keep parameters and gradients in host memory?",
    ),
    _fsdp(
        "fsdp_auto_wrap_policy",
        Word((*WRAP_POLICIES, "TRANSFORMER_AUTO_WRAP")),
        "Which modules are sharded on their own.",
        question="Which modules are to be sharded on their own?",
    ),
    _fsdp(
        "fsdp_transformer_layer_cls_to_wrap",
        Many(),
        "Classes of those modules.",
        question="Classes of the layers, comma-separated, or null for the model's own list?",
    ),
    _fsdp(
        "fsdp_min_num_params",
        Whole(1),
        "Least number of their parameters.",
        question="Least number of parameters of a module?",
    ),
    _fsdp(
        "fsdp_backward_prefetch",
        Word(("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")),
        "As in FSDP1.",
        keys=("fsdp_backward_prefetch_policy",),
        accepts=("BACKWARD_PRE",),
        remark="FSDP2 prefetches before each backward: leave it out",
    ),
    _fsdp(
        "fsdp_state_dict_type",
        Word(("FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT")),
        "Form of checkpoints.",
        accepts=("FULL_STATE_DICT",),
        remark="checkpoints hold whole tensors, which load on any number of ranks: leave it out",
    ),
    _fsdp(
        "fsdp_forward_prefetch",
        Flag(),
        "As in FSDP1.",
        accepts=(False,),
        remark="FSDP2 prefetches by itself: leave it out",
    ),
    _fsdp(
        "fsdp_use_orig_params",
        Flag(),
        "As in FSDP1.",
        accepts=(True,),
        remark="FSDP2 always keeps the original parameters: leave it out",
    ),
    _fsdp(
        "fsdp_cpu_ram_efficient_loading",
        Flag(),
        "Only rank 0 reads the weights.",
        accepts=(True,),
        remark="ranks whose model is on the meta device always take rank 0's weights: leave it out",
    ),
    _fsdp(
        "fsdp_sync_module_states",
        Flag(),
        "As in FSDP1.",
        accepts=(True,),
        remark="rank 0's weights always go to all ranks: leave it out",
    ),
    _fsdp(
        "fsdp_activation_checkpointing",
        Flag(),
        "Recompute activations in the backward pass.",
        question="Recompute activations in the backward pass?",
    ),
    _fsdp(
        "fsdp_activation_checkpointing_offload",
        Flag(),
        "Keep what is recomputed from in host memory.",
        effect="absent",
        remark="it is not in this version: leave it out",
    ),
)
_MEGATRON = (
    _row(
        "megatron_lm",
        "megatron_lm_tp_degree",
        Whole(1, 4096),
        "Tensor-parallel ranks.",
        question="How many tensor-parallel ranks?",
    ),
    _row(
        "megatron_lm", "megatron_lm_pp_degree", Whole(1, 4096), "Pipeline stages.", question="How many pipeline stages?"
    ),
    _row(
        "megatron_lm",
        "megatron_lm_num_micro_batches",
        Whole(1),
        "Micro-batches in the pipeline.",
        question="How many micro-batches in the pipeline?",
    ),
    _row(
        "megatron_lm",
        "megatron_lm_sequence_parallelism",
        Flag(),
        "Sequence parallelism.",
        question="Sequence parallelism?",
    ),
    _row(
        "megatron_lm",
        "megatron_lm_recompute_activations",
        Flag(),
        "Recompute activations.",
        question="Recompute activations?",
    ),
    _row(
        "megatron_lm",
        "megatron_lm_use_distributed_optimizer",
        Flag(),
        "Shard the optimizer.",
        question="Shard the optimizer over data-parallel ranks?",
    ),
    _row("megatron_lm", "megatron_lm_gradient_clipping", Number(), "Norm that gradients are clipped to; 0: none."),
    _row("megatron_lm", "megatron_lm_use_custom_fsdp", Flag(), "Megatron's own FSDP."),
    _row("megatron_lm", "megatron_lm_no_load_optim", Flag(), "Load no optimizer."),
    _row("megatron_lm", "megatron_lm_no_save_optim", Flag(), "Save no optimizer."),
    _row("megatron_lm", "megatron_lm_eod_mask_loss", Flag(), "Mask the loss at the end of documents."),
    _row("megatron_lm", "megatron_lm_overlap_cpu_optimizer_d2h_h2d", Flag(), "Overlap copies of the optimizer."),
    _row("megatron_lm", "megatron_lm_optimizer_cpu_offload", Flag(), "Optimizer in host memory."),
    _row("megatron_lm", "megatron_lm_use_precision_aware_optimizer", Flag(), "Optimizer of lower precision."),
    _row("megatron_lm", "megatron_lm_decoder_last_pipeline_num_layers", Whole(1), "Layers of the last stage."),
    _row("megatron_lm", "megatron_lm_recompute_granularity", Word(("full", "selective")), "What is recomputed."),
    _row("megatron_lm", "megatron_lm_recompute_method", Word(("uniform", "block")), "How it is chosen."),
    _row("megatron_lm", "megatron_lm_recompute_num_layers", Whole(1), "Layers of one piece."),
    _row("megatron_lm", "megatron_lm_attention_backend", Text(), "Attention."),
    _row("megatron_lm", "megatron_lm_expert_model_parallel_size", Whole(1), "Expert-parallel ranks."),
    _row("megatron_lm", "megatron_lm_expert_tensor_parallel_size", Whole(1), "Their tensor-parallel ranks."),
    _row("megatron_lm", "megatron_lm_context_parallel_size", Whole(1), "Context-parallel ranks."),
    _row("megatron_lm", "megatron_lm_attention_dropout", Number(0, 1), "Dropout of attention."),
    _row("megatron_lm", "megatron_lm_hidden_dropout", Number(0, 1), "Dropout of hidden layers."),
    _row("megatron_lm", "megatron_lm_attention_softmax_in_fp32", Flag(), "Softmax in fp32."),
    _row("megatron_lm", "megatron_lm_calculate_per_token_loss", Flag(), "Loss per token."),
    _row("megatron_lm", "megatron_lm_use_rotary_position_embeddings", Flag(), "Rotary positions."),
)
_FP8 = (
    _row(
        "fp8",
        "fp8_backend",
        Word(("ao", "te", "msamp")),
        "torchao, Transformer Engine or MS-AMP.",
        question="Which FP8 backend?",
    ),
    _row("fp8", "fp8_use_autocast_during_eval", Flag(), "FP8 in evaluation too."),
    _row("fp8", "fp8_margin", Whole(), "Margin of the scale."),
    _row("fp8", "fp8_interval", Whole(1), "Steps between scales."),
    _row("fp8", "fp8_format", Word(("HYBRID", "E4M3", "E5M2")), "Format."),
    _row("fp8", "fp8_amax_history_len", Whole(1), "Length of the history.", keys=("amax_history_length",)),
    _row(
        "fp8",
        "fp8_amax_compute_algo",
        Word(("max", "most_recent")),
        "Of the history.",
        keys=("amax_compute_algorithm",),
    ),
    _row("fp8", "fp8_override_linear_precision", Many(), "Three of true or false: fprop, dgrad, wgrad."),
    _row("fp8", "fp8_opt_level", Word(("O1", "O2")), "MS-AMP's level.", keys=("optimization_level",)),
    _row("fp8", "fp8_enable_fsdp_float8_all_gather", Flag(), "Gather in FP8."),
    _row("fp8", "fp8_pad_inner_dim", Flag(), "Pad to what the hardware needs."),
)
_DYNAMO_ROWS = (
    Option(
        "dynamo_backend",
        "dynamo",
        Word(tuple(_DYNAMO.split()), no_word="no"),
        "Compiler backend.",
        default="no",
        peer=("dynamo_config.dynamo_backend", "dynamo_config.backend", "dynamo_backend"),
        effect="absent",
        remark=_REMARKS["dynamo"],
        group=_GROUPS["dynamo"],
    ),
    _row("dynamo", "dynamo_mode", Word(("default", "reduce-overhead", "max-autotune")), "Mode.", effect="none"),
    _row("dynamo", "dynamo_use_fullgraph", Flag(), "One graph.", effect="none"),
    _row("dynamo", "dynamo_use_dynamic", Flag(), "Dynamic shapes.", effect="none"),
    _row("dynamo", "dynamo_use_regional_compilation", Flag(), "Compile repeated blocks once.", effect="none"),
)
_PARALLEL = (
    _row("parallelism_config", "parallelism_config_dp_replicate_size", Whole(1, 4096), "Replicas.", effect="none"),
    *(
        replace(_row("parallelism_config", f"parallelism_config_{name}", Whole(1, 4096), text), default=1)
        for name, text in (
            ("dp_shard_size", "Ranks that share one replica."),
            ("tp_size", "Tensor-parallel ranks."),
            ("cp_size", "Context-parallel ranks."),
            ("sp_size", "Sequence-parallel ranks."),
        )
    ),
    *(
        _row("parallelism_config", f"parallelism_config_{name}", kind, text, effect="none")
        for name, kind, text in (
            ("cp_backend", Word(("torch",)), "Context parallelism by."),
            ("cp_comm_strategy", Word(("allgather", "alltoall")), "How context is exchanged."),
            ("sp_backend", Word(("deepspeed",)), "Sequence parallelism by."),
            ("sp_seq_length", Whole(1), "Length of sequences."),
            ("sp_seq_length_is_variable", Flag(), "Sequences differ in length."),
            ("sp_attn_implementation", Text(), "Attention."),
        )
    ),
)
_OTHERS = (
    _row("mpirun", "mpirun_hostfile", Text(), "Hosts for mpirun."),
    _row("mpirun", "mpirun_ccl", Text(), "Threads of oneCCL.", effect="none"),
    _row("ipex", "ipex", Flag(), "Intel's extension of torch."),
    _row("ipex", "use_xpu", Flag(), "GPUs of Intel's."),
    _top("tpu_pod", "downcast_bf16", Flag(), "Doubles become bf16 on a TPU."),
    _top("tpu_pod", "tpu_cluster", Flag(), "Use a TPU pod.", keys=("tpu_use_cluster",)),
    _top("tpu_pod", "tpu_use_sudo", Flag(), "sudo in the pod."),
    _top("tpu_pod", "tpu_name", Text(), "Name of the pod."),
    _top("tpu_pod", "tpu_zone", Text(), "Its zone."),
    _top("tpu_pod", "vm", Many(), "Machines of the pod.", keys=("tpu_vm",)),
    _top("tpu_pod", "tpu_command_file", Text(), "Script that prepares the pod.", keys=("command_file",)),
    _top("tpu_pod", "tpu_commands", Many(), "Commands that prepare the pod.", keys=("commands",)),
)
_SAGEMAKER = tuple(
    _top("sagemaker", f"sagemaker_{name.removeprefix('sagemaker_')}", Text(), "SageMaker.", keys=(name,))
    for name in (
        "ec2_instance_type",
        "iam_role_name",
        "image_uri",
        "profile",
        "region",
        "base_job_name",
        "pytorch_version",
        "transformers_version",
        "py_version",
        "sagemaker_inputs_file",
        "sagemaker_metrics_file",
    )
)

BACKEND_OPTIONS = (*_DEEPSPEED, *_FSDP, *_MEGATRON, *_FP8, *_DYNAMO_ROWS, *_PARALLEL, *_OTHERS, *_SAGEMAKER)
