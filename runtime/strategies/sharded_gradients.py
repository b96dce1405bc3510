"""Gradients of parameters that FSDP2 shards: what a rank holds before they are reduced, and their norm after it.

torch has no public access to gradients that wait for their reduction: the parts used of FSDPState and FSDPParam are
all in this file.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Shard


def unreduced_gradients(root: nn.Module, parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    """The sums that this rank holds for these parameters until the window ends."""
    held = []
    for item in _sharded(root, parameters):
        unsharded = getattr(item, "_unsharded_param", None)
        waiting = (item.unsharded_accumulated_grad, None if unsharded is None else unsharded.grad)
        held += [_local(gradient) for gradient in waiting if gradient is not None]
    return held


def drop_unreduced_gradients(root: nn.Module, parameters: Iterable[nn.Parameter]) -> None:
    """Forget them."""
    for item in _sharded(root, parameters):
        item.unsharded_accumulated_grad = None
        if hasattr(item, "_unsharded_param"):
            item._unsharded_param.grad = None


def held_gradients(roots: Iterable[nn.Module], parameters: Sequence[nn.Parameter]) -> list[dict[str, torch.Tensor]]:
    """For each parameter, `sum`: what waits for its reduction, and `shard`: this rank's part of what is reduced."""
    records = _records(roots)
    found: list[dict[str, torch.Tensor]] = []
    for parameter in parameters:
        held = {} if parameter.grad is None else {"shard": _local(parameter.grad)}
        item = records.get(id(parameter))
        waiting = [] if item is None else [item.unsharded_accumulated_grad, _unsharded_grad(item)]
        sums = [_local(gradient) for gradient in waiting if gradient is not None]
        if sums:
            held["sum"] = sum(sums[1:], sums[0])
        found.append(held)
    return found


def hold_gradients(
    roots: Iterable[nn.Module], parameters: Sequence[nn.Parameter], held: Sequence[dict[str, torch.Tensor]]
) -> None:
    """The inverse."""
    records = _records(roots)
    for parameter, gradients in zip(parameters, held, strict=True):
        item = records.get(id(parameter))
        if "shard" in gradients:
            whole = torch.zeros_like(parameter)
            _local(whole).copy_(gradients["shard"])
            parameter.grad = whole.detach()
        if "sum" not in gradients:
            continue
        if item is None:
            parameter.grad = gradients["sum"].to(device=parameter.device, dtype=parameter.dtype, copy=True)
        else:
            item.unsharded_accumulated_grad = gradients["sum"].to(device=item.device, copy=True)


def reduce_now(root: nn.Module) -> None:
    """Reduce what is held, as the end of a backward would."""
    assert isinstance(root, FSDPModule)
    root._get_fsdp_state()._root_post_backward_final_callback()


def reshard(root: nn.Module) -> None:
    """Let all parameters lie sharded; what was gathered before a step is out of date after it."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local_gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's part of the gradients that these parameters have."""
    return [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def total_norm(
    gradients: Sequence[torch.Tensor], *, norm_type: float, groups: Sequence[Any], device: torch.device
) -> torch.Tensor:
    """Norm over the whole gradients, of which each rank has a part.

    Args:
        gradients: DTensors, sharded over one axis of their mesh and alike on its others, or plain ones, alike on all.
        groups: process groups over which sharded parts are added up (none where each rank has all).
    """
    parts = [g for g in gradients if isinstance(g, DTensor) and any(isinstance(p, Shard) for p in g.placements)]
    whole = [g for g in gradients if not any(g is part for part in parts)]
    own = nn.utils.get_total_norm([_local(g) for g in parts if _local(g).numel()], norm_type).to(device)
    total = own if math.isinf(norm_type) else own**norm_type
    for group in groups:
        dist.all_reduce(total, op=dist.ReduceOp.MAX if math.isinf(norm_type) else dist.ReduceOp.SUM, group=group)
    if whole:
        rest = nn.utils.get_total_norm([_local(g) for g in whole], norm_type).to(device)
        total = torch.maximum(total, rest) if math.isinf(norm_type) else total + rest**norm_type
    return total if math.isinf(norm_type) else total ** (1.0 / norm_type)


def _sharded(root: nn.Module, parameters: Iterable[nn.Parameter]) -> list[Any]:
    """FSDP's own records of these parameters; each is known by its sharded and by its gathered form."""
    wanted = {id(parameter) for parameter in parameters}
    found = []
    for module in root.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in module._get_fsdp_state()._fsdp_param_groups:
            for item in group.fsdp_params:
                if id(item.sharded_param) in wanted or id(getattr(item, "_unsharded_param", None)) in wanted:
                    found.append(item)
    return found


def _records(roots: Iterable[nn.Module]) -> dict[int, Any]:
    """By the id of the sharded parameter, FSDP's own record of it."""
    return {id(item.sharded_param): item for root in roots for item in _sharded(root, root.parameters())}


def _unsharded_grad(item: Any) -> torch.Tensor | None:
    unsharded = getattr(item, "_unsharded_param", None)
    return None if unsharded is None else unsharded.grad


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
