"""Procedure: the steps in their order, for every door. The order itself stands in tools.domain."""

from collections.abc import Sequence

from tools.domain.approval import ApprovalRequest
from tools.domain.findings import Answer
from tools.domain.ids import require_id
from tools.domain.reports import (
    ApiReport,
    CostEstimate,
    Diagnosis,
    EnvironmentReport,
    LogPage,
    ReportSummary,
    RunProgress,
    Verification,
)
from tools.domain.run_state import RunRecord
from tools.read_logs import TAIL, Stream
from tools.validate_inputs import InputRequest

from . import asking, concluding, following, listing, looking, settling, starting
from .asking import Asked
from .following import Status
from .listing import WorkPage
from .settling import Settled
from .starting import ApprovalRequired, Started
from .workplace import Workplace

__all__ = ["ApprovalRequired", "Asked", "Procedure", "Settled", "Started", "Status", "WorkPage"]


class Procedure:
    """Each method is one step; all of them may block and may be called from any thread."""

    def __init__(self, place: Workplace) -> None:
        self._place = place

    def inspect_environment(self, *, python: str, paths: Sequence[str]) -> EnvironmentReport:
        return looking.environment(self._place, python=python, paths=paths)

    def check_api(self, *, python: str, names: Sequence[str], script: str = "") -> ApiReport:
        return looking.api(self._place, python=python, names=names, script=script)

    def validate(self, request: InputRequest, *, base_plan_id: str = "", requester: str, plan_id: str = "") -> Settled:
        return settling.validate(self._place, request, base_plan_id=base_plan_id, requester=requester, plan_id=plan_id)

    def answer(self, plan_id: str, answers: Sequence[Answer]) -> Settled:
        return settling.answer(self._place, plan_id, answers)

    def smoke_test(self, plan_id: str) -> Started:
        return starting.smoke_test(self._place, plan_id)

    def estimate(self, plan_id: str) -> CostEstimate:
        return asking.estimate(self._place, plan_id)

    def request_approval(self, plan_id: str, reason: str) -> Asked:
        return asking.request_approval(self._place, plan_id, reason)

    def request(self, request_id: str) -> ApprovalRequest:
        return self._place.store.request(require_id(request_id, "req"))

    def launch(self, plan_id: str, member: int | None = None) -> Started | ApprovalRequired:
        return starting.launch_training(self._place, plan_id, member)

    def status(self, id_: str) -> Status:
        return following.status(self._place, id_)

    def look(self, id_: str) -> Status:
        """status without progress, cheap enough for polling."""
        return following.look(self._place, id_)

    def wait(self, id_: str, wait_s: float) -> Status:
        return following.wait(self._place, id_, wait_s)

    def run(self, run_id: str) -> RunRecord:
        return self._place.run(run_id)

    def progress(self, run_id: str) -> RunProgress:
        return following.run_progress(self._place, self._place.run(run_id))

    def logs(
        self,
        run_id: str,
        *,
        rank: int = 0,
        cursor: str = TAIL,
        pattern: str = "",
        max_lines: int = 40,
        stream: Stream = "stdout",
    ) -> LogPage:
        return following.logs(
            self._place, run_id, rank=rank, cursor=cursor, pattern=pattern, max_lines=max_lines, stream=stream
        )

    def cancel(self, run_id: str, actor: str) -> RunRecord:
        return following.cancel(self._place, run_id, actor)

    def abandon(self, run_id: str, actor: str) -> None:
        """cancel without waiting for the end."""
        following.cancel(self._place, run_id, actor, wait_s=0.0)

    def diagnose(self, run_id: str) -> Diagnosis:
        return following.diagnosis(self._place, run_id)

    def verify(self, run_id: str) -> Verification:
        return concluding.verify(self._place, run_id)

    def report(self, run_id: str, summary: str) -> ReportSummary:
        return concluding.report(self._place, run_id, summary)

    def list_work(self, *, kind: str = "", state: str = "", cursor: str = "") -> WorkPage:
        return listing.list_work(self._place, kind=kind, state=state, cursor=cursor)
