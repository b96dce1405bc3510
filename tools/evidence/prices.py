"""The user's prices, per device hour or node hour, with source and date. No price means unknown."""

from datetime import date
from decimal import Decimal
from typing import Literal

from pydantic import Field

from runtime.config.plan import Frozen, ProcessLayout


class Price(Frozen):
    """One price. `launcher` and `device` say what it is for; None fits any."""

    amount: Decimal = Field(ge=0, allow_inf_nan=False)
    per: Literal["device_hour", "node_hour"]
    launcher: str | None = None
    device: str | None = None

    def fits(self, layout: ProcessLayout) -> bool:
        return self.launcher in (None, layout.launcher) and self.device in (None, layout.device)


class PriceList(Frozen):
    """The prices of one file, the first that fits counts.

    Example:
        {currency: USD, source: "contract 17", as_of: 2026-01-01,
         prices: [{amount: 2.50, per: device_hour, device: cuda}]}
    """

    currency: str = Field(min_length=1, max_length=8)
    source: str = Field(min_length=1)
    as_of: date
    prices: tuple[Price, ...]
    age_days: int | None = Field(default=None, description="at the time of reading; None: not read from a file")

    def price_for(self, layout: ProcessLayout) -> Price | None:
        return next((price for price in self.prices if price.fits(layout)), None)

    def describe(self, price: Price) -> str:
        """Amount, unit, source and age in words."""
        age = "" if self.age_days is None else f", {self.age_days} days old"
        given = "; a price of 0 is given, not assumed" if price.amount == 0 else ""
        unit = price.per.replace("_", " ")
        return f"{price.amount} {self.currency} per {unit}, {self.source} (as of {self.as_of.isoformat()}{age}){given}"


def cost_of(hours: float, *, layout: ProcessLayout, price: Price) -> float:
    """hours x price x devices (one a process), or x nodes: the unit of the price decides, never both."""
    return float(Decimal(repr(hours)) * hourly_rate(layout, price))


def hourly_rate(layout: ProcessLayout, price: Price) -> Decimal:
    """What an hour of the whole job costs."""
    return price.amount * (layout.num_processes if price.per == "device_hour" else layout.num_nodes)
