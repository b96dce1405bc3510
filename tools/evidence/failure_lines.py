"""The lines of a run's logs that state a failure, with tracebacks put together and ranks told apart.

A line states a failure if it ends a traceback, begins with the name of an exception, or is a message that an engine,
a library or the kernel prints in a form of its own. All else, whatever words it holds, is only text.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime.layout import RunLayout

from .failure_signals import signal_in_text
from .log_lines import plain, rank_logs, read_lines, relative_name, without_rank_prefix

Kind = Literal["traceback", "message", "timeout", "signal", "secondary"]

_LIMIT = 5_000
_LIMIT_OF_ONE_KIND = 500  # in one log: thousands of threads or peers that say the same must not hide what follows
_FRAMES_LIMIT = 200
_TEXT_LIMIT = 2_000
_TIME = re.compile(r"^\s*\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?\s?")
_TRACEBACK = re.compile(r"^\s*(?:\+ Exception Group )?Traceback \(most recent call last\):\s*$")
FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line \d+(?:, in (?P<name>\S+))?')
_EXCEPTION = re.compile(
    r"^(?:[A-Za-z_]\w*\.)*_?(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Failed)|Exception|gaierror"
    r"|OutOfResources|NVMLError_\w+)(?::|\s*$)"
)
_MESSAGE = re.compile(
    r"^\S+:\d+:\d+ \[\d+\] .*NCCL WARN|^terminate called after throwing|^(?:\S+ )?\S+: error: "
    r"|^slurmstepd: error: |^srun: error: .*Out Of Memory|(?i:out of memory: Killed process)|oom-kill:"
    r"|NVRM: Xid|^Bus error|^ERROR: Unexpected bus error|^OpenBLAS blas_thread_init: pthread_create failed"
    r"|: block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion `"
    r"|^\[.{0,200}(?:Heartbeat monitor timed out!|due to ProcessGroup\w+ watchdog hang)"
    r"|^\[?[EW]?.{0,60}\] ?.{0,40}(?:Watchdog caught collective operation timeout|Received \d+ death signal)"
)
_TIMEOUT = re.compile(r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for \w+ operation", re.I)
_SECONDARY = re.compile(
    r"ChildFailedError|Connection (?:closed|reset) by peer|connection was (?:closed|reset)|ncclRemoteError"
    r"|BrokenPipeError"
    r"|NCCL communicator was aborted|ncclCommAbort|entire process down|closing signal SIGTERM"
    r"|Process \d+ got signal: 15\b|Received 15 death signal|SIGTERM|connection closed",
    re.IGNORECASE,
)
_NAN = re.compile(r"\bnan\b|non-?finite|not finite|\binf\b", re.IGNORECASE)
_WORLD_SIZE = re.compile(r"\bworld[ _]size\W{1,3}(\d{1,5})\b", re.IGNORECASE)


@dataclass(frozen=True)
class FailureLine:
    """One statement of a failure.

    Attributes:
        text: the line without colours, time and rank prefix.
        time: as printed in front of the line; empty if nothing was.
        frames: `file:function` of the traceback that it ends, outermost first.
    """

    kind: Kind
    file: str
    line: int
    rank: int | None
    text: str
    time: str = ""
    frames: tuple[str, ...] = ()


@dataclass
class FailureLog:
    """All statements in the order of the logs, and what the logs say of the job's size."""

    lines: list[FailureLine] = field(default_factory=list)
    world_size: int | None = None
    evaluation_sizes: dict[str, int] = field(default_factory=dict)

    def of_kind(self, *kinds: Kind) -> list[FailureLine]:
        return [line for line in self.lines if line.kind in kinds]


def read_failures(layout: RunLayout) -> FailureLog:
    """Read the logs of all ranks and of the engine."""
    found = FailureLog()
    for path, rank in _logs(layout):
        held: Counter[Kind] = Counter()
        for line in _statements(layout, path, rank, found):
            held[line.kind] += 1
            if len(found.lines) < _LIMIT and held[line.kind] <= _LIMIT_OF_ONE_KIND:
                found.lines.append(line)
    return found


