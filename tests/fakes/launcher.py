"""A launcher whose supervisor is the test itself: it claims the run at once, and ends it when it is told to."""

import time

from runtime.config.order import LaunchSpec, ResultState, RunKind, RunResult
from runtime.config.plan import TrainingPlan
from runtime.launchers.scheduled import Scheduled
from runtime.layout import RunLayout
from runtime.run_files import claim_run, read_order, request_cancel, write_model


class TestLauncher:
    """Implements runtime.launchers.base.Launcher. `claims` may be turned off: then nobody takes the run."""

    __test__ = False

    def __init__(self) -> None:
        self.claims = True
        self.scheduled: Scheduled | None = None
        self.error: BaseException | None = None
        self.submitted: list[str] = []
        self.owned: list[str] = []

    def render(self, plan: TrainingPlan, layout: RunLayout, *, run_id: str, kind: RunKind) -> LaunchSpec:
        arguments = plan.smoke.args if kind == "smoke" else plan.argv
        argv = (plan.interpreter.executable, str(layout.code / plan.code.entry), *arguments)
        return LaunchSpec(argv=argv, environment={}, working_directory=str(layout.work))

    def submit(self, layout: RunLayout) -> None:
        self.submitted.append(layout.root.name)
        if self.error is not None:
            raise self.error
        if self.claims and claim_run(layout):
            self.owned.append(layout.root.name)

    def cancel(self, layout: RunLayout, *, reason: str) -> None:
        request_cancel(layout, reason=reason)
        if layout.root.name in self.owned:
            end_run(layout, "cancelled", reason=reason)

    def poll(self, layout: RunLayout) -> Scheduled | None:
        return self.scheduled

    def requeue(self, layout: RunLayout) -> bool:
        return False


def end_run(layout: RunLayout, state: ResultState = "succeeded", *, reason: str = "", elapsed_s: float = 2.0) -> None:
    """Write the supervisor's last word."""
    order = read_order(layout)
    assert order is not None
    now_s = time.time()
    result = RunResult(
        run_id=order.run_id,
        state=state,
        reason=reason or state,
        exit_code=0 if state == "succeeded" else 1,
        started_at_s=now_s - elapsed_s,
        ended_at_s=now_s,
        elapsed_s=elapsed_s,
        disk_bytes=10,
        peak_memory_bytes=1000,
    )
    write_model(layout.result, result)
