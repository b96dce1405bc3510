"""What is recorded while training, and its end."""

import warnings

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
        self._say_how_schedules_ended()
        self._trackers.finish()
        try:
            self._saver.close()
        finally:
            self.state.destroy_process_group()

    def _say_how_schedules_ended(self) -> None:
        """A rate that was to fall over more steps than were taken has not fallen as planned."""
        for scheduler in self._prepared.schedulers:
            left = scheduler.left_of_its_horizon()
            if left and self.state.is_main_process and self._prepared.smoke is None:
                self._reporter.event("schedule_not_finished", state=left)
                warnings.warn(
                    f"the training ends far from its schedule's end: {left}; schedulers advance once per optimizer "
                    "step (not once per process), and Accelerator(scheduler_counts_processes=True) counts otherwise",
                    RuntimeWarning,
                    stacklevel=3,
                )
