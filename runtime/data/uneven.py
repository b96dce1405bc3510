"""A pass in which ranks take different numbers of batches: those that have finished answer the others' metrics."""

import time
from collections.abc import Callable

from ..collectives import give_nothing
from ..errors import DistributedError
from ..guard import Guard

_FIRST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.02
_KEPT_WORDS = 2


class UnevenPass:
    """One pass over one loader on this rank; all ranks begin their passes in the same order."""

    def __init__(self, guard: Guard, *, rank: int, world_size: int) -> None:
        self._guard = guard
        self._rank = rank
        self._others = [other for other in range(world_size) if other != rank]
        guard.calls["uneven pass"] += 1
        self._number = guard.calls["uneven pass"]

    def leave(self, num_batches: int) -> None:
        """Say that this rank takes no further batch."""
        self._guard.post(self._key(self._rank), str(num_batches))
        if self._number > _KEPT_WORDS:
            self._guard.withdraw(self._key(self._rank, self._number - _KEPT_WORDS))

    def wait_for_others(self, num_batches: int, *, training: bool) -> None:
        """Until the others have left the pass too, or go on to something else, answer their gather_for_metrics.

        Args:
            training: the others cannot go on without this rank.

        Raises:
            DistributedError: they have not finished within the deadline, though they cannot be far behind.
        """

        def over() -> bool:
            return self._guard.look([self._key(other) for other in self._others]) is not None

        if self._attend(over) or not training:
            return
        late = [other for other in self._others if self._guard.look([self._key(other)]) is None]
        raise DistributedError(
            f"rank {self._rank} finished its loader after {num_batches} batches, but rank "
            f"{', '.join(map(str, late))} did not within {self._guard.deadline_s:g} s: it waits in backward for ranks "
            "that have no more data",
            allowed="as many batches on every rank",
            next_step="train with even_batches=True, or inside accelerator.join_uneven_inputs([model])",
        )

    def attend_until(self, operation: str) -> None:
        """Answer the others' gather_for_metrics until they come to `operation` (or to anything else)."""
        self._attend(lambda: False, ends_with=operation)

    def _attend(self, over: Callable[[], bool], *, ends_with: str | None = None) -> bool:
        """False at the deadline."""
        last_seen, pause_s = time.monotonic(), _FIRST_PAUSE_S
        while not over():
            waiting = self._guard.next_meeting()
            if waiting is not None:
                if over():
                    return True  # what the other has come to lies behind the pass
                operation, details = waiting
                if operation == ends_with or not give_nothing(operation, details):
                    return True
                last_seen, pause_s = time.monotonic(), _FIRST_PAUSE_S
                continue
            if any(self._guard.has_left(other) for other in self._others):
                return True
            if time.monotonic() - last_seen > self._guard.deadline_s:
                return False
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        return True

    def _key(self, rank: int, number: int | None = None) -> str:
        return f"pass/{self._number if number is None else number}/{rank}"
