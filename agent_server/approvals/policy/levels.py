"""Levels and stores: simulated ones stay among themselves."""

from tools.domain.approval import AssuranceLevel
from tools.domain.errors import Refused
from tools.domain.ports import StoreMode

SHIPPED = "shipped-1"


def require_level_for_mode(level: AssuranceLevel, *, mode: StoreMode) -> None:
    """Keep simulated keys and decisions out of normal stores, and real ones out of simulated stores.

    Raises:
        Refused: the level does not belong in a store of this mode.
    """
    if (level is AssuranceLevel.SIMULATED) == (mode == "simulated"):
        return
    allowed = "simulated" if mode == "simulated" else "A2, A3 or A4"
    raise Refused(
        f"level {level.value} in a {mode} state directory",
        allowed=allowed,
        next_step="`forerun init-demo DIR` makes a state directory for simulated approvals",
    )
