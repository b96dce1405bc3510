"""Lines of a log of any size in flat memory: newline and carriage return both end a line, endless lines are cut."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.layout import RunLayout

LINE_LIMIT_BYTES = 65_536
_CHUNK_BYTES = 65_536
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
    if not path.is_file():
        return
    number, pending, cut = 1, b"", False
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK_BYTES):
            for part in _PARTS.findall(chunk):
                if part not in (b"\n", b"\r"):
                    cut = cut or len(pending) + len(part) > LINE_LIMIT_BYTES
                    pending += part[: LINE_LIMIT_BYTES - len(pending)]
                    continue
                if pending:
                    yield LogLine(number, _decode(pending), True, cut)
                    pending, cut = b"", False
                if part == b"\n":
                    number += 1
    if pending:
        yield LogLine(number, _decode(pending), False, cut)


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
