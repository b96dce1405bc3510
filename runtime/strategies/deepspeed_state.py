"""Whole tensors by name from DeepSpeed's flat parts and back, so that a checkpoint loads under any strategy.

ZeRO keeps float32 weights and optimizer states in flat tensors, of which each rank holds a slice; where a parameter
lies in them is DeepSpeed's private knowledge, read here alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import nn

from ..errors import CheckpointError
from ..state_parts import StoredTensor
from .deepspeed_engine import Group, WindowedEngine
from .deepspeed_loading import gathered

_ELEMENTS = object()
"""Stands for a value that has one number for each element of its parameter."""


@dataclass(frozen=True)
class Slice:
    """This rank's part of a parameter: `length` elements from `start` of the parameter, at `offset` of `flat`."""

    flat: torch.Tensor
    offset: int
    start: int
    length: int

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The same place in a tensor that is laid out as `flat`."""
        return values.narrow(0, self.offset, self.length)


def whole_model_state(windowed: WindowedEngine) -> dict[str, Any]:
    """The model's state on rank 0, on the CPU; empty on the others. All ranks call it together.

    Trained weights are the float32 ones that the optimizer updates. Names that are tied share one tensor.
    """
    slices = _slices(windowed)
    known: dict[int, Any] = {}
    state: dict[str, Any] = {}
    for name, value in windowed.engine.module.state_dict(keep_vars=True).items():
        if not isinstance(value, nn.Parameter):
            state[name] = value.detach().cpu() if torch.is_tensor(value) else value
            continue
        if id(value) not in known:
            known[id(value)] = _whole_parameter(value, slices.get(id(value)))
        state[name] = known[id(value)]
    return state if dist.get_rank() == 0 else {}


def load_whole_model_state(windowed: WindowedEngine, state: dict[str, Any]) -> None:
    """Take this rank's parts of whole tensors; nothing changes unless all names and shapes fit.

    Raises:
        CheckpointError: they do not.
    """
    module = windowed.engine.module
    expected = module.state_dict(keep_vars=True)
    _require_fit(expected, state)
    slices = _slices(windowed)
    done: set[int] = set()
    with torch.no_grad():
        for name, value in expected.items():
            if not torch.is_tensor(value) or id(value) in done:
                continue
            done.add(id(value))
            if id(value) in slices:
                _fill(slices[id(value)], None, state[name])
            else:
                _set_replicated(value, state[name])
        _publish(windowed)
    extra = {name: state[name] for name, value in expected.items() if not torch.is_tensor(value)}
    if extra:
        module.load_state_dict(extra, strict=False)


def whole_optimizer_state(windowed: WindowedEngine) -> dict[str, Any]:
    """torch's own form of the state, with whole tensors on the CPU; empty on all ranks but 0. All call it together."""
    slices = _slices(windowed)
    states: dict[int, dict[str, Any]] = {}
    for place, parameter in _places(windowed.groups):
        piece = slices.get(id(parameter))
        if piece is None:
            continue
        held = windowed.optimizer.state.get(piece.flat, {})
        if held:
            states[place] = {name: _whole_value(value, piece, parameter) for name, value in held.items()}
    groups, place = [], 0
    for group in windowed.groups:
        live = {} if group.live is None else windowed.optimizer.param_groups[group.live]
        options = {name: live.get(name, value) for name, value in group.options.items()}
        options |= {name: value for name, value in live.items() if _is_option(name)}
        groups.append({**options, "params": list(range(place, place + len(group.parameters)))})
        place += len(group.parameters)
    return {"state": states, "param_groups": groups} if dist.get_rank() == 0 else {}


def load_whole_optimizer_state(windowed: WindowedEngine, state: dict[str, Any]) -> None:
    """Take this rank's parts of whole tensors; nothing changes unless all of it can be carried over.

    Raises:
        CheckpointError: it is the state of other parameters, or one that flat parts cannot hold.
    """
    slices = _slices(windowed)
    parts, shared = _matched(windowed, slices, state)
    with torch.no_grad():
        for flat, scalars in shared:
            _load_flat(windowed.optimizer, flat, scalars, [(s, parts[i]) for i, s in slices.items() if s.flat is flat])
    for group, options in zip(windowed.groups, state["param_groups"], strict=True):
        group.options.update({name: value for name, value in options.items() if _is_option(name)})
        if group.live is not None:
            live = windowed.optimizer.param_groups[group.live]
            live.update({name: value for name, value in options.items() if _is_option(name)})


