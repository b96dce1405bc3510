"""What runs have cost so far: the price at the approval, times the time that the job ran; never the time since."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from agent_server.approvals.policy.in_force import prices_in_force
from tools.domain.budget import plausible
from tools.domain.ports import Store
from tools.domain.run_state import RunRecord
from tools.evidence.prices import hourly_rate
from tools.report.accounting import spell_of

_CENT = Decimal("0.01")


@dataclass(frozen=True)
class Spent:
    """The cost of one run so far; None is unknown. `note` says what is not plain about it."""

    cost: Decimal | None = None
    currency: str = ""
    note: str = ""

    @property
    def shown(self) -> Decimal | None:
        """In hundredths, as it is printed and added up."""
        return None if self.cost is None else self.cost.quantize(_CENT, ROUND_HALF_UP)

    def words(self) -> str:
        return "unknown" if self.shown is None else f"{self.shown} {self.currency}"


def spent_on(store: Store, runs: Iterable[RunRecord], *, now_s: float) -> dict[str, Spent]:
    """By run id. Full runs count at the price of their approval, smoke runs at the one that counts now."""
    runs = list(runs)
    reservations = {run.run_id: store.reservation_of(run.run_id) for run in runs if run.kind != "smoke"}
    prices = prices_in_force(store, now_s=now_s).prices
    found: dict[str, Spent] = {}
    for run in runs:
        held = reservations.get(run.run_id)
        elapsed_s = elapsed(run)
        if held is not None and held.settled:
            cost = None if held.actual_cost is None else Decimal(held.actual_cost)
            found[run.run_id] = Spent(cost, held.currency, "" if run.result else held.basis)
        elif held is not None:
            found[run.run_id] = Spent(None if elapsed_s is None else held.spent_after(elapsed_s), held.currency)
        elif run.kind != "smoke" or prices is None:
            found[run.run_id] = Spent()
        else:
            plan = store.plan(run.plan_id).plan
            price = prices.price_for(plan.layout) if plan else None
            if plan is None or price is None or elapsed_s is None or not plausible(elapsed_s):
                found[run.run_id] = Spent()
            else:
                cost = hourly_rate(plan.layout, price) * Decimal(repr(elapsed_s)) / 3600
                found[run.run_id] = Spent(cost, prices.currency, "at the price that counts now")
    return found


def prices_per_hour(store: Store, runs: Iterable[RunRecord], *, currency: str, now_s: float) -> dict[str, float]:
    """By run id, what an hour of the whole job costs, as in spent_on; not there if unknown or in another currency."""
    prices = prices_in_force(store, now_s=now_s).prices
    found: dict[str, float] = {}
    for run in runs:
        held = None if run.kind == "smoke" else store.reservation_of(run.run_id)
        if held is not None and held.hourly_rate is not None and held.currency == currency:
            found[run.run_id] = float(held.hourly_rate)
        elif run.kind == "smoke" and prices is not None and prices.currency == currency:
            plan = store.plan(run.plan_id).plan
            price = prices.price_for(plan.layout) if plan else None
            if plan is not None and price is not None:
                found[run.run_id] = float(hourly_rate(plan.layout, price))
    return found


def totals(spent: Sequence[Spent]) -> str:
    """The sum of what the lines show, by currency, and how many lines are not in it."""
    sums: dict[str, Decimal] = {}
    for one in spent:
        if one.shown is not None:
            sums[one.currency] = sums.get(one.currency, Decimal(0)) + one.shown
    unknown = sum(one.shown is None for one in spent)
    words = [f"{amount} {currency}".strip() for currency, amount in sorted(sums.items())]
    if unknown:
        words.append(f"{unknown} run(s) of unknown cost, not 0")
    return "; ".join(words)


def elapsed(run: RunRecord) -> float | None:
    """How long the job ran, or has run until its last heartbeat; 0 if no process was started, None if unknown."""
    return spell_of(run).seconds
