"""A sharded model and its optimizer as parts of a checkpoint: each rank saves the boxes that it holds.

When they are loaded it reads those that it needs, whatever the number of ranks that saved them.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ..errors import CheckpointError
from ..state_fit import check_model, check_optimizer, kind_of
from ..state_parts import Part, StoredTensor, Wanted
from ..state_parts import Shard as Box
from ..structures import map_leaves


def model_part(name: str, model: nn.Module) -> Part:
    return Part(
        name,
        save=lambda: map_leaves(_box_of, dict(model.state_dict())),
        load=lambda state: _load_model(model, state),
        choose=lambda stored: _choose_model(stored, model),
    )


def optimizer_part(name: str, optimizer: torch.optim.Optimizer) -> Part:
    return Part(
        name,
        save=lambda: map_leaves(_box_of, optimizer.state_dict()),
        load=lambda state: _load_optimizer(optimizer, state),
        choose=lambda stored: _choose_optimizer(stored, optimizer),
        kind=kind_of(optimizer),
    )


def _box_of(leaf: Any) -> Any:
    """This rank's box of a sharded tensor; other values stay as they are."""
    if not isinstance(leaf, DTensor):
        return leaf
    _, offsets = _place(leaf)
    coordinate = leaf.device_mesh.get_coordinate()
    assert coordinate is not None, "every rank is in the mesh"
    # Where several ranks hold the same box, the first of them writes it.
    copies = [at for at, placement in zip(coordinate, leaf.placements, strict=True) if not isinstance(placement, Shard)]
    return Box(leaf.to_local().detach(), tuple(leaf.shape), offsets, primary=not any(copies))


def _choose_model(stored: Any, model: nn.Module) -> Any:
    check_model(stored, model)
    expected = model.state_dict()
    return {name: _wanted(value, expected[name]) for name, value in stored.items()}


def _choose_optimizer(stored: Any, optimizer: torch.optim.Optimizer) -> Any:
    check_optimizer(stored, optimizer)
    states = dict(stored["state"])
    for place, parameter in _placed(stored, optimizer):
        if place in states and isinstance(parameter, DTensor):
            _require_shardable(optimizer, states[place], parameter)
            states[place] = {name: _wanted(value, parameter) for name, value in states[place].items()}
    return {**stored, "state": states}


def _load_model(model: nn.Module, state: Any) -> None:
    expected = model.state_dict()
    model.load_state_dict({name: _sharded_as(value, expected[name]) for name, value in state.items()})


def _load_optimizer(optimizer: torch.optim.Optimizer, state: Any) -> None:
    states = dict(state["state"])
    for place, parameter in _placed(state, optimizer):
        if place in states:
            states[place] = {name: _sharded_as(value, parameter) for name, value in states[place].items()}
    optimizer.load_state_dict({**state, "state": states})


def _placed(state: Any, optimizer: torch.optim.Optimizer) -> list[tuple[Any, torch.Tensor]]:
    """Each parameter with the number under which the state has it."""
    places = [place for group in state["param_groups"] for place in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return list(zip(places, parameters, strict=True))


def _wanted(stored: Any, here: Any) -> Any:
    """This rank's box of a stored tensor that is to lie as `here` does; all of another value."""
    if not isinstance(stored, StoredTensor) or not isinstance(here, DTensor) or stored.shape != tuple(here.shape):
        return stored
    lengths, offsets = _place(here)
    return Wanted(stored, offsets, lengths)


def _sharded_as(value: Any, here: Any) -> Any:
    if not isinstance(value, Box):
        return value
    return DTensor.from_local(
        value.local.to(here.to_local().device),
        here.device_mesh,
        here.placements,
        run_check=False,
        shape=here.shape,
        stride=here.stride(),
    )


def _place(tensor: DTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lengths and offsets of this rank's box."""
    lengths, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if 0 in lengths:
        offsets = (0,) * len(offsets)  # torch puts an empty box behind the end
    return tuple(lengths), tuple(offsets)


def _require_shardable(optimizer: torch.optim.Optimizer, state: dict[str, Any], parameter: DTensor) -> None:
    for name, value in state.items():
        if isinstance(value, StoredTensor) and value.shape != tuple(parameter.shape) and value.shape not in ((), (1,)):
            raise CheckpointError(
                f"{name} of {type(optimizer).__name__} has shape {list(value.shape)}, its parameter "
                f"{list(parameter.shape)}",
                allowed="under sharding, states of their parameter's shape",
                next_step="use AdamW or SGD, or strategy ddp",
            )
