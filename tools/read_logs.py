"""read_logs: a page of a rank's log, of any size, from a byte offset on, without repeats or gaps.

Newlines and carriage returns both end a line, so progress bars become lines. The pattern is a plain substring, without
regard to case: a regular expression from outside can be made to run for hours. It is compared with the text as it is
shown, so it cannot be used to guess what is masked.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, get_args

from runtime.layout import RunLayout

from .domain.errors import InvalidInput
from .domain.reports import LogPage
from .evidence.log_lines import rank_logs
from .text import MASK, secret_spans, visible

PAGE_BYTES = 20_000
MAX_LINES = 1_000
TAIL = "tail"
_PIECE_BYTES = 4_096
_SCAN_BYTES = 4 * 2**20
_CONTEXT_BYTES = 1_024
_PATTERN_LENGTH = 200
_END = re.compile(rb"[\r\n]")

Stream = Literal["stdout", "stderr", "engine"]

CONTINUES = "the first line goes on from the page before"
UNFINISHED = "the last line is not finished"


@dataclass(frozen=True)
class Piece:
    """A line, or a part of one, as bytes `start` to `end` of the file. `next_start` is where the next piece begins."""

    start: int
    end: int
    next_start: int
    starts_line: bool
    ends_line: bool


def read_logs(
    layout: RunLayout,
    *,
    run_id: str,
    rank: int,
    cursor: str,
    pattern: str,
    max_lines: int,
    stream: Stream = "stdout",
) -> LogPage:
    """The next page of a log.

    Args:
        cursor: empty for the beginning, `tail` for the newest lines, else what the page before gave.
        pattern: show only lines that contain it; empty for all. A line of over 4 KiB is looked at in parts.
        max_lines: 1 to MAX_LINES. A page has at most PAGE_BYTES, whatever the lines are.

    Raises:
        InvalidInput: a cursor of another log, a rank without a log, a pattern that is too long, or a bad number.
    """
    _require(max_lines, pattern, stream)
    path = _log(layout, rank=rank, stream=stream)
    name = "engine" if stream == "engine" else f"rank{rank}.{stream}"
    if not path.is_file():
        return LogPage(run_id=run_id, lines=(), cursor=_cursor(name, 0), at_end=True, note=f"no {name} log yet")
    with path.open("rb") as handle:
        size = os.fstat(handle.fileno()).st_size
        start = _tail_start(handle, size, max_lines) if cursor == TAIL else _offset(cursor, name, size)
        lines, position, notes = _page(handle, start, size, max_lines=max_lines, pattern=pattern)
    at_end = position >= size or _only_cut_character(path, position, size)
    return LogPage(
        run_id=run_id, lines=tuple(lines), cursor=_cursor(name, position), at_end=at_end, note="; ".join(notes)
    )


def pieces(handle: BinaryIO, start: int, size: int) -> Iterator[Piece]:
    """The lines from byte `start` up to `size`, long ones in pieces of at most _PIECE_BYTES, characters left whole.

    Bytes at the very end that may be the beginning of a character are left for the next call.
    """
    position = _after_line_feed(handle, start)
    starts_line = position == 0 or _byte(handle, position - 1) in b"\r\n"
    while position < size:
        handle.seek(position)
        block = handle.read(min(_PIECE_BYTES, size - position))
        match = _END.search(block)
        if match:
            end = position + match.start()
            after = _after_line_feed(handle, end + 1) if match[0] == b"\r" else end + 1
            yield Piece(position, end, after, starts_line, True)
            position, starts_line = after, True
            continue
        whole = len(block) - _cut_character(block)
        if whole == 0:
            return
        yield Piece(position, position + whole, position + whole, starts_line, False)
        position, starts_line = position + whole, False


def _page(handle: BinaryIO, start: int, size: int, *, max_lines: int, pattern: str) -> tuple[list[str], int, list[str]]:
    lines: list[str] = []
    notes: list[str] = []
    position, room, finished = _after_line_feed(handle, start), PAGE_BYTES, True
    for piece in pieces(handle, start, size):
        if len(lines) >= max_lines or piece.start - start > _SCAN_BYTES:
            notes.append("more follows")
            break
        if _cannot_match(handle, piece, pattern):
            position = piece.next_start
            continue
        text = _shown(handle, piece, size)
        blank_update = not text and _byte(handle, piece.end) == b"\r"
        if pattern.casefold() in text.casefold() and not blank_update:
            length = len(text.encode()) + 1
            if length > room and lines:
                notes.append(f"cut at {PAGE_BYTES} bytes, more follows")
                break
            if not lines and not piece.starts_line:
                notes.append(CONTINUES)
            lines.append(text)
            room -= length
            finished = piece.ends_line
        position = piece.next_start
    if lines and not finished:
        notes.append(UNFINISHED)
    return lines, position, notes


def _cannot_match(handle: BinaryIO, piece: Piece, pattern: str) -> bool:
    """Told without masking: what is shown of printable text is the text itself, with `***` in some places."""
    if not pattern or "*" in pattern:
        return False
    text = _decode(_bytes(handle, piece.start, piece.end))
    return text.isprintable() and pattern.casefold() not in text.casefold()


def _shown(handle: BinaryIO, piece: Piece, size: int) -> str:
    """The piece with secrets masked and controls visible. A secret may begin before the piece, so its neighbourhood
    on the same line is looked at too."""
    if piece.starts_line and piece.ends_line:
        return _masked(_bytes(handle, piece.start, piece.end), b"", b"")
    before = _bytes(handle, max(0, piece.start - _CONTEXT_BYTES), piece.start)
    after = _bytes(handle, piece.end, min(size, piece.end + _CONTEXT_BYTES))
    return _masked(_bytes(handle, piece.start, piece.end), _END.split(before)[-1], _END.split(after)[0])


def _masked(raw: bytes, before: bytes, after: bytes) -> str:
    text, left = _decode(raw), _decode(before)
    whole = left + text + _decode(after)
    result, position = "", len(left)
    for start, end in secret_spans(whole):
        start, end = max(start, len(left)), min(end, len(left) + len(text))
        if start < end:
            result += visible(whole[position:start]) + MASK
            position = end
    return result + visible(whole[position : len(left) + len(text)])


def _tail_start(handle: BinaryIO, size: int, max_lines: int) -> int:
    """Where the newest lines begin: at most `max_lines` and half a page of bytes before the end."""
    begin = max(0, size - PAGE_BYTES // 2)
    block = _bytes(handle, begin, size)
    starts = [0] if begin == 0 else []
    starts += [m.end() for m in re.finditer(rb"\r\n|\r|\n", block) if m.end() < len(block)]
    if starts:
        return begin + starts[-max_lines:][0]
    return begin + next((i for i, byte in enumerate(block[:4]) if byte & 0xC0 != 0x80), 0)


def _require(max_lines: int, pattern: str, stream: str) -> None:
    if not 1 <= max_lines <= MAX_LINES:
        raise InvalidInput(f"max_lines {max_lines}", allowed=f"1 to {MAX_LINES}")
    if len(pattern) > _PATTERN_LENGTH:
        raise InvalidInput(f"a pattern of {len(pattern)} characters", allowed=f"a substring of up to {_PATTERN_LENGTH}")
    if stream not in get_args(Stream):
        raise InvalidInput(f"stream {visible(stream)!r}", allowed=", ".join(get_args(Stream)))


def _log(layout: RunLayout, *, rank: int, stream: Stream) -> Path:
    if stream == "engine":
        return layout.engine_log
    known = rank_logs(layout)
    if rank < 0 or (known and rank not in known):
        raise InvalidInput(
            f"rank {rank} has no log in this run",
            allowed="ranks " + ", ".join(map(str, known)) if known else "0 and above",
        )
    return layout.stdout(rank) if stream == "stdout" else layout.stderr(rank)


def _cursor(name: str, offset: int) -> str:
    return f"{name}@{offset}"


def _offset(cursor: str, name: str, size: int) -> int:
    if not cursor:
        return 0
    match = re.fullmatch(r"([a-z0-9.]{1,40})@(\d{1,15})", cursor)
    if match is None or match[1] != name or int(match[2]) > size:
        raise InvalidInput(
            f"cursor {visible(cursor[:100])!r} is not one of the {name} log",
            allowed="empty for the beginning, 'tail' for the newest lines, or the cursor of the page before",
        )
    return int(match[2])


def _only_cut_character(path: Path, position: int, size: int) -> bool:
    if size - position > 3:
        return False
    with path.open("rb") as handle:
        rest = _bytes(handle, position, size)
    return _cut_character(rest) == len(rest)


def _cut_character(block: bytes) -> int:
    """How many bytes at the end of `block` begin a UTF-8 character that is not complete; 0 to 3."""
    for back in range(1, min(3, len(block)) + 1):
        byte = block[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if 0xF0 <= byte <= 0xF4 else 3 if 0xE0 <= byte <= 0xEF else 2 if 0xC2 <= byte <= 0xDF else 1
        return back if needed > back else 0
    return 0


def _after_line_feed(handle: BinaryIO, position: int) -> int:
    """`position`, or the next one where a carriage return before it and a line feed at it are one line end."""
    if position > 0 and _byte(handle, position - 1) == b"\r" and _byte(handle, position) == b"\n":
        return position + 1
    return position


def _byte(handle: BinaryIO, position: int) -> bytes:
    return _bytes(handle, position, position + 1)


def _bytes(handle: BinaryIO, start: int, end: int) -> bytes:
    handle.seek(start)
    return handle.read(end - start)


def _decode(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
