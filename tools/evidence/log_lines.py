"""Lines of a log of any size in flat memory: newline and carriage return both end a line, endless lines are cut."""

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.layout import RunLayout

LINE_LIMIT_BYTES = 65_536
_CHUNK_BYTES = 65_536
NON_FINITE = re.compile(rb"(?i)(?<![\w.])-?(?:nan|inf|infinity)\b")
WINDOW_BYTES = 262_144
_MOST_HELD = 1_000
_PARTS = re.compile(rb"[^\r\n]+|\n|\r")

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?|\x1b[ -/]*[0-~]?"
)
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_RANK_PREFIX = re.compile(r"^\s*\[(?:rank|default)(\d{1,5})\]:\s?")
_RANK_FILE = re.compile(r"rank(\d{1,5})\.(stdout|stderr)\.log\Z")
_METRICS_FILE = re.compile(r"metrics\.rank(\d{1,5})\.jsonl\Z")


@dataclass(frozen=True)
class LogLine:
    """One line. `number` counts newlines alone, from 1, as editors do; several progress updates may share it.

    Attributes:
        complete: a line end follows; False only for the last line of a file, which may still grow.
        cut: the line was longer than LINE_LIMIT_BYTES and `text` is its beginning.
    """

    number: int
    text: str
    complete: bool = True
    cut: bool = False


def read_lines(path: Path) -> Iterator[LogLine]:
    """The lines of `path` that are not empty, bytes that are no UTF-8 shown as \\xNN. A missing file has none."""
    yield from _lines(path, None)


def read_recent_lines(path: Path) -> Iterator[LogLine]:
    """The whole lines in the last WINDOW_BYTES: what is new, at the same cost however long the file has become."""
    size = path.stat().st_size if path.is_file() else 0
    if size <= WINDOW_BYTES:
        yield from _lines(path, None)
        return
    with path.open("rb") as handle:
        number, left = 1, size - WINDOW_BYTES
        while chunk := handle.read(min(left, _CHUNK_BYTES)):
            number += chunk.count(b"\n")
            left -= len(chunk)
        rest = handle.read(WINDOW_BYTES)
    begin = re.search(rb"[\r\n]", rest)
    if begin:
        yield from _split(iter([rest[begin.start() :]]), number, None)


def read_non_finite_lines(path: Path) -> Iterator[LogLine]:
    """The first lines that hold the word NaN or inf, found without reading the others closely."""
    yield from itertools.islice(_lines(path, NON_FINITE), _MOST_HELD)


def _lines(path: Path, holding: re.Pattern[bytes] | None) -> Iterator[LogLine]:
    if not path.is_file():
        return
    with path.open("rb") as handle:
        yield from _split(iter(lambda: handle.read(_CHUNK_BYTES), b""), 1, holding)


def _split(chunks: Iterator[bytes], number: int, holding: re.Pattern[bytes] | None) -> Iterator[LogLine]:
    pending, cut = b"", False
    for chunk in chunks:
        for part in _PARTS.findall(chunk):
            if part not in (b"\n", b"\r"):
                cut = cut or len(pending) + len(part) > LINE_LIMIT_BYTES
                pending += part[: LINE_LIMIT_BYTES - len(pending)]
                continue
            if pending:
                if holding is None or holding.search(pending):
                    yield LogLine(number, _decode(pending), True, cut)
                pending, cut = b"", False
            if part == b"\n":
                number += 1
    if pending and (holding is None or holding.search(pending)):
        yield LogLine(number, _decode(pending), False, cut)


LineReader = Callable[[Path], Iterator[LogLine]]
"""read_lines, read_recent_lines or read_non_finite_lines."""


def plain(text: str) -> str:
    """`text` less terminal sequences and unseen characters: for parsing numbers and phrases, never for showing."""
    if text.isascii() and text.isprintable():
        return text
    return _UNSEEN.sub("", _ESCAPE_SEQUENCE.sub("", text))


def without_rank_prefix(text: str) -> tuple[str, int | None]:
    """`text` less torchrun's `[rank3]:` or `[default3]:`, and the rank that it named."""
    match = _RANK_PREFIX.match(text)
    return (text[match.end() :], int(match[1])) if match else (text, None)


def rank_logs(layout: RunLayout) -> list[int]:
    """The ranks that have a log, in order."""
    return _ranks(layout.logs, _RANK_FILE)


def rank_metrics(layout: RunLayout) -> list[int]:
    """The ranks that have a metrics file of the runtime, in order."""
    return _ranks(layout.root, _METRICS_FILE)


def relative_name(layout: RunLayout, path: Path) -> str:
    """`path` as evidence names it: relative to the run directory."""
    return path.relative_to(layout.root).as_posix()


def _ranks(directory: Path, pattern: re.Pattern[str]) -> list[int]:
    if not directory.is_dir():
        return []
    return sorted({int(match[1]) for entry in directory.iterdir() if (match := pattern.match(entry.name))})


def _decode(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
