"""What runs used: seconds that really ran, and their price. A run that has ended never gets dearer."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import RecordError
from runtime.layout import RunLayout
from runtime.run_files import read_claim, read_heartbeat

from ..domain.budget import plausible
from ..domain.run_state import RunRecord

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True)
class Spell:
    """One stretch of running. `seconds` is None if it is not known, or if nothing was launched.

    Attributes:
        started_at_s: tells spells of one run apart, e.g. before and after a resume.
        source: where the seconds come from, in words.
    """

    run_id: str
    state: str
    started_at_s: float | None
    seconds: float | None
    source: str
    launched: bool = True


@dataclass(frozen=True)
class Line:
    spell: Spell
    cost: float | None


@dataclass(frozen=True)
class Account:
    """Lines and their sums. A sum is None if a launched spell has no known seconds, or no price is known."""

    lines: tuple[Line, ...]
    total_seconds: float | None
    total_cost: float | None
    num_executed: int
    notes: tuple[str, ...]

    @property
    def total_cost_shown(self) -> float | None:
        """The sum of the lines as they are printed, in hundredths: what a reader who adds them up finds."""
        if self.total_cost is None:
            return None
        return round(sum(round(line.cost or 0.0, 2) for line in self.lines), 2)


def account(
    spells: Sequence[Spell], *, price_per_hour: float | None, other_prices: Mapping[str, float | None] | None = None
) -> Account:
    """Price each spell once.

    Args:
        price_per_hour: for all devices of the job together; None if no price is known.
        other_prices: run id -> its price per hour, where it is another job's: more devices, or an earlier price.
    """
    unique, notes = _without_repeats(spells)
    prices = {spell.run_id: price_per_hour for spell in unique} | dict(other_prices or {})
    lines = [Line(spell, _cost(spell, prices[spell.run_id])) for spell in unique]
    launched = [line for line in lines if line.spell.launched]
    known = [line.spell.seconds for line in launched if line.spell.seconds is not None]
    if len(known) < len(launched):
        notes.append(f"{len(launched) - len(known)} runs have no known duration, so there is no total")
    complete = len(known) == len(launched)
    unpriced = [line for line in launched if line.spell.seconds and line.cost is None]
    if price_per_hour is not None and unpriced:
        notes.append(f"{len(unpriced)} runs have no known price in this currency, so there is no total cost")
    priced = complete and price_per_hour is not None and not unpriced
    return Account(
        lines=tuple(lines),
        total_seconds=sum(known) if complete else None,
        total_cost=sum(line.cost or 0.0 for line in launched) if priced else None,
        num_executed=sum(1 for seconds in known if seconds > 0),
        notes=tuple(notes),
    )


def spell_of(run: RunRecord) -> Spell:
    """How long this run ran: from its result, else its last heartbeat, else zero if no process was ever started."""
    if run.result is not None:
        return _spell(run, run.result.started_at_s, run.result.elapsed_s, "result.json")
    layout = RunLayout(Path(run.run_dir))
    try:
        heartbeat, claim = read_heartbeat(layout), read_claim(layout)
    except (RecordError, OSError) as error:
        return _spell(run, None, None, f"unknown: {error}")
    if heartbeat is not None:
        source = "last heartbeat; the run left no end" if run.ended else "last heartbeat; the run goes on"
        return _spell(run, heartbeat.time_s - heartbeat.elapsed_s, heartbeat.elapsed_s, source)
    if run.ended and (claim is None or claim.owner == "tombstone"):
        return _spell(run, None, 0.0, "no process was started")
    return _spell(run, None, None, "unknown: neither result nor heartbeat")


def _spell(run: RunRecord, started_at_s: float | None, seconds: float | None, source: str) -> Spell:
    if seconds is not None and not plausible(seconds):
        return Spell(run.run_id, run.state.value, None, None, f"unknown: {source} says {seconds:g} s")
    return Spell(run.run_id, run.state.value, started_at_s, seconds, source)


def _without_repeats(spells: Iterable[Spell]) -> tuple[list[Spell], list[str]]:
    """Each spell once; of two reports the longer one, since the other was made earlier."""
    seen: dict[tuple[str, float | None], Spell] = {}
    notes: dict[str, None] = {}
    for spell in spells:
        key = (spell.run_id, spell.started_at_s)
        if key in seen:
            notes[f"{spell.run_id} was reported more than once and is counted once"] = None
            if (seen[key].seconds or 0.0) >= (spell.seconds or 0.0):
                continue
        seen[key] = spell
    return list(seen.values()), list(notes)


def _cost(spell: Spell, price_per_hour: float | None) -> float | None:
    if not spell.launched or spell.seconds is None or price_per_hour is None:
        return None
    return spell.seconds / _SECONDS_PER_HOUR * price_per_hour
