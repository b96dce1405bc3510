"""Printing for humans: rich tables and lines, with every outside character made visible."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools.text import visible

_WHOLE = 24
_GAP = 2
_UNBOUNDED = 10_000


def say(line: str, *, style: str = "") -> None:
    """One line on stdout."""
    Console(soft_wrap=True, highlight=False).print(Text(visible(line), style=style))


def fail(paragraph: str) -> None:
    """One red paragraph on stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(visible(paragraph), style="red"))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table on stdout; `empty` is said when there are no rows.

    Lines are folded between words, and within those alone that are over 24 characters long (paths). Where a terminal is
    too narrow for that, the lines are longer than it is.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if not cells:
        say(empty)
        return
    console = Console(highlight=False)
    shown = Table(
        title=visible(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    for column, width in zip(columns, _widths([columns, *cells], console.width), strict=True):
        shown.add_column(column, width=width, overflow="fold")
    for row in cells:
        shown.add_row(*map(Text, row))
    console.width = max(
        console.width, console.measure(shown, options=console.options.update(max_width=_UNBOUNDED)).maximum
    )
    console.print(shown)


def _widths(lines: Sequence[Sequence[str]], available: int) -> list[int]:
    """Of each column: what its words need, and of what is left of the line what it asks for, the modest ones first."""
    wanted = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    needed = [
        min(_WHOLE, max(cell_len(word) for text in column for word in text.split()))
        for column in zip(*lines, strict=True)
    ]
    needed[0] = wanted[0]
    left = max(0, available - sum(needed) - _GAP * len(needed))
    by_wish = sorted(range(len(needed)), key=lambda index: wanted[index] - needed[index])
    for turn, index in enumerate(by_wish):
        given = min(wanted[index] - needed[index], left // (len(by_wish) - turn))
        needed[index] += given
        left -= given
    return needed


def ago(seconds: float) -> str:
    """A span of time in its largest sensible unit."""
    size = abs(seconds)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if size >= length:
            return f"{size / length:.0f} {unit}"
    return f"{size:.0f} s"