def statement_of(text: str) -> str | None:
    """The failure that a single line states, without prefixes; None if it states none."""
    bare, _, _ = split_prefixes(plain(text))
    return bare if _EXCEPTION.match(bare) or _MESSAGE.search(bare) else None


def split_prefixes(text: str) -> tuple[str, str, int | None]:
    """The text less time and rank prefixes in either order; the time as printed, and the rank."""
    time, rank = "", None
    for _ in range(2):
        match = _TIME.match(text)
        if match:
            text, time = text[match.end() :], match[1]
        text, named = without_rank_prefix(text)
        rank = rank if named is None else named
    return text, time, rank


def _logs(layout: RunLayout) -> Iterator[tuple[Path, int | None]]:
    for rank in rank_logs(layout):
        yield layout.stderr(rank), rank
        yield layout.stdout(rank), rank
    yield layout.engine_log, None


def _statements(layout: RunLayout, path: Path, rank: int | None, found: FailureLog) -> Iterator[FailureLine]:
    file = relative_name(layout, path)
    open_frames: dict[int | None, list[str]] = {}
    for line in read_lines(path):
        text, time, named = split_prefixes(plain(line.text))
        who = rank if named is None else named
        _note_sizes(text, found)
        if _TRACEBACK.match(text):
            open_frames[who] = []
            continue
        frames = open_frames.get(who)
        if frames is not None and (not text.strip() or text[0].isspace()):
            if (match := FRAME.match(text)) and len(frames) < _FRAMES_LIMIT:
                frames.append(f"{match['file']}:{match['name'] or ''}")
            continue
        ends_traceback = open_frames.pop(who, None) is not None
        kind = _kind(text, ends_traceback=ends_traceback)
        if kind:
            yield FailureLine(kind, file, line.number, who, text[:_TEXT_LIMIT], time, tuple(frames or ()))


def _kind(text: str, *, ends_traceback: bool) -> Kind | None:
    if not (ends_traceback or _EXCEPTION.match(text) or _MESSAGE.search(text) or signal_in_text(text)):
        return "timeout" if _TIMEOUT.search(text) and text.startswith("[") else None
    if _TIMEOUT.search(text):
        return "timeout"
    if _SECONDARY.search(text):
        return "secondary"
    if signal_in_text(text):
        return "signal"
    return "traceback" if ends_traceback else "message"


_SIZES = {
    "batch": re.compile(r"eval_batch_size\W{1,3}(\d{1,9})\b"),
    "sequence": re.compile(r"\bseq(?:uence)?(?:_?len(?:gth)?)?\W{1,3}(\d{1,9})\b"),
    "vocabulary": re.compile(r"\bvocab(?:ulary)?(?:_size)?\W{1,3}(\d{1,9})\b"),
}


def _note_sizes(text: str, found: FailureLog) -> None:
    if match := _WORLD_SIZE.search(text):
        found.world_size = int(match[1])
    if "vocab" in text or "eval_batch_size" in text:
        for name, pattern in _SIZES.items():
            if match := pattern.search(text):
                found.evaluation_sizes[name] = int(match[1])


def in_time_order(lines: Iterable[FailureLine], *, ranks: Iterable[int] = ()) -> list[FailureLine]:
    """Earliest first: by printed time where every line has one, else in the order in which the ranks failed."""
    found = list(lines)
    if all(line.time for line in found):
        return sorted(found, key=lambda line: line.time.replace("T", " "))
    place = {rank: index for index, rank in enumerate(ranks)}
    return sorted(found, key=lambda line: place.get(line.rank if line.rank is not None else -1, len(place)))


def is_consequence(text: str) -> bool:
    """Whether a failure so stated follows from another: a lost connection, an abort, a timeout of those who wait."""
    return bool(_SECONDARY.search(text) or _TIMEOUT.search(text))


def speaks_of_nan(text: str) -> bool:
    """Whether a script stopped itself because a value was not finite."""
    return bool(_NAN.search(text))