def check_model_state(windowed: WindowedEngine, stored: dict[str, Any]) -> dict[str, Any]:
    """Compare names and shapes with the model's before anything is read; returns `stored`.

    Raises:
        CheckpointError: they differ.
    """
    _require_fit(windowed.engine.module.state_dict(keep_vars=True), stored)
    return stored


def check_optimizer_state(windowed: WindowedEngine, stored: dict[str, Any]) -> dict[str, Any]:
    """The same for the optimizer.

    Raises:
        CheckpointError: it is the state of other parameters, or one that flat parts cannot hold.
    """
    _matched(windowed, _slices(windowed), stored)
    return stored


def _matched(
    windowed: WindowedEngine, slices: dict[int, Slice], state: dict[str, Any]
) -> tuple[dict[int, dict[str, Any]], list[tuple[torch.Tensor, dict[str, Any]]]]:
    """Each trained parameter's stored state by its id, and what the parameters of each flat part have in common."""
    listed = list(_places(windowed.groups))
    saved = [len(group["params"]) for group in state["param_groups"]]
    if saved != [len(group.parameters) for group in windowed.groups]:
        raise CheckpointError(
            f"the optimizer's groups have {[len(group.parameters) for group in windowed.groups]} parameters, the "
            f"checkpoint's {saved}",
            allowed="the same parameters in the same order",
            next_step="build the same optimizer as when it was saved",
        )
    order = [place for group in state["param_groups"] for place in group["params"]]
    parts = {}
    for (_, parameter), place in zip(listed, order, strict=True):
        if id(parameter) in slices:
            parts[id(parameter)] = state["state"].get(place, {})
    return parts, _require_flat(listed, parts, slices)


def _is_option(name: str) -> bool:
    return name != "params" and not name.startswith("_ds_")


def _places(groups: tuple[Group, ...]) -> Iterator[tuple[int, nn.Parameter]]:
    yield from enumerate(parameter for group in groups for parameter in group.parameters)


def _slices(windowed: WindowedEngine) -> dict[int, Slice]:
    """id of each trained parameter -> this rank's slice, which may be empty. Alike on all ranks but for the slices."""
    zero, found = windowed.zero, {}
    assert zero is not None, "stage 0 holds whole tensors"
    if windowed.stage == 3:
        rank = dist.get_rank()
        for group in zero.fp16_groups:
            for parameter in group:
                index, offset, length = zero.grad_position[zero.get_param_id(parameter)]
                start = min(rank * length, parameter.ds_numel)
                flat = zero.fp32_partitioned_groups_flat[index]
                found[id(parameter)] = Slice(flat, offset, start, min(length, parameter.ds_numel - start))
        return found
    for index, group in enumerate(zero.bit16_groups):
        flat = zero.single_partition_of_fp32_groups[index]
        for parameter in group:
            mapping = parameter._hp_mapping
            if mapping is None:
                found[id(parameter)] = Slice(flat, 0, 0, 0)
                continue
            place, own = mapping.get_hp_fragment_address(), mapping.lp_fragment_address
            found[id(parameter)] = Slice(flat, int(place.start), int(own.start), int(own.numel))
    return found


def _whole_parameter(parameter: nn.Parameter, piece: Slice | None) -> Any:
    if piece is not None:
        return _whole_value(piece.flat, piece, parameter)
    if not hasattr(parameter, "ds_id"):
        return parameter.detach().cpu().clone()
    with gathered([parameter]):
        return parameter.detach().cpu().clone() if dist.get_rank() == 0 else None


def _whole_value(value: Any, piece: Slice, parameter: nn.Parameter) -> Any:
    """A value of a flat part's state: of the parameter's shape if it is laid out as the part, else as it is."""
    if not torch.is_tensor(value) or value.shape != piece.flat.shape:
        return value.detach().cpu().clone() if torch.is_tensor(value) else value
    # Each element lies on one rank and is zero on the others, so that the sum is exact.
    whole = torch.zeros(_numel(parameter), dtype=value.dtype, device=_device(piece))
    whole.narrow(0, piece.start, piece.length).copy_(piece.of(value.detach()))
    dist.reduce(whole, dst=0)
    return whole.cpu().reshape(_shape(parameter)) if dist.get_rank() == 0 else None


def _fill(piece: Slice, target: torch.Tensor | None, whole: torch.Tensor) -> None:
    part = whole.reshape(-1).narrow(0, piece.start, piece.length)
    piece.of(piece.flat if target is None else target).copy_(part)


def _set_replicated(value: torch.Tensor, whole: torch.Tensor) -> None:
    if not hasattr(value, "ds_id"):
        value.data.copy_(whole)
        return
    with gathered([value], modifier_rank=0):
        if dist.get_rank() == 0:
            value.data.copy_(whole)


