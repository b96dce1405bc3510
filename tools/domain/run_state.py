"""RunRecord and its state machine."""

from enum import StrEnum

from runtime.config.order import RunKind, RunResult
from runtime.config.plan import Frozen

from .errors import WrongStep
from .reports import ReportSummary, Verification


class RunState(StrEnum):
    LAUNCHING = "launching"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STOPPED_AT_LIMIT = "stopped_at_limit"
    LOST = "lost"


ENDED = frozenset({RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED, RunState.STOPPED_AT_LIMIT, RunState.LOST})
_AFTER: dict[RunState, frozenset[RunState]] = {
    RunState.LAUNCHING: frozenset({RunState.RUNNING}) | ENDED,
    RunState.RUNNING: ENDED,
    # A result.json that turns up after all is better evidence than a missing heartbeat.
    RunState.LOST: ENDED - {RunState.LOST},
}


class RunRecord(Frozen):
    """One run as the store keeps it. `run_dir` is absolute; the files in it are the truth, this row follows them.

    `member`: of a sweep, which of the plan's argument sets it carries out, the first being 1.
    """

    run_id: str
    plan_id: str
    plan_digest: str
    kind: RunKind
    state: RunState
    run_dir: str
    created_at_s: float
    request_id: str | None = None
    member: int | None = None
    result: RunResult | None = None
    reason: str = ""
    verification: Verification | None = None
    report: ReportSummary | None = None

    @property
    def ended(self) -> bool:
        return self.state in ENDED


def require_run_transition(record: RunRecord, target: RunState) -> None:
    """Raise WrongStep unless `record` may go to `target`."""
    if target in _AFTER.get(record.state, frozenset()):
        return
    raise WrongStep(
        f"run {record.run_id} is {record.state.value} and cannot become {target.value}",
        next_step="monitor_run shows the run as it is",
    )
