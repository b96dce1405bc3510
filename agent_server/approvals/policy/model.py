"""Policy: the tables of a policy file. Each is total: an unknown fact takes the strictest row of its table."""

from decimal import Decimal
from typing import Annotated, Literal, Protocol

from pydantic import BeforeValidator, Field, field_validator, model_validator

from runtime.config.plan import Frozen
from tools.domain.approval import AssuranceLevel

from .currencies import CURRENCIES, currency_hint

LEVELS = (AssuranceLevel.A2, AssuranceLevel.A3, AssuranceLevel.A4)
RESERVED_VERSION = "shipped"

Needed = Literal[AssuranceLevel.A2, AssuranceLevel.A3, AssuranceLevel.A4]


def _no_truth_value(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("yes and no are no amounts")
    return value


Amount = Annotated[
    Decimal, BeforeValidator(_no_truth_value), Field(ge=0, le=Decimal(10) ** 12, decimal_places=6, allow_inf_nan=False)
]


class Table(Protocol):
    """What every table of `launches` can say."""

    def strictest(self) -> AssuranceLevel: ...


class Bound(Frozen):
    """One row: what up to this amount needs. The last row has no bound."""

    up_to: Amount | None = None
    needs: Needed


def _total(rows: tuple[Bound, ...]) -> tuple[Bound, ...]:
    if not rows or rows[-1].up_to is not None:
        raise ValueError("the last row must have no `up_to`: it says what every larger amount needs")
    bounds = [row.up_to for row in rows[:-1]]
    if None in bounds:
        raise ValueError("only the last row may leave out `up_to`")
    if bounds != sorted(set(bounds), key=lambda bound: bound or 0):
        raise ValueError("`up_to` must grow from row to row")
    ranks = [LEVELS.index(row.needs) for row in rows]
    if ranks != sorted(ranks):
        raise ValueError("a larger amount must not need a lower level than a smaller one")
    return rows


class Devices(Frozen):
    free: Needed
    in_use: Needed

    def strictest(self) -> AssuranceLevel:
        return max(self.free, self.in_use, key=LEVELS.index)


class PersonalData(Frozen):
    """Files below `paths_without` hold none, files below `paths_with` do, of all others it is unknown."""

    absent: Needed
    present: Needed
    paths_with: tuple[str, ...] = ()
    paths_without: tuple[str, ...] = ()

    @field_validator("paths_with", "paths_without")
    @classmethod
    def _absolute(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        bad = [path for path in paths if not path.startswith("/") or ".." in path.split("/")]
        if bad:
            raise ValueError(f"{', '.join(map(repr, bad))}: write absolute paths without '..'")
        return paths

    def strictest(self) -> AssuranceLevel:
        return max(self.absent, self.present, key=LEVELS.index)


class Irreversible(Frozen):
    """Signs: secrets passed to the job, or one of `words` among its arguments."""

    none_seen: Needed
    signs: Needed
    words: tuple[Annotated[str, Field(min_length=2)], ...] = ()

    def strictest(self) -> AssuranceLevel:
        return max(self.none_seen, self.signs, key=LEVELS.index)


class Launches(Frozen):
    cost: tuple[Bound, ...]
    device_hours: tuple[Bound, ...]
    devices: Devices
    personal_data: PersonalData
    irreversible: Irreversible

    _rows = field_validator("cost", "device_hours")(_total)


class FreeTier(Frozen):
    """Launches that need no human; every one of these limits must be kept, and every fact known and harmless."""

    max_cost: Amount
    max_device_hours: Amount
    max_per_day: int = Field(ge=1, le=1000)


class Budget(Frozen):
    """The sum over one day, project or requester. `over_days`: only what was approved so lately; None: ever."""

    cost: Amount | None = None
    device_hours: Amount | None = None
    over_days: int | None = Field(default=None, ge=1, le=3660)

    @model_validator(mode="after")
    def _limits_something(self) -> "Budget":
        if self.cost is None and self.device_hours is None:
            raise ValueError("a budget needs `cost` or `device_hours`; write null for no budget")
        return self


class Budgets(Frozen):
    day: Budget | None = None
    project: Budget | None = None
    requester: Budget | None = None

    @field_validator("day")
    @classmethod
    def _one_day(cls, budget: Budget | None) -> Budget | None:
        if budget is not None and budget.over_days is not None:
            raise ValueError("`over_days` has no meaning here: a day is a UTC day")
        return budget

    def set(self) -> tuple[tuple[Literal["day", "project", "requester"], Budget], ...]:
        """The budgets that are not null."""
        found: list[tuple[Literal["day", "project", "requester"], Budget]] = []
        for name, budget in (("day", self.day), ("project", self.project), ("requester", self.requester)):
            if budget is not None:
                found.append((name, budget))  # type: ignore[arg-type]  # the three names above
        return tuple(found)


class Requests(Frozen):
    expire_after_s: int = Field(ge=60, le=7 * 86_400)


class SmokeRuns(Frozen):
    max_wall_time_s: Amount
    max_device_hours: Amount


class Policy(Frozen):
    """A whole policy file."""

    format: Literal[1]
    version: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")
    currency: str | None = None
    requests: Requests
    smoke_runs: SmokeRuns
    launches: Launches
    free_tier: FreeTier | None
    budgets: Budgets

    @field_validator("currency")
    @classmethod
    def _known_currency(cls, currency: str | None) -> str | None:
        if currency is not None and currency not in CURRENCIES:
            raise ValueError(currency_hint(currency))
        return currency

    @model_validator(mode="after")
    def _amounts_have_a_currency(self) -> "Policy":
        if self.currency is None and self.names_amounts:
            raise ValueError("bounds and budgets of cost need `currency` at the top")
        return self

    @property
    def names_amounts(self) -> bool:
        """Whether any number in it is money."""
        budgets = any(budget.cost is not None for _, budget in self.budgets.set())
        return len(self.launches.cost) > 1 or self.free_tier is not None or budgets

    @property
    def strictest(self) -> AssuranceLevel:
        """The highest level that any row asks for."""
        launches = self.launches
        rows = [row.needs for row in (*launches.cost, *launches.device_hours)]
        tables: tuple[Table, ...] = (launches.devices, launches.personal_data, launches.irreversible)
        return max((*rows, *(table.strictest() for table in tables)), key=LEVELS.index)
