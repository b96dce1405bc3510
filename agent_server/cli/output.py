"""Printing for humans: rich tables and lines, with every outside character made visible."""

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tools.text import visible


def say(line: str, *, style: str = "") -> None:
    """One line on stdout."""
    Console(soft_wrap=True, highlight=False).print(Text(visible(line), style=style))


def fail(paragraph: str) -> None:
    """One red paragraph on stderr."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(Text(visible(paragraph), style="red"))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """A table on stdout; `empty` is said when there are no rows. The first column is never shortened."""
    shown = Table(title=visible(title), title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, no_wrap=index == 0, overflow="fold")
    for row in rows:
        shown.add_row(*(Text(visible(cell)) for cell in row))
    if shown.row_count:
        Console(highlight=False).print(shown)
    else:
        say(empty)


def ago(seconds: float) -> str:
    """A span of time in its largest sensible unit."""
    size = abs(seconds)
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if size >= length:
            return f"{size / length:.0f} {unit}"
    return f"{size:.0f} s"
