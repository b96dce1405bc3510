"""Whether a request still stands under the policy and the prices that count now, and which level it needs."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from runtime.config.order import CostLimit
from tools.domain.approval import ApprovalRequest, Assessment, AssuranceLevel
from tools.domain.budget import Reservation, plausible
from tools.domain.errors import Refused
from tools.domain.plan_state import PlanRecord
from tools.domain.ports import StoreMode

from .assess import Amounts, Facts, amounts, assess, exact, parts, plain
from .device_use import NOT_LOOKED_AT, DeviceUse
from .in_force import Holder, PolicyInForce, PricesInForce, policy_in_force, prices_in_force
from .model import LEVELS


@dataclass(frozen=True)
class Rules:
    """What counts at one moment, and in which kind of store."""

    policy: PolicyInForce
    prices: PricesInForce
    mode: StoreMode


@dataclass(frozen=True)
class Checked:
    """The least level, and every reason of the policy's why the request stands no longer."""

    required: AssuranceLevel
    reasons: tuple[str, ...] = ()


class Ruled(Holder, Protocol):
    """The part of the store that rules come from."""

    @property
    def mode(self) -> StoreMode: ...


def rules_of(store: Ruled, *, now_s: float) -> Rules:
    """What counts now."""
    return Rules(policy_in_force(store), prices_in_force(store, now_s=now_s), store.mode)


def facts_of(record: PlanRecord, prices: PricesInForce, use: DeviceUse = NOT_LOOKED_AT) -> Facts:
    """What is known of this plan.

    Raises:
        Refused: it is not settled.
    """
    if record.plan is None:
        raise Refused(f"plan {record.plan_id} is not settled", next_step="answer_questions")
    smoke = record.smoke
    passed = smoke is not None and smoke.verdict == "passed" and smoke.plan_digest == record.plan.digest
    return Facts(record.plan, record.estimate, passed, prices, use)


def check_request(record: PlanRecord, request: ApprovalRequest, rules: Rules) -> Checked:
    """Assess the plan again with the devices as they were when the human was asked."""
    if record.plan is None:
        return Checked(_least(None, rules.mode), ("the plan is not settled",))
    if request.policy_version != rules.policy.version:
        reason = f"the request was made under policy {request.policy_version}, in force is {rules.policy.version}"
        return Checked(_least(None, rules.mode), (reason, *rules.policy.notes))
    asked = request.assessment
    use = NOT_LOOKED_AT if asked is None else DeviceUse(asked.device_use, asked.device_words)
    found = assess(rules.policy, facts_of(record, rules.prices, use))
    reasons = () if asked is None else tuple(_changes(asked, found, rules))
    return Checked(_least(found.level, rules.mode), reasons)


def _changes(asked: Assessment, found: Assessment, rules: Rules) -> Iterator[str]:
    if asked.prices_version != found.prices_version:
        before, now = asked.prices_version or "none", found.prices_version or "none"
        yield f"the request was made under prices {before}, in force are {now}"
        yield from rules.prices.notes
    elif asked.model_copy(update={"notes": ()}) != found.model_copy(update={"notes": ()}):
        yield "what the request says of the policy is not what the policy says now: one of them was edited"
        yield from rules.policy.notes


def _least(level: AssuranceLevel | None, mode: StoreMode) -> AssuranceLevel:
    if mode == "simulated":
        return AssuranceLevel.SIMULATED
    return LEVELS[-1] if level is None else level


def reservation(
    record: PlanRecord,
    rules: Rules,
    *,
    reservation_id: str,
    now_s: float,
    expires_at_s: float,
    run_id: str | None = None,
) -> Reservation:
    """The most that this launch (of a sweep: all its runs) may use; with a run id it is a launch in the free tier."""
    facts = facts_of(record, rules.prices)
    found: Amounts = amounts(facts.plan, facts.estimate, rules.prices.prices)
    return Reservation(
        reservation_id=reservation_id,
        plan_id=record.plan_id,
        run_id=run_id,
        free=run_id is not None,
        project=facts.plan.code.origin,
        requester=record.requester,
        reserved_at_s=now_s,
        expires_at_s=expires_at_s,
        currency=found.currency,
        cost=None if found.cost is None else plain(found.cost),
        device_hours=plain(found.device_hours),
        hourly_rate=None if found.hourly_rate is None else plain(found.hourly_rate),
        num_processes=facts.plan.layout.num_processes,
    )


def shares(whole: Reservation, num_runs: int) -> list[Reservation]:
    """Of a sweep, what each run may use: equal parts of the whole, each settled by its own run."""
    if num_runs == 1:
        return [whole]
    hours = parts(Decimal(whole.device_hours), num_runs)
    costs = [None] * num_runs if whole.cost is None else [plain(p) for p in parts(Decimal(whole.cost), num_runs)]
    return [
        whole.model_copy(
            update={
                "reservation_id": share_id(whole.reservation_id, member),
                "cost": costs[member - 1],
                "device_hours": plain(hours[member - 1]),
            }
        )
        for member in range(1, num_runs + 1)
    ]


def share_id(request_id: str, member: int | None) -> str:
    """The id of what is reserved for this run."""
    return request_id if member is None else f"{request_id}.{member}"


def cost_limit(held: Reservation) -> CostLimit | None:
    """What the run's supervisor enforces; None if no price is known."""
    if held.cost is None or held.hourly_rate is None:
        return None
    return CostLimit(most=held.cost, hourly_rate=held.hourly_rate, currency=held.currency)


def settled(held: Reservation, *, elapsed_s: float | None, basis: str, now_s: float) -> Reservation:
    """With what the run did use; if nobody knows, what was reserved counts in full."""
    if elapsed_s is None or not plausible(elapsed_s):
        actual = {"actual_cost": held.cost, "actual_device_hours": held.device_hours}
        basis = f"{basis}; what was reserved counts in full"
    else:
        spent = held.spent_after(elapsed_s)
        hours = Decimal(repr(elapsed_s)) * held.num_processes / 3600
        actual = {
            "actual_cost": None if spent is None else plain(exact(spent)),
            "actual_device_hours": plain(exact(hours)),
        }
    return held.model_copy(update={**actual, "basis": basis, "settled_at_s": now_s})
