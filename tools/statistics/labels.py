"""Two columns that must be compared value by value: of one type, or brought to one in the open, or refused."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..domain.errors import InvalidInput

_EXACT_FLOATS = 2**53


@dataclass(frozen=True)
class Unified:
    """Both columns with values that compare as they should; `note` says what was converted, empty if nothing was."""

    first: list[Any]
    second: list[Any]
    note: str


def unify(first: Sequence[Any], second: Sequence[Any], *, what_first: str, what_second: str) -> Unified:
    """Bring two columns without gaps to one type.

    Integers and integral floats compare as numbers. Text and numbers compare as numbers only if every text is a
    number in its plain form ('1', not '01' or '1.0' for 1), and the note says so. All else is refused.

    Raises:
        InvalidInput: a column mixes types, or the two cannot be compared without guessing.
    """
    kinds = [_kind(first, what_first), _kind(second, what_second)]
    if kinds[0] == kinds[1]:
        return Unified(list(first), list(second), "")
    if set(kinds) == {"integer", "number"}:
        return _integers_and_floats(first, second, what_first, what_second)
    if "text" in kinds and set(kinds) & {"integer", "number"}:
        text_is_first = kinds[0] == "text"
        text, what_text = (first, what_first) if text_is_first else (second, what_second)
        what_numbers = what_second if text_is_first else what_first
        numbers = [_plain_number(value) for value in text]
        wrong = [value for value, number in zip(text, numbers, strict=True) if number is None]
        if wrong:
            raise InvalidInput(
                f"{what_text} is text and {what_numbers} holds numbers; {len(wrong)} texts are no plain number:"
                f" {first_few(wrong)}",
                allowed="the same type in both files",
                next_step="write the values in the same form as the hold-out file",
            )
        note = f"{what_text} is text, {what_numbers} holds numbers; compared as numbers"
        if text_is_first:
            return Unified(list(numbers), list(second), note)
        return Unified(list(first), list(numbers), note)
    raise InvalidInput(
        f"{what_first} is of type {kinds[0]} and {what_second} of type {kinds[1]}",
        allowed="the same type in both files",
        next_step="write the values in the same form as the hold-out file",
    )


def is_missing(value: Any) -> bool:
    """None, an empty text, or a float NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def first_few(values: Iterable[Any], *, num: int = 5) -> str:
    """The first values as Python literals, and how many more there are."""
    listed = list(values)
    more = f" and {len(listed) - num} more" if len(listed) > num else ""
    return ", ".join(repr(value)[:80] for value in listed[:num]) + more


def _kind(values: Sequence[Any], what: str) -> str:
    kinds = sorted({_kind_of(value) for value in values})
    if kinds == ["integer", "number"]:
        return "number"
    if len(kinds) > 1:
        raise InvalidInput(f"{what} mixes the types {', '.join(kinds)}", allowed="one type in a column")
    if kinds and kinds[0] in ("list", "dict"):
        raise InvalidInput(f"{what} holds values of type {kinds[0]}", allowed="text or numbers")
    return kinds[0] if kinds else "empty"


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "integer"
    if isinstance(value, float):
        return "number"
    return "text" if isinstance(value, str) else type(value).__name__


def _integers_and_floats(first: Sequence[Any], second: Sequence[Any], what_first: str, what_second: str) -> Unified:
    for values, what in ((first, what_first), (second, what_second)):
        blurred = [v for v in values if isinstance(v, float) and abs(v) >= _EXACT_FLOATS]
        if blurred:
            raise InvalidInput(
                f"{what} holds floats beyond 2^53, where neighbouring integers fall together: {first_few(blurred)}",
                allowed="integers or text",
                next_step="write large ids as integers or text",
            )
    return Unified(
        list(first), list(second), f"{what_first} and {what_second}: integers and floats, compared as numbers"
    )


def _plain_number(text: str) -> int | float | None:
    for convert in (int, float):
        try:
            number = convert(text)
        except ValueError:
            continue
        if str(number) == text and not (isinstance(number, float) and not math.isfinite(number)):
            return number
    return None
