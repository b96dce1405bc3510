"""The human's own terminal: opened by name, never the pipes that whoever started us may have put there."""

import getpass
import os
import sys
import termios
from collections.abc import Iterator
from typing import TextIO

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from agent_server.settings import agent_variables
from tools.domain.errors import Refused
from tools.domain.ports import StoreMode
from tools.text import visible

MAX_WRONG_ANSWERS = 3
_GOES_ON = "  ...> "
_LEAST_COLUMNS = 40
_COLUMNS_UNTOLD = 80


class NothingDecided(Refused):
    """The human gave up, or the answers were wrong too often."""

    code = "nothing_decided"


class Terminal:
    """Says things to the human and asks them, on /dev/tty. Each wrong answer counts against one budget.

    Raises:
        Refused: there is no terminal, stdin or stdout is something else, or an agent's environment is recognised.
    """

    def __init__(self, mode: StoreMode) -> None:
        _require_no_agent(mode)
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise _no_terminal("stdin or stdout is a pipe or a file")
        try:
            descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        except OSError as error:
            raise _no_terminal("this process has no controlling terminal") from error
        self._input: TextIO = open(descriptor, encoding="utf-8", errors="replace")  # noqa: SIM115  # until the process ends
        self._output: TextIO = open(os.dup(descriptor), "w", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._console = Console(file=self._output, highlight=False, soft_wrap=True)
        self._wrong_answers = 0

    def say(self, text: str = "", *, style: str = "") -> int:
        """Show a text of one or more lines; how many rows it took.

        A line that is longer than a row goes on behind a mark: no text, however long, begins a row of its own.
        """
        rows = list(_rows(visible(text, keep_newlines=True), self._size().columns))
        self._console.print(Text("\n".join(rows), style=style))
        self._output.flush()
        return len(rows)

    def say_how_long(self, num_rows: int) -> None:
        """Tell the human when a text has run out of sight."""
        seen = self._size().lines
        if num_rows >= seen > 0:
            self.say(f"The text above has {num_rows} lines, {seen} are in sight: scroll up and read all of them.")

    def _size(self) -> os.terminal_size:
        return os.get_terminal_size(self._output.fileno())

    def ask(self, prompt: str) -> str:
        """The line that the human types after the prompt; what was typed before it does not count.

        Raises:
            NothingDecided: end of input, or Ctrl-C.
        """
        termios.tcflush(self._input.fileno(), termios.TCIFLUSH)
        self._output.write(visible(prompt))
        self._output.flush()
        try:
            line = self._input.readline()
        except KeyboardInterrupt as interrupt:
            raise _given_up() from interrupt
        if not line.endswith("\n"):
            raise _given_up()
        return line.strip()

    def ask_secret(self, prompt: str) -> str:
        """Like ask, without showing what is typed."""
        try:
            return getpass.getpass(visible(prompt))
        except (EOFError, KeyboardInterrupt) as end:
            raise _given_up() from end

    def require(self, prompt: str, expected: str) -> None:
        """Ask until the answer is `expected`; no other answer, and no empty one, goes on."""
        while self.ask(prompt) != expected:
            self.wrong_answer("that is not what is shown above")

    def wrong_answer(self, why: str) -> None:
        """Count a wrong answer.

        Raises:
            NothingDecided: it was the last one.
        """
        self._wrong_answers += 1
        if self._wrong_answers >= MAX_WRONG_ANSWERS:
            raise NothingDecided(
                f"{self._wrong_answers} wrong answers, the last one: {why}. Nothing was decided",
                next_step="start again when you have read the plan",
            )
        self.say(f"Wrong: {why}. {MAX_WRONG_ANSWERS - self._wrong_answers} left.", style="red")


def _rows(text: str, columns: int) -> Iterator[str]:
    """The lines of the text, cut to the width of the terminal; what goes on is marked."""
    columns = max(columns or _COLUMNS_UNTOLD, _LEAST_COLUMNS)
    for line in text.split("\n"):
        if cell_len(line) <= columns:
            yield line
            continue
        first = chop_cells(line, columns)[0]
        yield first
        yield from (_GOES_ON + part for part in chop_cells(line[len(first) :], columns - len(_GOES_ON)))


def _require_no_agent(mode: StoreMode) -> None:
    found = agent_variables()
    if found and mode != "simulated":
        raise Refused(
            f"this looks like an agent's shell ({', '.join(found)} in the environment); "
            "it is a heuristic that agents can get round, and no proof of a human where it finds nothing",
            allowed="a terminal that a human opened",
            next_step="open a terminal of your own and type the command there",
        )


def _no_terminal(why: str) -> Refused:
    return Refused(
        f"a human must do this in a terminal, and {why}",
        allowed="an interactive terminal",
        next_step="type the command in a terminal of your own, without pipes",
    )


def _given_up() -> NothingDecided:
    return NothingDecided("the input ended. Nothing was decided", next_step="start again, the request is still open")
