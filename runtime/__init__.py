"""forerun's training runtime: the Accelerate API over DDP and more. Importing it loads no torch."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .errors import MissingDependencyError

_NAMES = {
    "Accelerator": "accelerator",
    "AutocastKwargs": "options",
    "DataLoaderConfiguration": "options",
    "DistributedDataParallelKwargs": "options",
    "FullyShardedDataParallelPlugin": "strategies.sharding_options",
    "GradScalerKwargs": "options",
    "GradientAccumulationPlugin": "options",
    "InitProcessGroupKwargs": "options",
    "ParallelDims": "mesh",
    "PartialState": "state",
    "ProjectConfiguration": "options",
    "broadcast": "collectives",
    "broadcast_object_list": "collectives",
    "concatenate": "structures",
    "convert_outputs_to_fp32": "structures",
    "gather": "collectives",
    "gather_object": "collectives",
    "pad_across_processes": "collectives",
    "recursively_apply": "structures",
    "reduce": "collectives",
    "send_to_device": "structures",
    "set_seed": "seeding",
    "skip_first_batches": "data.loader",
}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name == "utils":
        return import_module(".utils", __name__)
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it offers {', '.join(__all__)}")
    if find_spec("torch") is None:
        raise MissingDependencyError(
            f"{name} needs torch, which this Python does not have",
            allowed="a Python with torch 2.6 or newer",
            next_step='pip install "forerun[train]"',
        )
    return getattr(import_module(f".{_NAMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
