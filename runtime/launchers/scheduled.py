"""A run as a batch system sees it."""

from dataclasses import dataclass
from typing import Literal

Phase = Literal["pending", "running", "ended"]


@dataclass(frozen=True)
class Scheduled:
    """A job as its scheduler sees it.

    Attributes:
        state: the scheduler's own word.
        reason: why it waits, or ended so; empty if none is given.
        exit_code, signal: of the batch script, once it has ended; signal 0 and exit code 0 mean that all was well.
        restarts: how often the scheduler has put it back into its queue; None if it does not say.
    """

    job_id: str
    phase: Phase
    state: str
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int | None = None
