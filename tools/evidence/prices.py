"""The user's price file: prices per device hour or node hour, with source and date. No price means unknown."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, ValidationError

from runtime.config.plan import Frozen, ProcessLayout

from ..domain.errors import InvalidInput


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


def load_prices(path: Path, *, now_s: float) -> PriceList:
    """Read a YAML or JSON price file.

    Raises:
        InvalidInput: it is missing or is no price list.
    """
    try:
        data = yaml.safe_load(path.read_text())
        if not isinstance(data, dict):
            raise ValueError("it holds no mapping")
        amounts = [{**p, "amount": str(p.get("amount"))} for p in data.get("prices") or ()]
        prices = PriceList.model_validate({**data, "prices": amounts})
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise InvalidInput(
            f"price file {path}: {reason}",
            allowed="currency, source, as_of and prices, each with amount and per (device_hour or node_hour)",
            next_step="mend the price file, or leave it out: then the cost is unknown",
        ) from error
    today = datetime.fromtimestamp(now_s, tz=UTC).date()
    return prices.model_copy(update={"age_days": (today - prices.as_of).days})


def cost_of(hours: float, *, layout: ProcessLayout, price: Price) -> float:
    """hours x price x devices (one a process), or x nodes: the unit of the price decides, never both."""
    return float(Decimal(repr(hours)) * hourly_rate(layout, price))


def hourly_rate(layout: ProcessLayout, price: Price) -> Decimal:
    """What an hour of the whole job costs."""
    return price.amount * (layout.num_processes if price.per == "device_hour" else layout.num_nodes)
