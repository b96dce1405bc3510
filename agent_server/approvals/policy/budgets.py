"""Budgets: what is reserved and spent by day, project and requester, in exact decimals, and whether more fits."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from tools.domain.budget import Reservation

from .assess import plain, utc_day
from .in_force import PolicyInForce
from .model import Budget, Policy

_DAY_S = 86_400
Scope = Literal["day", "project", "requester"]


@dataclass(frozen=True)
class Used:
    """The sums in one scope. `uncounted`: launches whose cost is unknown or in another currency."""

    cost: Decimal
    device_hours: Decimal
    uncounted: int


def counts_now(reservation: Reservation, *, now_s: float) -> bool:
    """An approval that was never used and has expired holds nothing any more: it cannot launch."""
    return reservation.settled or reservation.run_id is not None or now_s < reservation.expires_at_s


def used(
    others: Sequence[Reservation], new: Reservation, *, scope: Scope, budget: Budget, currency: str | None, now_s: float
) -> Used:
    """What stands against `budget` in the scope that `new` belongs to, without `new` itself."""
    cost, hours, uncounted = Decimal(0), Decimal(0), 0
    for other in others:
        if other.reservation_id == new.reservation_id or not counts_now(other, now_s=now_s):
            continue
        if not _same_scope(other, new, scope) or _too_old(other, budget, now_s=now_s):
            continue
        hours += Decimal(other.actual_device_hours if other.actual_device_hours is not None else other.device_hours)
        amount = other.actual_cost if other.settled else other.cost
        if amount is None or (other.currency != currency and Decimal(amount) != 0):
            uncounted += 1
        else:
            cost += Decimal(amount)
    return Used(cost, hours, uncounted)


def has_budgets(in_force: PolicyInForce) -> bool:
    """Whether anything is budgeted at all."""
    policies = [in_force.policy] if in_force.floor is None else [in_force.policy, in_force.floor]
    return any(True for policy in policies for _ in policy.budgets.set())


def budget_refusals(
    in_force: PolicyInForce, others: Sequence[Reservation], new: Reservation, *, now_s: float
) -> list[str]:
    """Every budget that `new` does not fit into; empty if it fits."""
    policies = [in_force.policy] if in_force.floor is None else [in_force.policy, in_force.floor]
    return [words for policy in policies for words in _refusals(policy, others, new, now_s=now_s)]


def budget_lines(
    in_force: PolicyInForce, others: Sequence[Reservation], new: Reservation, *, now_s: float
) -> list[str]:
    """How full each budget is, and what `new` adds, for humans."""
    policy = in_force.policy if in_force.floor is None else in_force.floor
    lines = []
    for scope, budget in policy.budgets.set():
        found = used(others, new, scope=scope, budget=budget, currency=policy.currency, now_s=now_s)
        parts = []
        if budget.cost is not None:
            adds = "unknown" if new.cost is None else plain(Decimal(new.cost))
            parts.append(f"{plain(found.cost)} of {plain(budget.cost)} {policy.currency} used, this adds {adds}")
        if budget.device_hours is not None:
            adds = plain(Decimal(new.device_hours))
            parts.append(f"{plain(found.device_hours)} of {plain(budget.device_hours)} device hours used, adds {adds}")
        if found.uncounted and budget.cost is not None:
            parts.append(f"{found.uncounted} launch(es) of unknown cost or another currency are not counted")
        lines.append(f"{_name(scope, new, budget)}: {'; '.join(parts)}")
    return lines


def _refusals(policy: Policy, others: Sequence[Reservation], new: Reservation, *, now_s: float) -> Iterator[str]:
    for scope, budget in policy.budgets.set():
        found = used(others, new, scope=scope, budget=budget, currency=policy.currency, now_s=now_s)
        name = _name(scope, new, budget)
        if budget.cost is not None:
            if new.cost is None:
                yield f"the budget of {name} limits cost, and the cost of this launch is unknown"
            elif new.currency != policy.currency and Decimal(new.cost) != 0:
                yield f"the budget of {name} is in {policy.currency}, this launch is priced in {new.currency}"
            elif found.cost + Decimal(new.cost) > budget.cost:
                yield (
                    f"the budget of {name} is {plain(budget.cost)} {policy.currency}: {plain(found.cost)} are used or "
                    f"reserved, this launch may cost {plain(Decimal(new.cost))}"
                )
        hours = Decimal(new.device_hours)
        if budget.device_hours is not None and found.device_hours + hours > budget.device_hours:
            yield (
                f"the budget of {name} is {plain(budget.device_hours)} device hours: {plain(found.device_hours)} are "
                f"used or reserved, this launch may use {plain(hours)}"
            )


def _name(scope: Scope, new: Reservation, budget: Budget) -> str:
    span = f" over {budget.over_days} days" if budget.over_days else ""
    match scope:
        case "day":
            return f"the day {utc_day(new.reserved_at_s)}"
        case "project":
            return f"project {new.project}{span}"
        case "requester":
            return f"requester {new.requester}{span}"


def _same_scope(other: Reservation, new: Reservation, scope: Scope) -> bool:
    match scope:
        case "day":
            return utc_day(other.reserved_at_s) == utc_day(new.reserved_at_s)
        case "project":
            return other.project == new.project
        case "requester":
            return other.requester == new.requester


def _too_old(other: Reservation, budget: Budget, *, now_s: float) -> bool:
    return budget.over_days is not None and other.reserved_at_s <= now_s - budget.over_days * _DAY_S


def free_launches(reservations: Sequence[Reservation], *, now_s: float) -> int:
    """How many launches of this UTC day no human approved."""
    return sum(held.free and utc_day(held.reserved_at_s) == utc_day(now_s) for held in reservations)
