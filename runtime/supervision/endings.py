"""How a job ended, and why it is to end before its time."""

from dataclasses import dataclass

from ..config.order import RankFailure, ResultState


@dataclass(frozen=True)
class Ending:
    state: ResultState
    reason: str
    exit_code: int | None = None
    failures: tuple[RankFailure, ...] = ()
    may_restart: bool = False
    may_requeue: bool = False


@dataclass(frozen=True)
class Stop:
    """Why the job is to end before its time: here, or on another node.

    Attributes:
        may_save: the ranks are asked first to save a checkpoint.
        may_requeue: a batch system that wanted the machine may start the job again later.
    """

    state: ResultState
    reason: str
    signal: int
    grace_s: float
    may_save: bool = False
    may_requeue: bool = False
    node: int | None = None
