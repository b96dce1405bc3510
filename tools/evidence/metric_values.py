"""What counts as a metric in an object that a script printed: one rule for JSON lines, dicts and trainer_state.json.

An object counts when it has a number under `step`, `global_step`, `iter`, `iteration` or `epoch`, or under any key
that contains "loss". Then each of its numbers is a metric under its own key, except the step keys, which say after
which step it was measured, and the clock keys. Nested objects, texts and booleans are passed over. Infinite and NaN
values are values; a number that cannot be represented is passed over.
"""

import math
import re
from collections.abc import Iterator, Mapping

from runtime.records import MetricRecord

STEP_KEYS = ("global_step", "step", "iteration", "iter")
_CLOCK_KEYS = ("time_s", "timestamp", "_timestamp", "time")
_NOT_METRICS = frozenset(STEP_KEYS) | frozenset(_CLOCK_KEYS) | {"rank"}
_PLAUSIBLE_EPOCH_S = 1e9
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?\Z")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}

UNKNOWN_TIME = math.nan
"""`time_s` of a record whose source carries no time: unknown, never a guess."""


def records_of(data: Mapping[str, object], *, rank: int, numeric_texts: bool = False) -> Iterator[MetricRecord]:
    """The metric records of one printed object, origin `adapter`; none if the object does not count.

    Args:
        numeric_texts: also read '0.5' as a number, as newer transformers print it.
    """
    values = {key: number(value, numeric_texts=numeric_texts) for key, value in data.items() if isinstance(key, str)}
    known = {key: value for key, value in values.items() if value is not None}
    if not any(key in STEP_KEYS or key == "epoch" or "loss" in key.lower() for key in known):
        return
    step = next((s for key in STEP_KEYS if (s := _step(known.get(key))) is not None), None)
    time_s = next((t for key in _CLOCK_KEYS if (t := known.get(key)) and t > _PLAUSIBLE_EPOCH_S), UNKNOWN_TIME)
    for key, value in known.items():
        if key not in _NOT_METRICS:
            yield MetricRecord(step, printable_name(key), value, rank, time_s, origin="adapter")


def number(value: object, *, numeric_texts: bool = False) -> float | None:
    """`value` as a float, or None if it is no number; the texts NaN, inf, Infinity count always."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return None
    if isinstance(value, str):
        return number_in_text(value, finite=numeric_texts)
    return None


def number_in_text(text: str, *, finite: bool = True) -> float | None:
    """The number that `text` spells, or None."""
    word = text.strip()
    unsigned = word.lstrip("+-").lower()
    if unsigned in _NON_FINITE and len(word) - len(unsigned) <= 1:
        return -_NON_FINITE[unsigned] if word.startswith("-") else _NON_FINITE[unsigned]
    return float(word) if finite and len(word) <= 40 and _NUMBER.match(word) else None


def printable_name(name: str) -> str:
    """A metric's name with everything unprintable escaped, at most 200 characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name[:200])


def _step(value: float | None) -> int | None:
    if value is None or not math.isfinite(value) or value < 0 or value != int(value) or value > 2**53:
        return None
    return int(value)
