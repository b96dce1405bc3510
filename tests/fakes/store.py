"""MemoryStore: tools.domain.ports.Store in dictionaries, with the same promises, for tests of the procedure."""

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from tools.domain.approval import Approval, ApprovalRequest, ApproverKey, AuditRecord
from tools.domain.errors import Conflict, NotFound, Refused
from tools.domain.plan_state import PlanRecord, PlanState
from tools.domain.ports import PastEstimate
from tools.domain.run_state import RunRecord, RunState

T = TypeVar("T")


class MemoryStore:
    """Everything in memory; one lock makes each change atomic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._plans: dict[str, PlanRecord] = {}
        self._requests: dict[str, ApprovalRequest] = {}
        self._approvals: dict[str, Approval] = {}
        self._runs: dict[str, RunRecord] = {}
        self._actuals: dict[str, PastEstimate] = {}
        self._keys: dict[str, ApproverKey] = {}
        self._audit: list[AuditRecord] = []

    # -- plans -----------------------------------------------------------------------------------------------------

    def add_plan(self, record: PlanRecord) -> None:
        with self._lock:
            if record.plan_id in self._plans:
                raise Conflict(f"plan {record.plan_id} exists")
            self._plans[record.plan_id] = record
            self._log(record.requester, "plan_added", record.plan_id)

    def plan(self, plan_id: str) -> PlanRecord:
        with self._lock:
            return _found(self._plans, plan_id, "plan")

    def save_plan(self, record: PlanRecord, *, expect: PlanState) -> None:
        with self._lock:
            if self.plan(record.plan_id).state is not expect:
                raise Conflict(f"plan {record.plan_id} is no longer {expect.value}")
            self._plans[record.plan_id] = record
            self._log(record.requester, "plan_saved", record.plan_id)

    def plans(self, *, limit: int, before: str | None = None) -> Sequence[PlanRecord]:
        with self._lock:
            return _page(self._plans, limit, before)

    # -- requests and approvals ------------------------------------------------------------------------------------

    def add_request(self, request: ApprovalRequest, *, plan: PlanRecord) -> None:
        with self._lock:
            self._requests[request.request_id] = request
            self._plans[plan.plan_id] = plan
            self._log(request.requester, "requested", request.request_id)

    def request(self, request_id: str) -> ApprovalRequest:
        with self._lock:
            return _found(self._requests, request_id, "request")

    def request_for_plan(self, plan_id: str) -> ApprovalRequest | None:
        with self._lock:
            return next((r for r in reversed(self._requests.values()) if r.plan_id == plan_id), None)

    def requests(self, *, limit: int) -> Sequence[ApprovalRequest]:
        with self._lock:
            return _page(self._requests, limit, None)

    def approval(self, request_id: str) -> Approval | None:
        with self._lock:
            return self._approvals.get(request_id)

    def add_decision(self, approval: Approval, *, plan: PlanRecord) -> None:
        with self._lock:
            if approval.decision.request_id in self._approvals:
                raise Conflict(f"request {approval.decision.request_id} is decided")
            self._approvals[approval.decision.request_id] = approval
            self._plans[plan.plan_id] = plan
            self._log(approval.decision.approver, approval.decision.decision, approval.decision.request_id)

    def consume_approval(self, request_id: str, run: RunRecord) -> RunRecord:
        with self._lock:
            approval = self._approvals.get(request_id)
            if approval is None:
                raise Refused(f"request {request_id} is not approved")
            if approval.used_by is not None:
                return self.run(approval.used_by)
            self._approvals[request_id] = approval.model_copy(update={"used_by": run.run_id})
            self._runs[run.run_id] = run
            plan = self.plan(run.plan_id)
            self._plans[run.plan_id] = plan.model_copy(update={"state": PlanState.LAUNCHED})
            self._log("server", "launching", run.run_id)
            return run

    # -- runs ------------------------------------------------------------------------------------------------------

    def add_run(self, run: RunRecord) -> RunRecord:
        with self._lock:
            for other in self._runs.values():
                if other.plan_id == run.plan_id and other.kind == run.kind and not other.ended:
                    return other
            self._runs[run.run_id] = run
            self._log("server", "launching", run.run_id)
            return run

    def run(self, run_id: str) -> RunRecord:
        with self._lock:
            return _found(self._runs, run_id, "run")

    def save_run(self, run: RunRecord, *, expect: RunState) -> None:
        with self._lock:
            if self.run(run.run_id).state is not expect:
                raise Conflict(f"run {run.run_id} is no longer {expect.value}")
            self._runs[run.run_id] = run
            self._log("server", "run_saved", run.run_id)

    def runs(self, *, limit: int, before: str | None = None, plan_id: str | None = None) -> Sequence[RunRecord]:
        with self._lock:
            page = _page(self._runs, len(self._runs), before)
            return [r for r in page if plan_id in (None, r.plan_id)][:limit]

    def open_runs(self) -> Sequence[RunRecord]:
        with self._lock:
            return [
                r
                for r in self._runs.values()
                if r.state in (RunState.LAUNCHING, RunState.RUNNING) or (r.state is RunState.LOST and r.result is None)
            ]

    def past_estimates(self, *, limit: int = 200) -> Sequence[PastEstimate]:
        with self._lock:
            return list(self._actuals.values())[-limit:]

    def add_actual(self, past: PastEstimate, *, run_id: str) -> None:
        with self._lock:
            self._actuals.setdefault(run_id, past)

    # -- keys and the log ------------------------------------------------------------------------------------------

    def keys(self) -> Sequence[ApproverKey]:
        with self._lock:
            return list(self._keys.values())

    def add_key(self, key: ApproverKey) -> None:
        with self._lock:
            self._keys[key.key_id] = key
            self._log(key.approver, "key_added", key.key_id)

    def audit_log(self) -> Sequence[AuditRecord]:
        with self._lock:
            return list(self._audit)

    def append_audit(self, *, actor: str, event: str, subject: str, details: dict[str, object]) -> AuditRecord:
        with self._lock:
            return self._log(actor, event, subject, details)

    def latest_time_s(self) -> float:
        with self._lock:
            return self._audit[-1].time_s if self._audit else 0.0

    def _log(self, actor: str, event: str, subject: str, details: dict[str, object] | None = None) -> AuditRecord:
        previous = self._audit[-1].hash if self._audit else "0" * 64
        body = {
            "sequence": len(self._audit) + 1,
            "time_s": self._clock(),
            "actor": actor,
            "event": event,
            "subject": subject,
            "details": details or {},
            "previous": previous,
        }
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        record = AuditRecord.model_validate(body | {"hash": digest})
        self._audit.append(record)
        return record


def _found(rows: dict[str, T], key: str, what: str) -> T:
    if key not in rows:
        raise NotFound(f"no {what} {key!r}", next_step="list_work shows the ids")
    return rows[key]


def _page(rows: dict[str, T], limit: int, before: str | None) -> list[T]:
    keys = list(reversed(rows))
    if before is not None and before in rows:
        keys = keys[keys.index(before) + 1 :]
    return [rows[key] for key in keys[:limit]]
