"""Reservation: the most that an approved run may use, kept until what it did use is known."""

from decimal import Decimal

from pydantic import Field

from runtime.config.plan import Frozen

_CENTURY_S = 3.2e9


class Reservation(Frozen):
    """One launch in the budgets. Amounts are decimal texts, so that sums are exact; None is unknown, never 0.

    Attributes:
        reservation_id: the request's id, of a sweep with the member's number; the run's for a launch in the free tier.
        expires_at_s: without a run, it counts until then.
        hourly_rate: price of the whole job for an hour, as it was when the launch was approved.
        free: a launch in the free tier, without an approval.
        basis: where the actual amounts come from.
    """

    reservation_id: str
    plan_id: str
    run_id: str | None = None
    project: str
    requester: str
    reserved_at_s: float
    expires_at_s: float
    currency: str = ""
    cost: str | None = None
    device_hours: str
    hourly_rate: str | None = None
    num_processes: int = Field(ge=1)
    free: bool = False
    actual_cost: str | None = None
    actual_device_hours: str | None = None
    settled_at_s: float | None = None
    basis: str = ""

    @property
    def settled(self) -> bool:
        return self.settled_at_s is not None

    def spent_after(self, elapsed_s: float) -> Decimal | None:
        """Cost of this many seconds of the whole job; None if no price was known, or no job can have run so long."""
        if self.hourly_rate is None or not plausible(elapsed_s):
            return None
        return Decimal(self.hourly_rate) * Decimal(repr(elapsed_s)) / 3600


def plausible(elapsed_s: float) -> bool:
    """Whether a job can have run so long: files in a run directory may say anything."""
    return 0 <= elapsed_s < _CENTURY_S
