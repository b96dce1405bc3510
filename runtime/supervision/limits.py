"""The limits of a job that end it, whatever the server does: wall time, cost, disk. Pure: numbers in, words out."""

from decimal import Decimal

from ..config.order import CostLimit, LaunchOrder


def limit_reached(order: LaunchOrder, *, elapsed_s: float, disk_bytes: int) -> str | None:
    """The first limit that is reached, in words; None while the job may go on.

    Args:
        elapsed_s: since the job's first start, retries included.
        disk_bytes: what the run directory takes.
    """
    if elapsed_s > order.wall_time_s:
        return f"wall time limit of {order.wall_time_s:g} s reached"
    if order.cost is not None and spent(order.cost, elapsed_s) > Decimal(order.cost.most):
        limit = order.cost
        return (
            f"cost limit of {limit.most} {limit.currency} reached after {elapsed_s:.0f} s "
            f"at {limit.hourly_rate} {limit.currency} per hour"
        )
    if disk_bytes > order.disk_bytes:
        return f"disk limit reached: {disk_bytes} bytes used of {order.disk_bytes}"
    return None


def spent(limit: CostLimit, elapsed_s: float) -> Decimal:
    """What the job has cost after this many seconds: price for an hour of the whole job x time."""
    return Decimal(limit.hourly_rate) * Decimal(repr(elapsed_s)) / 3600


def may_save(reason: str) -> bool:
    """Whether a checkpoint may be saved first: not where the disk is the limit."""
    return not reason.startswith("disk")
