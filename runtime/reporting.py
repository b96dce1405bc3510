"""What this rank tells whoever watches the run: metric and event records in the run directory, if there is one."""

import json
import time
from typing import Any

import torch

from .env import WorkerEnvironment
from .errors import UsageError
from .layout import RunLayout
from .records import MetricRecord, append_event, append_metric


class RunReporter:
    """Appends records; silent where the script was started by hand."""

    def __init__(self, environment: WorkerEnvironment) -> None:
        self._rank = environment.rank
        self.layout = None if environment.run_dir is None else RunLayout(environment.run_dir)

    def plan_digest(self) -> str | None:
        """Of the plan that this run follows; None outside of a run that was ordered by one."""
        try:
            order = {} if self.layout is None else json.loads(self.layout.launch.read_bytes())
        except (OSError, ValueError):
            return None
        digest = order.get("plan_digest") if isinstance(order, dict) else None
        return digest if isinstance(digest, str) else None

    def event(self, name: str, **details: Any) -> None:
        """Record an event; rank 0 speaks for the job."""
        if self.layout is not None and self._rank == 0:
            append_event(self.layout.events, name, rank=0, **details)

    def metric(self, name: str, value: float, *, step: int | None, weight: float = 1.0) -> None:
        """Record a value measured on this rank."""
        if self.layout is None:
            return
        record = MetricRecord(
            step=step, name=name, value=value, rank=self._rank, time_s=time.time(), weight=weight, origin="script"
        )
        append_metric(self.layout.metrics(self._rank), record)


def metric_value(name: str, value: Any) -> float:
    """A logged value as a number.

    Raises:
        UsageError: it is neither a number nor a tensor of one element.
    """
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value.detach())
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"log() of {name}={value!r} ({type(value).__name__})",
            allowed="numbers, and tensors of one element",
            next_step="log its mean, or print it",
        ) from error
