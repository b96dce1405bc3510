"""assess: which level a plan needs, and why, from the tables of the policy. Pure: equal facts give equal words."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, ROUND_UP, Decimal
from pathlib import PurePosixPath

from runtime.config.plan import TrainingPlan
from tools.domain.approval import Assessment, AssuranceLevel
from tools.domain.reports import CostEstimate
from tools.evidence.prices import PriceList, hourly_rate
from tools.inputs.environment import BASE

from .device_use import NOT_LOOKED_AT, DeviceUse
from .in_force import PolicyInForce, PricesInForce
from .model import LEVELS, Bound, Policy

_EXACT = Decimal("0.000001")


@dataclass(frozen=True)
class Amounts:
    """The most that a plan may use: its approved wall time on all devices, or its ceiling of cost if that is less.

    None is unknown, and `why` says so. `hourly_rate` is that of one run.
    """

    cost: Decimal | None
    device_hours: Decimal
    hourly_rate: Decimal | None
    currency: str
    why: str

    def words(self) -> str:
        return f"{plain(self.cost)} {self.currency}" if self.cost is not None else f"unknown ({self.why})"


@dataclass(frozen=True)
class Facts:
    """What is known of a launch before it is approved."""

    plan: TrainingPlan
    estimate: CostEstimate | None
    smoke_passed: bool
    prices: PricesInForce
    device_use: DeviceUse = NOT_LOOKED_AT


@dataclass(frozen=True)
class _Need:
    level: AssuranceLevel
    words: str
    harmless: bool


def amounts(plan: TrainingPlan, estimate: CostEstimate | None, prices: PriceList | None) -> Amounts:
    """For all runs of a sweep together; a cost is known when a price fits and the estimate has one in its currency."""
    seconds, num_runs = Decimal(repr(plan.ceilings.wall_time_s)), plan.num_runs
    device_hours = exact(seconds * plan.layout.num_processes * num_runs / 3600)  # multiplied first: thirds stay exact
    price = prices.price_for(plan.layout) if prices else None
    if prices is None or price is None:
        why = "no price fits this launcher and device" if prices else "no price list counts"
        return Amounts(None, device_hours, None, "", why)
    rate = hourly_rate(plan.layout, price)
    if estimate is None or estimate.cost is None:
        return Amounts(None, device_hours, rate, prices.currency, "the estimate has no cost")
    if estimate.currency != prices.currency:
        return Amounts(None, device_hours, rate, prices.currency, f"the estimate is in {estimate.currency}")
    cost = exact(rate * seconds * num_runs / 3600)
    if plan.ceilings.cost is not None:
        cost = min(cost, Decimal(repr(plan.ceilings.cost)))
    return Amounts(cost, device_hours, rate, prices.currency, "")


def assess(in_force: PolicyInForce, facts: Facts, *, free_today: int | None = None) -> Assessment:
    """The least level, and each table's word on it.

    Args:
        free_today: launches in the free tier on this day so far; None: the free tier is not asked for.
    """
    found = amounts(facts.plan, facts.estimate, facts.prices.prices)
    needs = list(_needs(in_force.policy, facts, found))
    why = [f"{need.level.value}: {need.words}" for need in needs]
    if in_force.floor is not None:
        stricter = [need for need in _needs(in_force.floor, facts, found) if need not in needs]
        needs += stricter
        why += [f"{need.level.value}: {need.words} (by the signed policy whose file was edited)" for need in stricter]
    level: AssuranceLevel | None = max((need.level for need in needs), key=LEVELS.index)
    if free_today is not None:
        obstacle = _free_obstacle(in_force, facts, found, needs, free_today)
        if obstacle is None:
            level, why = None, ["no approval is needed: the free tier covers it", *why]
        elif in_force.policy.free_tier is not None:
            why.append(f"not in the free tier: {obstacle}")
    return Assessment(
        level=level,
        why=tuple(why),
        most_cost=None if found.cost is None else plain(found.cost),
        currency=found.currency,
        most_device_hours=plain(found.device_hours),
        prices_version=facts.prices.version,
        device_use=facts.device_use.state,
        device_words=facts.device_use.words,
        notes=(*in_force.notes, *facts.prices.notes),
    )


def exact(amount: Decimal) -> Decimal:
    """Rounded up to a millionth: a sum of these never says less than was used."""
    return amount.quantize(_EXACT, ROUND_UP)


def parts(amount: Decimal, number: int) -> list[Decimal]:
    """`number` equal parts in millionths that add up to the amount; what does not divide goes to the first."""
    part = (amount / number).quantize(_EXACT, ROUND_DOWN)
    return [amount - part * (number - 1), *([part] * (number - 1))]


def plain(amount: Decimal) -> str:
    """Without exponent and trailing zeros, at least two decimals."""
    text = f"{amount.normalize():f}"
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction.ljust(2, '0')}"


def utc_day(time_s: float) -> str:
    """The day that a time belongs to."""
    return datetime.fromtimestamp(time_s, UTC).date().isoformat()


def _needs(policy: Policy, facts: Facts, found: Amounts) -> Iterator[_Need]:
    launches = policy.launches
    cost, why = found.cost, found.why
    if cost is not None and policy.currency is not None and policy.currency != found.currency:
        cost, why = None, f"the policy counts in {policy.currency}, the prices in {found.currency}"
    yield _by_amount("cost", launches.cost, cost, unit=found.currency, why=why)
    yield _by_amount("device hours", launches.device_hours, found.device_hours, unit="", why="")
    yield _by_devices(policy, facts.device_use)
    yield _by_personal_data(policy, facts.plan)
    yield _by_reach(policy, facts.plan)


def _by_amount(what: str, rows: tuple[Bound, ...], amount: Decimal | None, *, unit: str, why: str) -> _Need:
    if amount is None:
        return _Need(rows[-1].needs, f"{what} unknown ({why}), so the strictest row counts", False)
    row = next(row for row in rows if row.up_to is None or amount <= row.up_to)
    given = f"{what} at most {plain(amount)} {unit}".rstrip()
    bound = (
        "any amount" if len(rows) == 1 else f"up to {row.up_to}" if row.up_to is not None else "more than all bounds"
    )
    return _Need(row.needs, f"{given} ({bound})", True)


def _by_devices(policy: Policy, use: DeviceUse) -> _Need:
    table = policy.launches.devices
    match use.state:
        case "none_needed":
            return _Need(table.free, f"devices: {use.words}", True)
        case "free":
            return _Need(table.free, f"devices free: {use.words}", True)
        case "in_use":
            return _Need(table.in_use, f"devices shared: {use.words}", False)
        case "unknown":
            return _Need(table.strictest(), f"devices unknown: {use.words}, so the strictest row counts", False)


def _by_personal_data(policy: Policy, plan: TrainingPlan) -> _Need:
    table = policy.launches.personal_data
    if any(s.name == "personal_data" and s.value == "yes" for s in plan.settings):
        return _Need(table.present, "personal data: the plan's settings say that there is some", False)
    holding = [
        file.path
        for file in plan.data
        if _below(file.path, table.paths_with) or any(_below(root, (file.path,)) for root in table.paths_with)
    ]  # a directory holds what lies below it
    if holding:
        return _Need(table.present, f"personal data: the policy names {', '.join(holding)}", False)
    if plan.data and all(_below(file.path, table.paths_without) for file in plan.data):
        return _Need(table.absent, "personal data: none, by the paths that the policy names", True)
    why = "the policy names no path of the data" if plan.data else "no data is declared"
    return _Need(table.strictest(), f"personal data unknown ({why}), so the strictest row counts", False)


def _by_reach(policy: Policy, plan: TrainingPlan) -> _Need:
    table = policy.launches.irreversible
    signs = [f"the secret {name} is passed to the job" for name in plan.inherited]
    given = dict.fromkeys(text for arguments in (plan.argv, *plan.sweep) for text in arguments)
    variables = [f"{name}={value}" for name, value in sorted(plan.environment.items()) if name not in BASE]
    for word in table.words:
        signs += [f"{word!r} stands in the argument {text!r}" for text in given if word.lower() in text.lower()]
        signs += [f"{word!r} stands in the variable {text!r}" for text in variables if word.lower() in text.lower()]
    if signs:
        return _Need(table.signs, f"may be irreversible: {'; '.join(signs)}", False)
    return _Need(table.none_seen, "no sign of something irreversible was seen", True)


def _below(path: str, roots: tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(root) for root in roots)


def _free_obstacle(
    in_force: PolicyInForce, facts: Facts, found: Amounts, needs: list[_Need], free_today: int
) -> str | None:
    """Why a human must decide; None if none must."""
    tier = in_force.policy.free_tier
    if tier is None or in_force.floor is not None:
        return "there is none"
    if facts.plan.sweep:
        return "a sweep is for a human to approve"
    if not facts.smoke_passed:
        return "the smoke run did not pass"
    doubt = next((need.words for need in needs if not need.harmless), None)
    if doubt is not None or found.cost is None:
        return doubt or "the cost is unknown"
    if found.cost > tier.max_cost:
        return f"it may cost {plain(found.cost)} {found.currency}, free are up to {plain(tier.max_cost)}"
    if found.device_hours > tier.max_device_hours:
        return f"{plain(found.device_hours)} device hours, free are up to {plain(tier.max_device_hours)}"
    if free_today >= tier.max_per_day:
        return f"{free_today} free launches today, {tier.max_per_day} are allowed"
    return None
