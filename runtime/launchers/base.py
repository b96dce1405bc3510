"""Launcher: how a run gets from a plan to processes. One implementation a file, found through the registry."""

from typing import Protocol

from ..config.order import LaunchSpec, RunKind
from ..config.plan import TrainingPlan
from ..layout import RunLayout
from .scheduled import Scheduled


class Launcher(Protocol):
    """Renders the command of a run, hands the run to its supervisor, asks the supervisor to stop."""

    def render(self, plan: TrainingPlan, layout: RunLayout, *, run_id: str, kind: RunKind) -> LaunchSpec:
        """What will be started; pure, so that it can be shown before and compared afterwards."""
        ...

    def submit(self, layout: RunLayout) -> None:
        """Hand over the run whose launch.json lies in the layout; a second call starts nothing more.

        Raises:
            LaunchError: there is no order, or no supervisor can be started.
        """
        ...

    def cancel(self, layout: RunLayout, *, reason: str) -> None:
        """Ask for the end of the run and come back at once; harmless when repeated or when the run has ended."""
        ...

    def poll(self, layout: RunLayout) -> Scheduled | None:
        """The run as a batch system sees it; None if there is no such system, or it does not know the run (any more).

        Raises:
            LaunchError: it cannot be asked.
        """
        ...

    def requeue(self, layout: RunLayout) -> bool:
        """Called by the run's supervisor, which then ends: whether it will be started again by the batch system."""
        ...


RUN_DIR_PLACEHOLDER = "{run_dir}"


def expand_arguments(arguments: tuple[str, ...], layout: RunLayout) -> list[str]:
    """The script's arguments with {run_dir} replaced by the run directory."""
    return [argument.replace(RUN_DIR_PLACEHOLDER, str(layout.root)) for argument in arguments]
