"""The keys that DeepSpeed's configuration has (0.19), by section. Standard library alone."""


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


OWN = _set(
    "zero_optimization train_batch_size train_micro_batch_size_per_gpu bf16 bfloat16 fp16 optimizer scheduler "
    "steps_per_print wall_clock_breakdown zero_allow_untested_optimizer gradient_predivide_factor "
    "prescale_gradients communication_data_type activation_checkpointing"
)
TOP = OWN | _set(
    "gradient_accumulation_steps gradient_clipping managed_gradient_accumulation seq_parallel_communication_data_type "
    "data_types checkpoint torch_autocast amp dump_state log_level memory_breakdown disable_allgather "
    "disable_python_gc gradient_allreduce_op dataloader_drop_last use_data_before_expert_parallelism "
    "zero_force_ds_cpu_optimizer flops_profiler comms_logger tensorboard wandb csv_monitor comet aio nebula elasticity "
    "autotuning curriculum_learning data_efficiency compression_training sparse_attention sparse_gradients "
    "tensor_parallel pipeline hybrid_engine weight_quantization compile expert_parallel vocabulary_size "
    "progressive_layer_drop eigenvalue checkpoint_parallel_write load_universal zero_quantized_weights"
)
ZERO = _set(
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
OFFLOAD = _set(
    "device nvme_path buffer_count buffer_size max_in_cpu pin_memory pipeline pipeline_read pipeline_write fast_init "
    "ratio super_offload cpuadam_cores_perc"
)
HALF = _set(
    "enabled auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis "
    "min_loss_scale fp16_master_weights_and_grads immediate_grad_update check_grad_overflow "
    "bf16_master_weights_and_grads bf16_optimizer_states"
)
