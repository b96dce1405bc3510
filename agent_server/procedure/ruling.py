"""The policy in the procedure: what it makes of a plan now, and what it lets through without a human."""

from collections.abc import Callable, Sequence
from decimal import Decimal

from agent_server.approvals.policy.assess import amounts, assess
from agent_server.approvals.policy.check import Rules, facts_of, rules_of
from agent_server.approvals.policy.device_use import device_use
from runtime.config.plan import ProcessLayout, TrainingPlan
from tools.domain.approval import Assessment
from tools.domain.errors import Refused
from tools.domain.plan_state import PlanRecord
from tools.domain.reports import CostEstimate, Device
from tools.evidence.prices import PriceList, cost_of

from .workplace import Workplace

_NO_ACCELERATOR = "cpu"


def rules(place: Workplace) -> Rules:
    """The policy and prices that count now."""
    return rules_of(place.store, now_s=place.now_s())


def assessment(
    record: PlanRecord, now: Rules, *, survey: Callable[[TrainingPlan], Sequence[Device]], free_today: int | None = None
) -> Assessment:
    """Which level the plan needs with the devices as they are used now.

    Args:
        free_today: launches in the free tier today; with it the free tier is asked too, and the level may be None.

    Raises:
        Refused: the plan is not settled.
    """
    facts = facts_of(record, now.prices)
    layout = facts.plan.layout
    seen = () if layout.device == _NO_ACCELERATOR else survey(facts.plan)
    facts = facts_of(record, now.prices, device_use(layout, seen))
    return assess(now.policy, facts, free_today=free_today)


def require_small_smoke_run(plan: TrainingPlan, now: Rules) -> None:
    """Smoke runs are free within limits.

    Raises:
        Refused: this one is beyond them.
    """
    hours = Decimal(repr(plan.smoke.wall_time_s)) * plan.layout.num_processes / 3600
    for policy in (now.policy.policy, now.policy.floor):
        if policy is None:
            continue
        limits = policy.smoke_runs
        over = Decimal(repr(plan.smoke.wall_time_s)) > limits.max_wall_time_s or hours > limits.max_device_hours
        if over:
            raise Refused(
                f"the smoke run may take {plan.smoke.wall_time_s:g} s on {plan.layout.num_processes} process(es), "
                f"{hours:.2f} device hours",
                allowed=f"up to {limits.max_wall_time_s} s and {limits.max_device_hours} device hours without approval",
                next_step="validate_inputs with base_plan_id and a smaller smoke_wall_time_s",
            )


def require_enforceable_cost(record: PlanRecord, now: Rules) -> None:
    """A ceiling of cost that no supervisor could enforce is none.

    Raises:
        Refused: the plan has one, and its cost is unknown.
    """
    if record.plan is None or record.plan.ceilings.cost is None:
        return
    found = amounts(record.plan, record.estimate, now.prices.prices)
    if found.cost is None:
        raise Refused(
            f"max_cost {record.plan.ceilings.cost:g} cannot be enforced: the cost is {found.words()}",
            next_step="ask the user to apply a price list, or validate_inputs with base_plan_id and without max_cost",
        )


def estimate_is_current(estimate: CostEstimate, layout: ProcessLayout, prices: PriceList | None) -> bool:
    """Whether the prices that count now give the cost that the estimate says."""
    price = prices.price_for(layout) if prices else None
    if prices is None or price is None or estimate.wall_time_s is None:
        return estimate.cost is None
    cost = cost_of(estimate.wall_time_s.value / 3600, layout=layout, price=price)
    return estimate.cost is not None and estimate.cost.value == cost and estimate.currency == prices.currency
