"""The dry launcher: shows what the local one would start, and starts nothing."""

from ..config.order import LaunchSpec, RunKind
from ..config.plan import TrainingPlan
from ..errors import LaunchError
from ..layout import RunLayout
from .local import LocalLauncher
from .scheduled import Scheduled


class DryLauncher:
    """For looking at a plan's command without a run."""

    def render(self, plan: TrainingPlan, layout: RunLayout, *, run_id: str, kind: RunKind) -> LaunchSpec:
        return LocalLauncher().render(plan, layout, run_id=run_id, kind=kind)

    def submit(self, layout: RunLayout) -> None:
        raise LaunchError(
            f"the dry launcher starts nothing (run directory {layout.root})",
            next_step="plan with launcher 'local' to run it",
        )

    def cancel(self, layout: RunLayout, *, reason: str) -> None:
        """Nothing runs, so nothing is to be stopped."""

    def poll(self, layout: RunLayout) -> Scheduled | None:
        """No batch system knows of it."""

    def requeue(self, layout: RunLayout) -> bool:  # noqa: ARG002  # of the protocol; there is no queue
        return False
