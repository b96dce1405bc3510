"""forerun's training runtime: the Accelerate API over DDP and more. Importing it loads no torch."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import MissingDependencyError, NotInThisVersionError

_NAMES = {
    "Accelerator": "accelerator",
    "AcceleratorState": "accelerator_state",
    "AutocastKwargs": "options",
    "DataLoaderConfiguration": "options",
    "DeepSpeedPlugin": "strategies.deepspeed_options",
    "DistributedDataParallelKwargs": "options",
    "DistributedOperationException": "errors",
    "DistributedType": "state",
    "FullyShardedDataParallelPlugin": "strategies.sharding_options",
    "GeneralTracker": "tracking",
    "GradScalerKwargs": "options",
    "GradientAccumulationPlugin": "options",
    "GradientState": "gradient_state",
    "InitProcessGroupKwargs": "options",
    "ParallelDims": "mesh",
    "ParallelismConfig": "mesh",
    "PartialState": "state",
    "ProfileKwargs": "options",
    "ProjectConfiguration": "options",
    "SeedableRandomSampler": "data.seedable",
    "TorchDynamoPlugin": "strategies.compilation",
    "broadcast": "collectives",
    "broadcast_object_list": "collectives",
    "clear_device_cache": "memory",
    "concatenate": "structures",
    "convert_outputs_to_fp32": "structures",
    "convert_to_fp32": "structures",
    "debug_launcher": "debugging",
    "find_device": "structures",
    "find_executable_batch_size": "memory",
    "gather": "collectives",
    "gather_object": "collectives",
    "get_logger": "logging",
    "is_port_in_use": "ports",
    "is_torch_tensor": "structures",
    "pad_across_processes": "collectives",
    "prepare_data_loader": "loader_sharding",
    "recursively_apply": "structures",
    "reduce": "collectives",
    "release_memory": "memory",
    "send_to_device": "structures",
    "set_seed": "seeding",
    "should_reduce_batch_size": "memory",
    "skip_first_batches": "data.loader",
    "synchronize_rng_state": "rng_synchronization",
    "synchronize_rng_states": "rng_synchronization",
    "tqdm": "progress",
}
_LATER = {
    "AORecipeKwargs": "fp8",
    "AimTracker": "trackers other than JSONL and TensorBoard",
    "BnbQuantizationConfig": "quantised loading",
    "ClearMLTracker": "trackers other than JSONL and TensorBoard",
    "CometMLTracker": "trackers other than JSONL and TensorBoard",
    "DDPCommunicationHookType": "communication hooks",
    "DVCLiveTracker": "trackers other than JSONL and TensorBoard",
    "DeepSpeedSequenceParallelConfig": "sequence parallelism",
    "FP8RecipeKwargs": "fp8",
    "LocalSGD": "LocalSGD",
    "MLflowTracker": "trackers other than JSONL and TensorBoard",
    "MSAMPRecipeKwargs": "fp8",
    "MegatronLMPlugin": "Megatron-LM",
    "SwanLabTracker": "trackers other than JSONL and TensorBoard",
    "TERecipeKwargs": "fp8",
    "TorchContextParallelConfig": "context parallelism",
    "TorchTensorParallelConfig": "tensor parallelism",
    "TorchTensorParallelPlugin": "tensor parallelism",
    "TrackioTracker": "trackers other than JSONL and TensorBoard",
    "WandBTracker": "trackers other than JSONL and TensorBoard",
    "cpu_offload": "big-model loading",
    "cpu_offload_with_hook": "big-model loading",
    "disk_offload": "big-model loading",
    "dispatch_model": "big-model loading",
    "infer_auto_device_map": "big-model loading",
    "init_empty_weights": "big-model loading",
    "init_on_device": "big-model loading",
    "load_and_quantize_model": "quantised loading",
    "load_checkpoint_and_dispatch": "big-model loading",
    "load_checkpoint_in_model": "big-model loading",
    "notebook_launcher": "starting processes from a notebook",
    "prepare_pippy": "pipeline parallelism",
}
"""Names of the Accelerate API that this version does not have, and what they stand for."""

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name == "utils":
        return import_module(".utils", __name__)
    if name in _LATER:
        raise NotInThisVersionError(
            f"runtime has no {name}: this version does not have {_LATER[name]}",
            allowed="the names in dir(runtime)",
            next_step="leave it out; docs/api.md says what stands in for it, where something does",
        )
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    if find_spec("torch") is None:
        raise MissingDependencyError(
            f"{name} needs torch, which this Python does not have",
            allowed="a Python with torch 2.6 or newer",
            next_step='pip install "forerun[train]"',
        )
    with _uncollected():
        return getattr(import_module(f".{_NAMES[name]}", __name__), name)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Imports leave no garbage, and to look for some among torch's 170,000 objects takes as long as all of ours."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