def _publish(windowed: WindowedEngine) -> None:
    """Let the model compute with the weights that the flat parts hold now."""
    zero: Any = windowed.zero
    if windowed.stage < 3:
        zero.update_lp_params()
        return
    for index in range(len(zero.fp16_groups)):
        zero._reassign_or_swap_out_partitioned_parameters(index)
    if zero.persistent_parameters:
        zero.persistent_parameters[0].partition(zero.persistent_parameters)
        zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def _require_fit(expected: dict[str, Any], state: dict[str, Any]) -> None:
    wrong = [f"{name} is missing" for name in expected if name not in state]
    wrong += [f"{name} is not in the model" for name in state if name not in expected]
    for name, value in expected.items():
        given = state.get(name)
        if torch.is_tensor(value) and _is_tensor(given) and tuple(given.shape) != tuple(_shape(value)):
            wrong.append(f"{name} has shape {list(given.shape)}, the model's {list(_shape(value))}")
    if wrong:
        raise CheckpointError(
            f"the model does not fit: {'; '.join(wrong[:5])}" + (f" and {len(wrong) - 5} more" if wrong[5:] else ""),
            allowed="the state of the same model",
            next_step="build the same model as when it was saved",
        )


def _require_flat(
    listed: list[tuple[int, nn.Parameter]], parts: dict[int, dict[str, Any]], slices: dict[int, Slice]
) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """Each flat part with the state that its parameters have in common; they must agree, since they share it."""
    shared: dict[int, tuple[torch.Tensor, dict[str, Any], int]] = {}
    for place, parameter in listed:
        if id(parameter) not in parts:
            continue
        state, flat = parts[id(parameter)], slices[id(parameter)].flat
        scalars: dict[str, Any] = {}
        for name, value in state.items():
            if _is_tensor(value) and tuple(value.shape) == tuple(_shape(parameter)) and name != "step":
                scalars[name] = _ELEMENTS
            elif _is_tensor(value) and math.prod(value.shape) > 1:
                shapes = f"{list(value.shape)}, the parameter {list(_shape(parameter))}"
                raise CheckpointError(
                    f"{name} of parameter {place} has shape {shapes}",
                    allowed="under ZeRO, states of their parameter's shape",
                    next_step="use AdamW or SGD, or strategy ddp",
                )
            else:
                scalars[name] = value
        before = shared.setdefault(id(flat), (flat, scalars, place))
        _require_alike(before[1], scalars, before[2], place)
    return [(flat, scalars) for flat, scalars, _ in shared.values()]


def _require_alike(first: dict[str, Any], second: dict[str, Any], one: int, other: int) -> None:
    differ = sorted(set(first) ^ set(second))
    differ += [name for name in first if name in second and not _equal(first[name], second[name])]
    if differ:
        raise CheckpointError(
            f"{', '.join(differ)} of the optimizer's state differ between parameters {one} and {other}: ZeRO keeps one "
            "for all parameters of a group",
            allowed="a state in which all parameters of a group took the same steps",
            next_step="load it under the strategy that saved it, or put these parameters into groups of their own",
        )


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, StoredTensor) and isinstance(second, StoredTensor):
        return True  # known when they are read
    if torch.is_tensor(first) and torch.is_tensor(second):
        return torch.equal(first, second)
    return type(first) is type(second) and bool(first == second)


def _load_flat(
    optimizer: torch.optim.Optimizer,
    flat: torch.Tensor,
    scalars: dict[str, Any],
    pieces: list[tuple[Slice, dict[str, Any]]],
) -> None:
    held = optimizer.state[flat]
    for name in [name for name in held if name not in scalars]:
        del held[name]
    for name, value in scalars.items():
        if value is not _ELEMENTS:
            held[name] = value.clone() if torch.is_tensor(value) else value
            continue
        if not torch.is_tensor(held.get(name)) or held[name].shape != flat.shape:
            example = next(state[name] for _, state in pieces)
            held[name] = torch.zeros(flat.shape, dtype=example.dtype, device=flat.device)
        for piece, state in pieces:
            _fill(piece, held[name], state[name])


def _is_tensor(value: Any) -> TypeGuard[torch.Tensor | StoredTensor]:
    return isinstance(value, (torch.Tensor, StoredTensor))


def _numel(parameter: torch.Tensor) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _shape(parameter: torch.Tensor) -> torch.Size:
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def _device(piece: Slice) -> torch.device:
    """Where the process group can reach it."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else piece.flat.device
