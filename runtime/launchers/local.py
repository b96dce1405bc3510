"""The local launcher: torchrun's agent on this machine, owned by a detached supervisor."""

import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.order import LaunchSpec, RunKind
from ..config.plan import TrainingPlan
from ..env import DEVICE, MIXED_PRECISION, RUN_DIR, RUN_MARKER, SMOKE_STEPS, current_environment
from ..errors import LaunchError
from ..layout import RunLayout
from ..run_files import request_cancel
from .base import expand_arguments
from .process import start_detached
from .scheduled import Scheduled

_ENGINE = Path(__file__).with_name("torchrun_engine.py")


class LocalLauncher:
    """One node, this one."""

    def render(self, plan: TrainingPlan, layout: RunLayout, *, run_id: str, kind: RunKind) -> LaunchSpec:
        if plan.layout.num_nodes > 1:
            raise LaunchError(
                f"the local launcher on {plan.layout.num_nodes} nodes",
                allowed="one node",
                next_step="plan with num_nodes 1, or with a launcher of several nodes",
            )
        arguments = expand_arguments(plan.smoke.args if kind == "smoke" else plan.argv, layout)
        environment = {
            **run_environment(layout, run_id=run_id),
            "PYTHONDONTWRITEBYTECODE": "1",  # the code directory stays as it is
            DEVICE: plan.layout.device,
        }
        if plan.layout.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        if kind == "smoke":
            environment[SMOKE_STEPS] = str(plan.smoke.num_steps)
        for setting in plan.settings:
            if setting.name == "mixed_precision":
                environment[MIXED_PRECISION] = setting.value
        return LaunchSpec(
            argv=engine_command(
                plan.interpreter.executable,
                layout,
                num_processes=plan.layout.num_processes,
                target=[str(layout.code / plan.code.entry), *arguments],
            ),
            environment=environment,
            working_directory=str(layout.work),
        )

    def submit(self, layout: RunLayout) -> None:
        if not layout.launch.is_file():
            raise LaunchError(f"{layout.launch} is missing", next_step="write the order before submitting the run")
        start_detached(
            [sys.executable, "-I", "-m", "runtime.supervision.supervisor", str(layout.root.absolute())],
            environment={name: value for name, value in current_environment().items() if name != RUN_MARKER},
            working_directory=layout.root,
            log=layout.supervisor_log,
        )

    def cancel(self, layout: RunLayout, *, reason: str) -> None:
        request_cancel(layout, reason=reason)

    def poll(self, layout: RunLayout) -> Scheduled | None:
        """No batch system knows of it."""

    def requeue(self, layout: RunLayout) -> bool:  # noqa: ARG002  # of the protocol; there is no queue
        return False


def run_environment(layout: RunLayout, *, run_id: str) -> dict[str, str]:
    """What every job gets: its marker, its directory, and output that is written as it is printed."""
    return {RUN_MARKER: run_id, RUN_DIR: str(layout.root), "PYTHONUNBUFFERED": "1"}


def engine_command(
    python: str,
    layout: RunLayout,
    *,
    num_processes: int,
    target: list[str],
    port: int | None = None,
    grace_s: float = 10.0,
    is_module: bool = False,
    nodes: Sequence[str] = (),
) -> tuple[str, ...]:
    """The command line of the engine for a script (or module) and its arguments.

    Args:
        num_processes: on this node.
        nodes: the engine's options on several nodes.
    """
    options = ["--num-processes", str(num_processes), "--failures", str(layout.failures)]
    options += ["--scratch", str(layout.engine_scratch), "--grace", f"{grace_s:g}"]
    if port is not None:
        options += ["--port", str(port)]
    options += nodes
    if is_module:
        options.append("-m")
    return (python, str(_ENGINE), *options, "--", *target)
