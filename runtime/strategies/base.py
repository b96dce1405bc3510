"""The seam between the training loop and the way in which a model is spread over ranks."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn


@dataclass(frozen=True)
class StrategyContext:
    """What a strategy knows of its process. `options` are passed on to the backend."""

    device: torch.device
    world_size: int
    options: dict[str, Any]


class Strategy(Protocol):
    """One way to spread a model over ranks."""

    name: str
    replicated: bool
    """Every rank holds the whole state: rank 0 alone can save it."""

    def requirements(self) -> list[str]:
        """Why this strategy cannot run here, in words; empty if it can."""
        ...

    def prepare_model(self, model: nn.Module) -> nn.Module: ...

    def unwrap_model(self, model: nn.Module) -> nn.Module: ...

    def train_step(
        self, batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
    ) -> torch.Tensor:
        """The loop's unit: forward and backward of one micro-batch; returns the detached loss."""
        ...

    def no_sync(self, model: nn.Module) -> AbstractContextManager[None]:
        """While inside, gradients stay on their rank."""
        ...

    def join(self, models: Sequence[nn.Module]) -> AbstractContextManager[None]:
        """While inside, ranks may take different numbers of batches."""
        ...

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Average gradients over the ranks now: for a window whose last micro-batch had no backward."""
        ...

    def clip_grad_norm(self, parameters: Iterable[torch.Tensor], *, max_norm: float, norm_type: float) -> torch.Tensor:
        """Clip to the norm over the whole model; returns the norm before."""
        ...

    def state_dict(self, model: nn.Module) -> dict[str, Any]: ...

    def load_state_dict(self, model: nn.Module, state: dict[str, Any]) -> None: ...


def forward_and_backward(
    batch: Any, *, forward: Callable[[Any], torch.Tensor], backward: Callable[[torch.Tensor], None]
) -> torch.Tensor:
    """The default train_step."""
    loss = forward(batch)
    backward(loss)
    return loss.detach()
