"""Signals to the supervisor, collected instead of obeyed at once."""

import contextlib
import os
import select
import signal
from types import FrameType


class Interrupts:
    """Detached: SIGTERM, SIGINT and SIGUSR1 (of a scheduler that wants the machine) ask for the end, SIGHUP means
    nothing. In the foreground SIGHUP does too unless it was ignored before (nohup), and a second signal insists.

    Creating it installs the handlers; main thread only.
    """

    gentle = signal.SIGTERM

    def __init__(self, *, foreground: bool) -> None:
        self._foreground = foreground
        self.first: int | None = None
        self._pending: list[int] = []
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._note)
        if not foreground:
            signal.signal(signal.SIGHUP, self._pass_over)  # a handler, since "ignored" would be inherited by the job
        elif signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._note)

    def take(self) -> int | None:
        """The oldest signal that asked for the end, once."""
        number = self._pending.pop(0) if self._pending else None
        self.first = self.first or number
        return number

    def insists(self) -> bool:
        """Whether someone at the terminal asked again."""
        return self._foreground and self.take() is not None

    def forwarded(self, number: int) -> int:
        """What the job gets in place of this signal."""
        return signal.SIGINT if self._foreground and number == signal.SIGINT else signal.SIGTERM

    def fileno(self) -> int:
        """Readable when a signal has come."""
        return self._read

    def drain(self) -> None:
        """Make fileno() quiet again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._read, 512):
                pass

    def pause(self, timeout_s: float) -> None:
        """Wait, or until a signal comes."""
        select.select([self._read], [], [], timeout_s)
        self.drain()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._pending.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")

    def _pass_over(self, _number: int, _frame: FrameType | None) -> None:
        return
