"""Collectives over all ranks, metrics and triggers."""

from typing import Any

import torch

from .. import collectives
from .base import Duty


class GatheringDuty(Duty):
    """Each method is called on every rank."""

    def gather(self, tensor: Any) -> Any:
        return collectives.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """Gather predictions or labels of the current batch, each sample of the data set exactly once."""
        return self._prepared.gather_for_metrics(input_data, as_objects=use_gather_object)

    def reduce(self, tensor: Any, reduction: collectives.Reduction = "sum", scale: float = 1.0) -> Any:
        return collectives.reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
        return collectives.pad_across_processes(tensor, dim, pad_index, pad_first)

    def set_trigger(self) -> None:
        """Raise a flag that check_trigger sees on every rank."""
        self._trigger = True

    def check_trigger(self) -> bool:
        """Whether any rank has called set_trigger since the last check; called on every rank."""
        flags = collectives.gather(torch.tensor([self._trigger], device=self.state.device))
        raised = bool(flags.any())
        if raised:
            self._trigger = False
        return raised
