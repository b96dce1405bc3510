"""SqlStore: every record and the audit log in one SQL database, every change with its audit row in one transaction."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from agent_server.approvals.policy import require_level_for_mode
from agent_server.approvals.policy.check import reservation
from runtime.config.plan import Frozen
from tools.domain.approval import Approval, ApprovalRequest, Assessment
from tools.domain.errors import Conflict, Refused
from tools.domain.plan_state import PlanRecord, PlanState, require_transition
from tools.domain.ports import PastEstimate, StoreMode, WorkKind, WorkLine
from tools.domain.reports import CostEstimate
from tools.domain.run_state import RunRecord, RunState, require_run_transition

from . import integrity, launching, reservations, tables
from .approvers import ApproverRecords
from .engine import Database
from .find import find_approval, find_plan, find_request, find_run, sequence_of, store_mode
from .ledger import Entry
from .listing import work_lines
from .rows import from_body, maybe_body, newest_first
from .schema import VERSIONS, bring_up_to_date

_SERVER = "server"


class SqlStore(ApproverRecords):
    """The Store of tools.domain.ports over SQLAlchemy.

    Args:
        url: SQLAlchemy URL; the database is created or migrated here.
        clock: seconds since the epoch.
        busy_timeout_s: how long to wait for another process's lock.
        create_as: the mode of a database that does not exist yet; an existing one keeps its own.

    Raises:
        StoreUnavailable: it cannot be opened; says why.
        ConfigurationError: a network file system, a newer schema, a foreign database.
    """

    def __init__(
        self, url: str, *, clock: Callable[[], float], busy_timeout_s: float = 10.0, create_as: StoreMode = "normal"
    ) -> None:
        super().__init__(Database(url, busy_timeout_s=busy_timeout_s), clock=clock)
        bring_up_to_date(self._database, on_create=lambda connection: self._create(connection, create_as))

    def close(self) -> None:
        """Close every connection; a later use opens new ones."""
        self._database.close()

    @property
    def mode(self) -> StoreMode:
        with self._database.read() as connection:
            return store_mode(connection)

    @property
    def identity(self) -> str:
        return self._database.identity

    # Plans

    def add_plan(self, record: PlanRecord) -> None:
        with self._database.write() as connection:
            self._ledger.add(
                connection,
                tables.plans.c.plan_id,
                record,
                Entry(record.requester, "plan_added", _plan_facts(record)),
                plan_id=record.plan_id,
                state=record.state.value,
            )

    def plan(self, plan_id: str) -> PlanRecord:
        with self._database.read() as connection:
            return find_plan(connection, plan_id)

    def save_plan(self, record: PlanRecord, *, expect: PlanState) -> None:
        with self._database.write() as connection:
            self._save_plan(connection, record, expect=expect, actor=record.requester)

    def plans(self, *, limit: int, before: str | None = None) -> Sequence[PlanRecord]:
        with self._database.read() as connection:
            since = sequence_of(connection, tables.plans.c.plan_id, before, what="plan")
            bodies = connection.execute(newest_first(tables.plans, limit=limit, before=since)).scalars()
            return [from_body(PlanRecord, body, what="a plan") for body in bodies]

    def open_plans(self) -> Sequence[PlanRecord]:
        states = [PlanState.REQUESTED.value, PlanState.APPROVED.value]
        query = select(tables.plans.c.body).where(tables.plans.c.state.in_(states)).order_by(tables.plans.c.sequence)
        with self._database.read() as connection:
            return [from_body(PlanRecord, body, what="a plan") for body in connection.execute(query).scalars()]

    def work(self, kind: WorkKind, *, limit: int) -> Sequence[WorkLine]:
        with self._database.read() as connection:
            return work_lines(connection, kind, limit=limit)

    # Requests and decisions

    def add_request(self, request: ApprovalRequest, *, plan: PlanRecord) -> None:
        with self._database.write() as connection:
            current = find_plan(connection, plan.plan_id)
            if PlanState.REQUESTED is current.state:
                raise Conflict(
                    f"plan {plan.plan_id} has an open request already",
                    next_step="show the human the command of that request",
                )
            if current.plan_digest != request.plan_digest:
                raise Conflict(f"plan {plan.plan_id} changed in between", next_step="read it again")
            saved = plan.model_copy(update={"state": PlanState.REQUESTED})
            facts = {"plan_id": request.plan_id, "request_digest": request.digest, "expires_at_s": request.expires_at_s}
            self._ledger.add(
                connection,
                tables.requests.c.request_id,
                request,
                Entry(request.requester, "requested", facts),
                request_id=request.request_id,
                plan_id=request.plan_id,
            )
            self._save_plan(connection, saved, expect=current.state, actor=request.requester)

    def request(self, request_id: str) -> ApprovalRequest:
        with self._database.read() as connection:
            return find_request(connection, request_id)

    def request_for_plan(self, plan_id: str) -> ApprovalRequest | None:
        query = newest_first(tables.requests, limit=1).where(tables.requests.c.plan_id == plan_id)
        with self._database.read() as connection:
            body = connection.execute(query).scalar()
            return None if body is None else from_body(ApprovalRequest, body, what=f"the request of {plan_id}")

    def requests(self, *, limit: int) -> Sequence[ApprovalRequest]:
        with self._database.read() as connection:
            bodies = connection.execute(newest_first(tables.requests, limit=limit)).scalars()
            return [from_body(ApprovalRequest, body, what="a request") for body in bodies]

    def approval(self, request_id: str) -> Approval | None:
        with self._database.read() as connection:
            return find_approval(connection, request_id)

    def add_decision(self, approval: Approval, *, plan: PlanRecord) -> None:
        decision = approval.decision
        with self._database.write() as connection:
            require_level_for_mode(decision.level, mode=store_mode(connection))
            request = find_request(connection, decision.request_id)
            earlier = find_approval(connection, decision.request_id)
            if earlier is not None:
                raise Conflict(
                    f"request {request.request_id} is decided already: {earlier.decision.decision} "
                    f"by {earlier.decision.approver}",
                    next_step="the agent makes a new request",
                )
            state = PlanState.APPROVED if decision.decision == "approve" else PlanState.REFUSED
            facts: dict[str, Any] = {
                "plan_id": request.plan_id,
                "decision": decision.decision,
                "level": decision.level.value,
                "key_id": decision.key_id,
                "request_digest": decision.request_digest,
                "shown_digest": decision.shown_digest,
                "accepted_not_shown": list(decision.accepted_not_shown),
            }
            self._ledger.add(
                connection,
                tables.approvals.c.request_id,
                approval,
                Entry(decision.approver, state.value, facts),
                request_id=decision.request_id,
                used_by=None,
            )
            if state is PlanState.APPROVED:
                self._reserve(connection, request, actor=decision.approver)
            saved = plan.model_copy(update={"state": state})
            self._save_plan(connection, saved, expect=PlanState.REQUESTED, actor=decision.approver)

    def consume_approval(self, request_id: str, run: RunRecord) -> RunRecord:
        with self._database.write() as connection:
            request = find_request(connection, request_id)
            approval = find_approval(connection, request_id)
            earlier = None if approval is None else approval.run_for(run.member)
            if earlier is not None:
                return find_run(connection, earlier)
            record, approval, held = launching.require_launchable(
                connection,
                request,
                approval,
                run,
                now_s=self._now_s(connection),
                clock_s=self._clock(),
                identity=self.identity,
                memory=self._memory,
            )
            run = run.model_copy(update={"request_id": request_id})
            used: dict[str, Any] = {"used_by": run.run_id}
            facts: dict[str, Any] = {"run_id": run.run_id, "plan_digest": run.plan_digest}
            if run.member is not None:
                used = {"used_for": {**approval.used_for, str(run.member): run.run_id}}
                facts["member"] = run.member
            self._ledger.change(
                connection,
                tables.approvals.c.request_id,
                approval.model_copy(update=used),
                Entry(record.requester, "approval_used", facts),
                request_id=request_id,
                used_by=used.get("used_by"),
            )
            reservations.take(connection, self._ledger, held, run, actor=record.requester)
            if run.member is not None and not approval.used_for:
                reservations.extend(connection, self._ledger, request, actor=record.requester)
            self._launch(connection, run, record)
            return run

    def launch_free(self, run: RunRecord, *, assessment: Assessment) -> RunRecord:
        with self._database.write() as connection:
            earlier = connection.execute(
                select(tables.runs.c.body).where(tables.runs.c.plan_id == run.plan_id, tables.runs.c.kind == "full")
            ).scalar()
            if earlier is not None:
                return from_body(RunRecord, earlier, what="a run")
            now_s = self._now_s(connection)
            record, held, rules = launching.require_free(
                connection, run, assessment=assessment, now_s=now_s, memory=self._memory
            )
            actor = record.requester
            reservations.reserve(
                connection, self._ledger, held, rules=rules, actor=actor, now_s=now_s, memory=self._memory
            )
            facts = {"run_id": run.run_id, "policy": rules.policy.version}
            self._ledger.append(connection, Entry(actor, "launched_without_approval", facts), subject=run.plan_id)
            self._launch(connection, run, record)
            return run

    # Runs

    def add_run(self, run: RunRecord) -> RunRecord:
        with self._database.write() as connection:
            body = connection.execute(
                select(tables.runs.c.body).where(
                    tables.runs.c.plan_id == run.plan_id,
                    tables.runs.c.kind == run.kind,
                    tables.runs.c.state.in_([RunState.LAUNCHING.value, RunState.RUNNING.value]),
                )
            ).scalar()
            if body is not None:
                return from_body(RunRecord, body, what="a run")
            record = find_plan(connection, run.plan_id)
            if run.kind != "smoke":
                raise Refused(f"a {run.kind} run without an approval", allowed="smoke runs alone start without one")
            self._insert_run(connection, run, actor=record.requester)
            return run

    def run(self, run_id: str) -> RunRecord:
        with self._database.read() as connection:
            return find_run(connection, run_id)

    def save_run(self, run: RunRecord, *, expect: RunState, elapsed_s: float | None = None) -> None:
        with self._database.write() as connection:
            current = find_run(connection, run.run_id)
            if current == run:
                return
            if current.state is not expect:
                raise Conflict(f"run {run.run_id} is {current.state.value} by now, not {expect.value}")
            if run.state is not expect:
                require_run_transition(current, run.state)
            facts = {"state": run.state.value, "reason": run.reason}
            self._ledger.change(
                connection,
                tables.runs.c.run_id,
                run,
                Entry(_SERVER, "run_saved", facts),
                run_id=run.run_id,
                state=run.state.value,
            )
            reservations.settle(connection, self._ledger, run, elapsed_s=elapsed_s, now_s=self._now_s(connection))

    def runs(self, *, limit: int, before: str | None = None, plan_id: str | None = None) -> Sequence[RunRecord]:
        with self._database.read() as connection:
            since = sequence_of(connection, tables.runs.c.run_id, before, what="run")
            query = newest_first(tables.runs, limit=limit, before=since)
            if plan_id is not None:
                query = query.where(tables.runs.c.plan_id == plan_id)
            return [from_body(RunRecord, body, what="a run") for body in connection.execute(query).scalars()]

    def open_runs(self) -> Sequence[RunRecord]:
        states = [RunState.LAUNCHING.value, RunState.RUNNING.value, RunState.LOST.value]
        query = select(tables.runs.c.body).where(tables.runs.c.state.in_(states)).order_by(tables.runs.c.sequence)
        with self._database.read() as connection:
            found = [from_body(RunRecord, body, what="a run") for body in connection.execute(query).scalars()]
        return [run for run in found if run.state is not RunState.LOST or run.result is None]

    # Estimates

    def past_estimates(self, *, limit: int = 200) -> Sequence[PastEstimate]:
        with self._database.read() as connection:
            bodies = connection.execute(newest_first(tables.actuals, limit=limit)).scalars()
            found = [from_body(_Actual, body, what="a past estimate") for body in bodies]
        return [PastEstimate(a.estimate, a.actual_wall_time_s, a.actual_memory_bytes) for a in found]

    def add_actual(self, past: PastEstimate, *, run_id: str) -> None:
        actual = _Actual(
            estimate=past.estimate,
            actual_wall_time_s=past.actual_wall_time_s,
            actual_memory_bytes=past.actual_memory_bytes,
        )
        with self._database.write() as connection:
            if maybe_body(connection, tables.actuals.c.run_id, run_id) is not None:
                return
            find_run(connection, run_id)
            facts = {"wall_time_s": past.actual_wall_time_s, "memory_bytes": past.actual_memory_bytes}
            entry = Entry(_SERVER, "actual_added", facts)
            self._ledger.add(connection, tables.actuals.c.run_id, actual, entry, run_id=run_id)

    # Within one transaction

    def _create(self, connection: Connection, mode: StoreMode) -> None:
        rows = [{"name": integrity.MODE, "value": mode}, {"name": integrity.HEAD, "value": "0:"}]
        connection.execute(insert(tables.meta), rows)
        facts = {integrity.MODE: mode, "schema": VERSIONS[-1]}
        self._ledger.append(connection, Entry(_SERVER, integrity.CREATED, facts), subject="store")

    def _save_plan(self, connection: Connection, record: PlanRecord, *, expect: PlanState, actor: str) -> None:
        current = find_plan(connection, record.plan_id)
        if current == record:
            return
        if current.state is not expect:
            raise Conflict(
                f"plan {record.plan_id} is {current.state.value} by now, not {expect.value}",
                next_step="read the plan again",
            )
        if record.state is not expect:
            require_transition(current, record.state)
        self._write_plan(connection, record, actor=actor)

    def _write_plan(self, connection: Connection, record: PlanRecord, *, actor: str) -> None:
        self._ledger.change(
            connection,
            tables.plans.c.plan_id,
            record,
            Entry(actor, "plan_saved", _plan_facts(record)),
            plan_id=record.plan_id,
            state=record.state.value,
        )

    def _reserve(self, connection: Connection, request: ApprovalRequest, *, actor: str) -> None:
        now_s = self._now_s(connection)
        rules = launching.current_rules(connection, now_s=now_s)
        record = find_plan(connection, request.plan_id)
        new = reservation(
            record, rules, reservation_id=request.request_id, now_s=now_s, expires_at_s=request.expires_at_s
        )
        num_runs = record.plan.num_runs if record.plan else 1
        reservations.reserve(
            connection, self._ledger, new, rules=rules, actor=actor, now_s=now_s, memory=self._memory, num_runs=num_runs
        )

    def _launch(self, connection: Connection, run: RunRecord, record: PlanRecord) -> None:
        self._insert_run(connection, run, actor=record.requester)
        if record.state is PlanState.LAUNCHED:
            return  # a further run of a sweep
        launched = record.model_copy(update={"state": PlanState.LAUNCHED})
        self._write_plan(connection, launched, actor=record.requester)

    def _insert_run(self, connection: Connection, run: RunRecord, *, actor: str) -> None:
        facts = {"plan_id": run.plan_id, "plan_digest": run.plan_digest, "kind": run.kind, "state": run.state.value}
        self._ledger.add(
            connection,
            tables.runs.c.run_id,
            run,
            Entry(actor, "run_added", facts),
            run_id=run.run_id,
            plan_id=run.plan_id,
            kind=run.kind,
            state=run.state.value,
        )


class _Actual(Frozen):
    estimate: CostEstimate
    actual_wall_time_s: float
    actual_memory_bytes: int | None


def _plan_facts(record: PlanRecord) -> dict[str, Any]:
    return {"state": record.state.value, "plan_digest": record.plan_digest}
