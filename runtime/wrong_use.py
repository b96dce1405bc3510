"""Checks of the order in which a script uses the Accelerator, each with one sentence."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .errors import UsageError


def require_prepared(*prepared: Sequence[Any]) -> None:
    """Something was prepared.

    Raises:
        UsageError: nothing was.
    """
    if not any(prepared):
        raise UsageError(
            "backward() before prepare(): the Accelerator knows of no model and no optimizer",
            allowed="backward() of a loss that a prepared model gave",
            next_step="model, optimizer, loader = accelerator.prepare(model, optimizer, loader) before the loop",
        )


class FirstStep:
    """Comes before each step of an optimizer, and looks at its parameters before the first.

    Args:
        models: the prepared ones; those that are prepared after the optimizer count too.
        then: called before each step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module], then: Callable[[], None]) -> None:
        self._optimizer = optimizer
        self._models = models
        self._then = then
        self._looked = False

    def __call__(self) -> None:
        if not self._looked:
            refuse_foreign(self._optimizer, self._models)
            self._looked = True
        self._then()


def refuse_foreign(optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]) -> None:
    """What belongs to no prepared model is not averaged over the ranks: they would drift apart without a word.

    Raises:
        UsageError: the optimizer has trainable parameters of that kind.
    """
    known = {id(parameter) for model in models for parameter in model.parameters()}
    listed = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    foreign = [parameter for parameter in listed if id(parameter) not in known]
    if foreign:
        raise UsageError(
            f"{len(foreign)} of {len(listed)} parameters of {type(optimizer).__name__} belong to no prepared model: "
            "their gradients would stay on their rank",
            allowed="an optimizer over the parameters of prepared models",
            next_step="model, optimizer = accelerator.prepare(model, optimizer), the optimizer built over this model",
        )
