"""What every step of the procedure works with, and the records as they are now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_server.reconciler import Reconciler
from agent_server.settings import Settings
from runtime.config.order import RunKind
from runtime.config.plan import MOST_SWEEP_RUNS, TrainingPlan
from runtime.launchers.base import Launcher
from runtime.layout import RunLayout
from tools.domain.errors import WrongStep
from tools.domain.ids import require_id
from tools.domain.paths import AllowedRoots
from tools.domain.plan_state import NEXT_TOOL, PlanRecord
from tools.domain.ports import Store
from tools.domain.reports import Device
from tools.domain.run_state import RunRecord
from tools.machine import machine_limits, survey_devices


def see_devices(plan: TrainingPlan) -> Sequence[Device]:
    """What the driver tells of every device; none on a machine without one."""
    return survey_devices(plan.environment, machine_limits()).devices


@dataclass(frozen=True)
class Workplace:
    """The collaborators of the procedure. `clock` gives seconds since the epoch.

    Attributes:
        claim_wait_s: how long a launch waits for a supervisor to take the run before it answers anyway.
        survey: the devices as they are used now, in the plan's environment.
    """

    store: Store
    settings: Settings
    roots: AllowedRoots
    clock: Callable[[], float]
    reconciler: Reconciler
    launchers: Callable[[str], Launcher]
    claim_wait_s: float = 8.0
    survey: Callable[[TrainingPlan], Sequence[Device]] = see_devices

    def now_s(self) -> float:
        """Never earlier than the audit log's last entry: a clock set back revives nothing."""
        return max(self.clock(), self.store.latest_time_s())

    def plan(self, plan_id: str) -> PlanRecord:
        """The plan after its open runs and its request were looked at.

        Raises:
            InvalidInput: not the form of a plan id.
            NotFound: no such plan.
        """
        require_id(plan_id, "plan")
        self.store.plan(plan_id)
        for run in self.store.runs(limit=MOST_SWEEP_RUNS + 50, plan_id=plan_id):
            self.reconciler.reconcile(run)
        return self.reconciler.expire(self.store.plan(plan_id))

    def run(self, run_id: str) -> RunRecord:
        """The run as its directory shows it now.

        Raises:
            InvalidInput: not the form of a run id.
            NotFound: no such run.
        """
        return self.reconciler.reconcile(self.store.run(require_id(run_id, "run")))

    def run_of(self, plan_id: str, kind: RunKind) -> RunRecord | None:
        """The newest run of this kind for this plan."""
        runs = self.store.runs(limit=MOST_SWEEP_RUNS + 50, plan_id=plan_id)
        return next((run for run in runs if run.kind == kind), None)


def layout_of(run: RunRecord) -> RunLayout:
    """The files of this run."""
    return RunLayout(Path(run.run_dir))


def require_plan(record: PlanRecord, step: str) -> None:
    """Raise WrongStep if questions of this plan are still open."""
    if record.plan is None:
        raise WrongStep(
            f"plan {record.plan_id} is {record.state.value}: {len(record.questions)} questions are open, "
            f"so {step} cannot start",
            allowed="a plan whose inputs are settled",
            next_step=NEXT_TOOL[record.state],
        )
