"""The whole weights of a checkpoint on disk, read one by one: ours, torch.distributed's, Accelerate's, DeepSpeed's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..state_parts import StoredTensor
from .foreign.distributed_folder import METADATA, DistributedFolder
from .foreign.recognise import foreign_kind, read_foreign
from .reader import CheckpointReader
from .selection import find_checkpoint
from .weights import Weight, weights_of


@dataclass(frozen=True)
class Mergeable:
    """What can be exported.

    Attributes:
        source: the folder that was found.
        written_by: forerun, torch, accelerate or deepspeed.
        rest: what the model's state holds beside tensors.
        notes: what a reader should know of the values.
    """

    source: Path
    written_by: str
    weights: list[Weight]
    rest: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find_weights(directory: Path, *, model: int = 0) -> Mergeable:
    """The weights of one model of a checkpoint.

    Args:
        directory: a checkpoint, a directory of checkpoints of ours (the newest is taken), or another library's folder.
        model: which, where there are several.

    Raises:
        CheckpointError: there are none, or they are damaged.
    """
    if (directory / METADATA).is_file():
        return _distributed(directory)
    if (directory / f"pytorch_model_fsdp_{model}" / METADATA).is_file():
        return _distributed(directory / f"pytorch_model_fsdp_{model}")
    kind = foreign_kind(directory)
    if kind is None:
        return _ours(directory, model)
    models = read_foreign(directory, rank=0).models
    if model >= len(models):
        raise _no_model(directory, model, [f"model {index}" for index in range(len(models))])
    weights, rest = weights_of(models[model])
    notes = ("trained weights are the float32 ones that the optimizer updates",) if kind == "deepspeed" else ()
    return Mergeable(directory, kind, weights, rest, notes)


def _ours(directory: Path, model: int) -> Mergeable:
    found = find_checkpoint(directory)
    reader = CheckpointReader(found)
    name = f"model_{model}"
    if name not in reader.names():
        raise _no_model(found, model, reader.names())
    stored = reader.stored(name)
    if not isinstance(stored, Mapping):
        raise CheckpointError(f"{found}: {name} is no state by name", next_step="take another checkpoint")
    places: dict[StoredTensor, list[str]] = {}
    rest = {}
    for key, value in stored.items():
        if isinstance(value, StoredTensor):
            places.setdefault(value, []).append(key)
        else:
            rest[key] = value
    weights = [
        Weight(names[0], tensor.dtype, tensor.shape, partial(reader.read, tensor), tuple(names[1:]))
        for tensor, names in places.items()
    ]
    return Mergeable(found, "forerun", weights, dict(reader.read(rest)))


def _distributed(directory: Path) -> Mergeable:
    weights = DistributedFolder(directory).weights()
    heads = {weight.name.split(".", 1)[0] for weight in weights}
    if heads == {"optimizer"}:
        raise CheckpointError(
            f"{directory} holds an optimizer's state",
            allowed="a folder with a model's weights",
            next_step="give the one beside it, pytorch_model_fsdp_0",
        )
    if heads == {"model"}:
        weights = [Weight(w.name.removeprefix("model."), w.dtype, w.shape, w.read) for w in weights]
    if not weights:
        raise CheckpointError(f"{directory} holds no tensors", next_step="give a folder with a model's weights")
    return Mergeable(directory, "torch", weights)


def _no_model(directory: Path, model: int, held: list[str]) -> CheckpointError:
    return CheckpointError(
        f"{directory} has no model {model}; it holds {', '.join(sorted(held))}",
        allowed="the number of a model that was prepared, from 0",
        next_step="choose one with --model",
    )
