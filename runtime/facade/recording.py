"""What is recorded while training, and its end."""

from .base import Duty


class RecordingDuty(Duty):
    """Records of the run, and the orderly end."""

    def plan_steps(self, optimizer_steps: int) -> None:
        """Say how many optimizer steps the whole training takes, for estimates of the remaining time."""
        self._reporter.event("planned_steps", optimizer_steps=optimizer_steps)

    def end_training(self) -> None:
        """Close trackers, finish what is being saved, and close the process group; no collective may follow.

        Raises:
            CheckpointError: the last save in the background failed.
        """
        self._trackers.finish()
        try:
            self._saver.close()
        finally:
            self.state.destroy_process_group()
