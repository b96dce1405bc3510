"""A rank that is told to make room (SIGUSR1) saves a checkpoint, at the same batch on every rank, and ends."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from .devices import synchronize
from .prepared import Prepared
from .reporting import RunReporter

if TYPE_CHECKING:
    from .saving import StateSaver

EXIT_CODE = 143
"""What a shell calls the end by SIGTERM: the rank was stopped, it did not fail."""


class Preemption:
    """Looks between two batches of a training loader, when no accumulation window is open, whether it is time.

    Ranks get the signal at different moments, but none is more than a step ahead: each posts the step at which it
    noticed, and all save one step after the latest of these.
    Outside a run, and where the script has a handler of its own, the signal means what it meant before.
    """

    def __init__(self, prepared: Prepared, *, reporter: RunReporter, saver: "StateSaver") -> None:
        self._prepared = prepared
        self._reporter = reporter
        self._saver = saver
        self._asked = False
        self._posted = False
        self._step = 0
        listens = reporter.layout is not None and threading.current_thread() is threading.main_thread()
        if listens and signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, self._note)

    def ends(self, loader: Any, num_yielded: int) -> bool:
        """Called between batches of every loader; saves and ends the process when it is time."""
        if not self._asked or not num_yielded or self._prepared.windows.open_micro_batches:
            return False
        step = sum(optimizer.num_steps + optimizer.num_skipped for optimizer in self._prepared.optimizers)
        if step != self._step and self._prepared.trains(loader):
            self._step = step
            if self._is_time():
                self._save_and_end()
        return False

    def _is_time(self) -> bool:
        guard = self._prepared.state.guard
        if guard is None:
            return True
        synchronize(self._prepared.state.device)  # the step's all-reduce is over: no rank is further behind than one
        if not self._posted:
            guard.post(f"preemption/{self._prepared.state.process_index}", str(self._step))
            self._posted = True
        noticed = guard.look([f"preemption/{rank}" for rank in range(self._prepared.state.num_processes)])
        return noticed is not None and self._step > max(int(step) for step in noticed)

    def _save_and_end(self) -> None:
        path = self._saver.save(None)
        self._saver.close(digests=False)  # the time of grace is short
        guard = self._prepared.state.guard
        if guard is not None:
            guard.meet("preemption")  # the first to end takes the others down
        self._reporter.event(
            "preempted",
            path=str(path.absolute() if isinstance(path, Path) else path),
            step=self._prepared.optimizer_steps,
        )
        raise SystemExit(EXIT_CODE)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self._asked = True
