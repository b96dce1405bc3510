"""One try of a function on all ranks together: when one runs out of memory, the others are fetched out of it too."""

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from .devices import release_cached_memory
from .errors import DistributedError
from .guard import Guard
from .out_of_memory import evaluation_frame, is_out_of_memory
from .state import PartialState

_OPERATION = "find_executable_batch_size"
_LOOK_EVERY_S = 0.1

Outcome = Literal["done", "out_of_memory", "cancelled", "failed"]


class Attempt:
    """One try; every rank makes it with the same size, and every rank learns whether it is to be made again smaller.

    Args:
        size: what this rank would try; the smallest of all ranks' is tried.
    """

    def __init__(self, size: int) -> None:
        self.last_error = ""
        self._state = PartialState() if PartialState._process is not None else None
        self._guard = None if self._state is None else self._state.guard
        self.size = size
        self._key = ""
        if self._guard is not None:
            self.size = min(self._guard.meet(_OPERATION, details=size))
            self._key = f"attempt/{self._guard.num_meetings}"

    def run(self, function: Callable[[int], Any]) -> tuple[bool, Any]:
        """Call function(size).

        Returns:
            Whether it worked on every rank, and its result here.

        Raises:
            Exception: what the function raised, if that was not for want of memory, here or on another rank.
            DistributedError: another rank failed for another reason, and has not taken this one down.
        """
        result = None
        with self._watched():
            try:
                result = function(self.size)
                outcome: Outcome = "done"
            except Exception as error:
                outcome = self._judge(error)
                self.last_error = f"{type(error).__name__}: {error}".splitlines()[0][:300]
                if outcome == "failed":
                    self._post(outcome)
                    raise
                # The frames of the traceback hold the tensors that have to go.
                error.__traceback__ = error.__context__ = error.__cause__ = None
        if outcome == "out_of_memory":
            self._cancel_others()
        self._post(outcome)
        worked = self._all_done()
        if not worked:
            self._clean_up()
        return worked, result if worked else None

    def _judge(self, error: Exception) -> Outcome:
        if is_out_of_memory(error):
            place = evaluation_frame(error)
            if place is None:
                return "out_of_memory"
            error.add_note(
                f"forerun: memory ran out in evaluation ({place}), so the training batch of {self.size} stays. "
                "Next: evaluate in smaller batches, or move what is kept of each batch to the CPU."
            )
            return "failed"
        if isinstance(error, (RuntimeError, DistributedError)) and self._is_cancelled():
            return "cancelled"
        return "failed"

    def _is_cancelled(self) -> bool:
        return self._guard is not None and self._guard.look([self._key]) is not None

    def _cancel_others(self) -> None:
        if self._guard is not None and self._state is not None:
            self._guard.post(self._key, str(self._state.process_index))
            _break_collectives()

    def _post(self, outcome: Outcome) -> None:
        if self._guard is not None and self._state is not None:
            self._guard.post(f"{self._key}/{self._state.process_index}", outcome)

    def _all_done(self) -> bool:
        if self._guard is None or self._state is None:
            return not self.last_error
        world = range(self._state.num_processes)
        outcomes = self._guard.wait_for_words([f"{self._key}/{rank}" for rank in world], operation=_OPERATION)
        failed = [rank for rank in world if outcomes[rank] == "failed"]
        if failed:
            raise DistributedError(
                f"find_executable_batch_size: rank {failed[0]} failed, and not for want of memory",
                allowed="functions that end alike on every rank",
                next_step=f"look at the error of rank {failed[0]}",
            )
        return all(outcome == "done" for outcome in outcomes)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """While inside, a thread breaks this rank's collectives once another rank has run out of memory."""
        if self._guard is None:
            yield
            return
        over = threading.Event()
        watcher = threading.Thread(target=_watch, args=(self._guard.copy(), self._guard, self._key, over), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self._guard.interrupt(None)

    def _clean_up(self) -> None:
        gc.collect()
        if self._state is not None:
            release_cached_memory(self._state.device)
        if self._guard is not None:
            PartialState.restart_group()  # a collective that a rank has left half-way leaves the group unusable


def _watch(eyes: Guard, guard: Guard, key: str, over: threading.Event) -> None:
    while not over.wait(_LOOK_EVERY_S):
        posted = eyes.look([key])
        if posted is not None:
            guard.interrupt(f"rank {posted[0]} ran out of memory")
            _break_collectives()
            return


def _break_collectives() -> None:
    group = PartialState._group
    if group is not None:
        group.break_collectives()
