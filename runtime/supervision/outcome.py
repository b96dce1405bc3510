"""What became of the ranks: from the engine's failures, the ranks' exceptions and last lines, the first cause first."""

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.order import RankFailure
from ..layout import RunLayout
from ..masking import redact

_NUM_LAST_LINES = 20
_TAIL_BYTES = 16 * 1024
_LINE_CHARACTERS = 2000
_NUM_NAMED = 8


@dataclass(frozen=True)
class Outcome:
    """How the engine and its ranks ended. `exit_code` is what a shell would call the first failure's."""

    failures: tuple[RankFailure, ...]
    exit_code: int
    reason: str

    @property
    def succeeded(self) -> bool:
        return self.exit_code == 0 and not self.failures


def read_outcome(layout: RunLayout, engine_code: int) -> Outcome:
    """The outcome of an engine that ended with this code (-signal for a signal)."""
    told = [_read_json(path) for path in (layout.failures, *layout.other_failures())]
    rows = [row for data in told for row in data.get("failures", ()) if isinstance(row, dict)]
    failures = _in_order([_rank_failure(layout, row) for row in rows])
    if failures:
        first = failures[0]
        code = first.exit_code if first.signal is None else 128 + first.signal
        reason = f"rank {first.rank}: {first.message}{_ended_before(told)}"
        return Outcome(failures, 1 if code is None else code, reason)
    if engine_code == 0:
        return Outcome((), 0, "every rank ended with exit 0")
    last = last_lines(layout.engine_log, count=3)
    cause = _shown(str(next(filter(None, (data.get("engine_error") for data in told)), "") or " | ".join(last)))
    how = describe_end(engine_code if engine_code > 0 else None, -engine_code if engine_code < 0 else None)
    return Outcome((), engine_code if engine_code > 0 else 128 - engine_code, f"the engine (torchrun): {how}: {cause}")


def _ended_before(told: list[dict[str, Any]]) -> str:
    """Ranks that were through when the first one failed: the others may have waited for them."""
    ranks = sorted({int(rank) for data in told for rank in data.get("ended_before", ())})
    if not ranks:
        return ""
    named = ", ".join(map(str, ranks[:_NUM_NAMED])) + (", ..." if len(ranks) > _NUM_NAMED else "")
    return f" (ended before it, with exit 0: rank {named})"


def describe_end(exit_code: int | None, number: int | None) -> str:
    """'exit 7' or 'signal 9 (SIGKILL)'."""
    return f"exit {exit_code}" if number is None else f"signal {number} ({signal_name(number)})"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_error(layout: RunLayout, rank: int) -> dict[str, Any]:
    """The exception that ended this rank, as its worker recorded it; empty if none is known."""
    return _read_json(layout.error(rank))


def last_lines(path: Path, *, count: int = _NUM_LAST_LINES) -> tuple[str, ...]:
    """The last lines of a log, its secrets masked; none if it is not there."""
    try:
        with path.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - _TAIL_BYTES))
            text = handle.read().decode(errors="replace")
    except OSError:
        return ()
    lines = redact("\n".join(text.splitlines()[-count:])).split("\n") if text else []
    return tuple(line[:_LINE_CHARACTERS] for line in lines)


def _rank_failure(layout: RunLayout, row: dict[str, Any]) -> RankFailure:
    rank, number = int(row["rank"]), row.get("signal")
    error = read_error(layout, rank)
    message = describe_end(row.get("exit_code"), number)
    if error:
        said = _shown(str(error.get("message")))
        message += f": {error.get('type')}" + (f": {said}" if said else "")
    times = [float(time_s) for time_s in (error.get("time_s"), row.get("time_s")) if time_s is not None]
    lines = last_lines(layout.stdout(rank)) + last_lines(layout.stderr(rank))
    return RankFailure(
        rank=rank,
        exit_code=row.get("exit_code"),
        signal=number,
        signal_name="" if number is None else signal_name(number),
        time_s=min(times) if times else None,
        message=message[:_LINE_CHARACTERS],
        last_lines=lines,
    )


def _shown(text: str) -> str:
    """Without secrets, and with \\udcff and the like for bytes of file names that are no UTF-8."""
    return redact(text.encode(errors="backslashreplace").decode())


def _in_order(failures: list[RankFailure]) -> tuple[RankFailure, ...]:
    """Earliest first; those that the engine ended with SIGTERM because another had failed come after."""

    def key(failure: RankFailure) -> tuple[bool, bool, float, int]:
        time_s = failure.time_s
        return (failure.signal == signal.SIGTERM, time_s is None, time_s or 0.0, failure.rank)

    return tuple(sorted(failures, key=key))


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
