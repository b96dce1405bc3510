"""What is recorded while training, and its end."""

from typing import Any

from ..reporting import metric_value
from .base import Duty


class RecordingDuty(Duty):
    """Records of the run, and the orderly end."""

    def log(self, values: dict[str, Any], step: int | None = None, *, all_ranks: bool = False) -> None:
        """Record numbers in the run directory, as seen by rank 0 (or by every rank); nothing is printed."""
        numbers = {name: metric_value(name, value) for name, value in values.items()}
        if self.state.is_main_process or all_ranks:
            for name, value in numbers.items():
                self._reporter.metric(name, value, step=step)

    def plan_steps(self, optimizer_steps: int) -> None:
        """Say how many optimizer steps the whole training takes, for estimates of the remaining time."""
        self._reporter.event("planned_steps", optimizer_steps=optimizer_steps)

    def end_training(self) -> None:
        """Finish what is being saved, and close the process group in good order; no collective may follow.

        Raises:
            CheckpointError: the last save in the background failed.
        """
        try:
            self._saver.close()
        finally:
            self.state.destroy_process_group()
