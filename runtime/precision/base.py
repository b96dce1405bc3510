"""The seam between the training loop and the numeric precision in which it computes."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn


class Precision(Protocol):
    """One way to compute forward and backward."""

    name: str
    scaler: torch.amp.GradScaler | None
    """Scales losses where small gradients would vanish; None where none is needed."""

    def check_model(self, model: nn.Module) -> None:
        """Raise ConfigurationError if the model cannot train in this precision."""
        ...

    def prepare_model(self, model: nn.Module) -> nn.Module: ...

    def unwrap_model(self, model: nn.Module) -> nn.Module:
        """Undo prepare_model."""
        ...

    def autocast(self, options: dict[str, Any] | None = None) -> AbstractContextManager[None]:
        """Computations inside run in this precision; `options` stand in for the Accelerator's own."""
        ...
