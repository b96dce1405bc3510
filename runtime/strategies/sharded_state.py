"""Whole tensors from sharded ones and back, so that a checkpoint loads under any strategy on any number of ranks."""

from collections import defaultdict
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor

from ..errors import CheckpointError
from ..structures import map_leaves


def whole_model_state(model: nn.Module) -> dict[str, Any]:
    """The model's state on rank 0, on the CPU; empty on the others. All ranks call it together.

    Names that are tied share one tensor, as in the model.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state: dict[str, Any] = get_model_state_dict(model, options=options)
    if dist.get_rank() != 0:
        return {}
    state = {name: _without_padding(value) if torch.is_tensor(value) else value for name, value in state.items()}
    for names in tied_names(model):
        present = [name for name in names if name in state]
        for name in present[1:]:
            state[name] = state[present[0]]
    return state


def load_whole_model_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Take this rank's parts of whole tensors; nothing changes unless all names and shapes fit.

    Raises:
        CheckpointError: they do not.
    """
    expected = model.state_dict()
    wrong = [f"{name} is missing" for name in expected if name not in state]
    wrong += [f"{name} is not in the model" for name in state if name not in expected]
    for name, value in expected.items():
        given = state.get(name)
        if isinstance(value, torch.Tensor) and isinstance(given, torch.Tensor) and given.shape != value.shape:
            wrong.append(f"{name} has shape {list(given.shape)}, the model's {list(value.shape)}")
    if wrong:
        raise CheckpointError(
            f"the model does not fit: {'; '.join(wrong[:5])}" + (f" and {len(wrong) - 5} more" if wrong[5:] else ""),
            allowed="the state of the same model",
            next_step="build the same model as when it was saved",
        )
    set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True))


def whole_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """torch's own form of the state, with whole tensors on the CPU; empty on all ranks but 0. All call it together."""
    keep = dist.get_rank() == 0
    state: dict[str, Any] = map_leaves(lambda leaf: _whole(leaf, keep), optimizer.state_dict())
    return state if keep else {}


def load_whole_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take this rank's parts of whole tensors.

    Raises:
        CheckpointError: it is the state of other parameters, or cannot be sharded as they are.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    places = [place for group in state["param_groups"] for place in group["params"]]
    if len(parameters) != len(places):
        raise CheckpointError(
            f"the optimizer has {len(parameters)} parameters, the checkpoint {len(places)}",
            allowed="the same parameters in the same order",
            next_step="build the same optimizer as when it was saved",
        )
    parts = dict(state["state"])
    for place, parameter in zip(places, parameters, strict=True):
        if place in parts and isinstance(parameter, DTensor):
            _require_shardable(optimizer, parts[place], parameter)
            parts[place] = {name: part_of(value, parameter) for name, value in parts[place].items()}
    optimizer.load_state_dict({**state, "state": parts})


def _require_shardable(optimizer: torch.optim.Optimizer, state: dict[str, Any], parameter: DTensor) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.numel() > 1 and value.shape != parameter.shape:
            raise CheckpointError(
                f"{name} of {type(optimizer).__name__} has shape {list(value.shape)}, its parameter "
                f"{list(parameter.shape)}",
                allowed="under sharding, states of their parameter's shape",
                next_step="use AdamW or SGD, or strategy ddp",
            )


def part_of(value: Any, parameter: DTensor) -> Any:
    """This rank's part of a whole tensor, spread as the parameter is; what has another shape stays as it is."""
    if not isinstance(value, torch.Tensor) or isinstance(value, DTensor) or value.shape != parameter.shape:
        return value
    device = parameter.to_local().device
    part = distribute_tensor(
        value.to(parameter.device_mesh.device_type), parameter.device_mesh, parameter.placements, src_data_rank=None
    )
    # A view of the whole tensor would keep all of it in memory.
    return DTensor.from_local(
        part.to_local().to(device, copy=True),
        part.device_mesh,
        part.placements,
        run_check=False,
        shape=part.shape,
        stride=part.stride(),
    )


def tied_names(model: nn.Module) -> list[list[str]]:
    """Groups of names that stand for one parameter."""
    names = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [group for group in names.values() if len(group) > 1]


def _whole(leaf: Any, keep: bool) -> Any:
    if not isinstance(leaf, DTensor):
        return leaf
    # Parts that lie in host memory travel through the device that the process group serves.
    on_mesh: Any = (
        leaf if leaf.to_local().device.type == leaf.device_mesh.device_type else leaf.to(leaf.device_mesh.device_type)
    )
    whole = on_mesh.detach().full_tensor()
    return _without_padding(whole.cpu()) if keep else None


def _without_padding(whole: torch.Tensor) -> torch.Tensor:
    """A tensor that owns its memory: gathered ones are cut from a longer one, which would be saved as a whole."""
    is_tight = whole.untyped_storage().nbytes() == whole.numel() * whole.element_size()
    return whole if is_tight else whole.clone()
