"""Shows what the ranks print while they print it, from their files; uncaught tracebacks are left for the end."""

import contextlib
import itertools
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..layout import RunLayout
from ..supervision.outcome import read_error

_LOOK_S = 0.1
_PIECE_BYTES = 2**20
_LINE_END = re.compile(rb"\r?\n|\r(?!\n|\Z)")  # \r ends a move of a progress bar, which is shown at once


class LiveOutput(threading.Thread):
    """Copies the ranks' files to two streams, line by line and with the rank in front when there are several ranks.

    Args:
        num_processes: ranks from 0; None for those that turn up in the directory.
    """

    def __init__(self, layout: RunLayout, *, num_processes: int | None, stdout: BinaryIO, stderr: BinaryIO) -> None:
        super().__init__(name="live-output", daemon=True)
        self._over = threading.Event()
        self._layout = layout
        self._stdout, self._stderr = stdout, stderr
        self._prefixed = num_processes != 1
        self._turn_up = num_processes is None
        self._followed: list[_Followed] = []
        for rank in range(num_processes or 0):
            self._follow(rank)

    def _follow(self, rank: int) -> None:
        prefix = f"[rank{rank}] ".encode() if self._prefixed else b""
        hidden = _traceback_reader(self._layout, rank)
        self._followed += [
            _Followed(self._layout.stdout(rank), self._stdout, prefix),
            _Followed(self._layout.stderr(rank), self._stderr, prefix, hidden),
        ]

    def run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self.look(last=False)
        self.look(last=True)

    def finish(self) -> None:
        """Show the rest; everything is out when this returns."""
        self._over.set()
        self.join()

    def look(self, *, last: bool) -> None:
        """Show what is new; `last`: nothing more will come."""
        if self._turn_up:
            known = {followed.path for followed in self._followed}
            for rank in self._layout.ranks_with_output():
                if self._layout.stdout(rank) not in known:
                    self._follow(rank)
        for followed in self._followed:
            with contextlib.suppress(OSError):  # whoever read our output has gone; the files have it all
                followed.copy_new(last=last)


@dataclass
class _Followed:
    """One file, its position, and the beginning of a line whose end has not been written yet."""

    path: Path
    stream: BinaryIO
    prefix: bytes
    hidden: Callable[[], tuple[int | None, int | None]] | None = None
    position: int = 0
    partial: bytes = field(default=b"")

    def copy_new(self, *, last: bool) -> None:
        while piece := self._read(last=last):
            self._show(piece)
        if last and self.partial:
            self._show(b"\n")

    def _read(self, *, last: bool) -> bytes:
        try:
            with self.path.open("rb") as handle:
                handle.seek(self.position)
                data = handle.read(_PIECE_BYTES)
        except FileNotFoundError:
            return b""
        begin, end = self.hidden() if data and self.hidden is not None else (None, None)
        if begin is None or self.position + len(data) <= begin:
            shown = data
        elif self.position < begin:
            shown = data[: begin - self.position]
        elif end is None and not last:
            return b""  # the traceback is being written
        elif end is None or self.position < end:
            self.position = self.position + len(data) if end is None else end
            return self._read(last=last)
        else:
            shown = data
        self.position += len(shown)
        return shown

    def _show(self, piece: bytes) -> None:
        if not self.prefix:
            _write(self.stream, piece)
            return
        data = self.partial + piece
        ends = [0, *(match.end() for match in _LINE_END.finditer(data))]
        lines = [data[begin:end] for begin, end in itertools.pairwise(ends)]
        self.partial = data[ends[-1] :]
        if lines:
            _write(self.stream, b"".join(line if line == b"\r" else self.prefix + line for line in lines))


def _write(stream: BinaryIO, data: bytes) -> None:
    """All of it: an unbuffered stream may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]


def _traceback_reader(layout: RunLayout, rank: int) -> Callable[[], tuple[int | None, int | None]]:
    def read() -> tuple[int | None, int | None]:
        error = read_error(layout, rank)
        return error.get("stderr_begin"), error.get("stderr_end")

    return read
