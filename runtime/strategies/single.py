"""One process, one device."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from .base import StrategyContext, forward_and_backward


class SingleStrategy:
    """The model as it is."""

    name = "single"
    replicated = True

    def __init__(self, context: StrategyContext) -> None:
        self._context = context

    def requirements(self) -> list[str]:
        count = self._context.world_size
        return [] if count == 1 else [f"strategy single runs in one process, this job has {count}"]

    def prepare_model(self, model: nn.Module) -> nn.Module:
        return model

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        return model

    def train_step(
        self, batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        return forward_and_backward(batch, forward=forward, backward=backward)

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def join(self, models: Sequence[nn.Module]) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """One process has nothing to average."""

    def clip_grad_norm(self, parameters: Iterable[torch.Tensor], *, max_norm: float, norm_type: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def state_dict(self, model: nn.Module) -> dict[str, Any]:
        return model.state_dict()

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None:
        model.load_state_dict(state)
