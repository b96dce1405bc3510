"""Which optimizer goes with which model under DeepSpeed, and whether the two can be one engine."""

from collections.abc import Sequence

import torch
from torch import nn

from ..errors import UsageError
from .deepspeed_engine import Group

# They look at whole parameters, or need their gradients, and ZeRO gives them flat parts.
_UNFIT_OPTIMIZERS = ("Adafactor", "Adagrad", "LBFGS", "Muon", "SparseAdam")
TOGETHER = "model, optimizer = accelerator.prepare(model, optimizer)"


def pair_up(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> dict[int, torch.optim.Optimizer]:
    """id of each model -> its optimizer.

    Raises:
        UsageError: an optimizer has parameters of no model, or of several, or a model has two.
    """
    found: dict[int, torch.optim.Optimizer] = {}
    owners = {id(parameter): model for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        foreign = [parameter for parameter in listed if id(parameter) not in owners]
        name = type(optimizer).__name__
        if foreign:
            raise UsageError(
                f"{len(foreign)} of {len(listed)} parameters of {name} belong to no model prepared with it: DeepSpeed "
                "makes one engine of a model and its optimizer",
                allowed="model and optimizer in one prepare()",
                next_step=TOGETHER,
            )
        mine = {id(owners[id(parameter)]) for parameter in listed}
        if len(mine) > 1 or mine & set(found):
            raise UsageError(
                f"{name} {'spans several models' if len(mine) > 1 else 'is a second optimizer of its model'}: "
                "DeepSpeed has one engine for a model and its one optimizer",
                allowed="one optimizer for each model",
                next_step="build one optimizer for each model, with parameter groups where they differ",
            )
        if any(kind.__name__ in _UNFIT_OPTIMIZERS for kind in type(optimizer).__mro__):
            raise UsageError(
                f"{name} under DeepSpeed: it looks at whole parameters, and ZeRO gives it flat parts of them",
                allowed="optimizers that treat each element alike, such as AdamW and SGD",
                next_step="use AdamW, or strategy ddp",
            )
        found[mine.pop()] = optimizer
    return found


def require_fit(model: nn.Module) -> None:
    """DeepSpeed fails later, or works in another precision, on parameters of these kinds.

    Raises:
        UsageError: the model has some.
    """
    wrong = [f"{name} has no dimensions" for name, parameter in model.named_parameters() if not parameter.ndim]
    wrong += [
        f"{name} is {str(parameter.dtype).removeprefix('torch.')}"
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.bfloat16)
    ]
    wrong += [f"{name} is on the meta device" for name, parameter in model.named_parameters() if parameter.is_meta]
    if wrong:
        raise UsageError(
            f"DeepSpeed cannot train this model: {', '.join(wrong[:5])}"
            + (f" and {len(wrong) - 5} more" if wrong[5:] else ""),
            allowed="real parameters of at least one dimension, trained ones in float32",
            next_step="change them (torch.ones(1) for a number), or use strategy fsdp2 or ddp",
        )


def groups_of(optimizer: torch.optim.Optimizer) -> list[Group]:
    """What the groups hold; those with something to train keep their order in the engine."""
    groups: list[Group] = []
    num_live = 0
    for group in optimizer.param_groups:
        is_live = any(parameter.requires_grad for parameter in group["params"])
        options = {name: value for name, value in group.items() if name != "params"}
        groups.append(Group(tuple(group["params"]), options, num_live if is_live else None))
        num_live += is_live
    return groups


def take_groups(optimizer: torch.optim.Optimizer) -> list[Group]:
    """The groups; frozen parameters, which ZeRO cannot place, leave the optimizer."""
    groups = groups_of(optimizer)
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    return groups
