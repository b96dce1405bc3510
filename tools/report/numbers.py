"""Numbers in prose: found, with their unit and precision, however they are written."""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace

_SMALL = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_WORDS = {word: value for value, word in enumerate(_SMALL) if value >= 2}
_WORDS |= {word: 10 * value for value, word in enumerate(_TENS, 2)}
_WORDS |= {f"{ten}-{one}": 10 * t + o for t, ten in enumerate(_TENS, 2) for o, one in enumerate(_SMALL) if 0 < o < 10}
_WORDS |= {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
RATIO_WORDS = frozenset(
    [
        "twice",
        "thrice",
        "double",
        "doubled",
        "doubles",
        "doubling",
        "triple",
        "tripled",
        "halved",
        "quadrupled",
        "tenfold",
        "twofold",
        "threefold",
    ]
)
_SKIPPED = re.compile(
    r"\b(?:plan|req|run)-[0-9a-z]{10}\b|\b[0-9a-f]{12,64}\b|\b\d+(?:st|nd|rd|th)\b|(?m:^\s*\d+[.)]\s)", re.IGNORECASE
)
_TOKEN = re.compile(
    r"(?P<version>\b\d+\.\d+\.\d+[\w.+]*)"
    r"|(?P<date>\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?Z?)?)"
    r"|(?P<less><\s?)?(?<![\w.])(?P<number>[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?:e[-+]?\d+)?)(?P<unit>\s?%|[^\W\d_]*)"
    r"|(?P<word>[^\W\d_][\w\-]*)",
    re.IGNORECASE,
)
UNITS = {
    "%": ("ratio", 0.01),
    "percent": ("ratio", 0.01),
    "ms": ("s", 0.001),
    "s": ("s", 1.0),
    "sec": ("s", 1.0),
    "secs": ("s", 1.0),
    "second": ("s", 1.0),
    "seconds": ("s", 1.0),
    "min": ("s", 60.0),
    "mins": ("s", 60.0),
    "minute": ("s", 60.0),
    "minutes": ("s", 60.0),
    "h": ("s", 3600.0),
    "hour": ("s", 3600.0),
    "hours": ("s", 3600.0),
    "kb": ("bytes", 1e3),
    "mb": ("bytes", 1e6),
    "gb": ("bytes", 1e9),
    "kib": ("bytes", 2.0**10),
    "mib": ("bytes", 2.0**20),
    "gib": ("bytes", 2.0**30),
    "k": ("", 1e3),
}


@dataclass(frozen=True)
class Token:
    """A word, or a number with the place of its last given digit (`step`, in the unit's scale).

    Attributes:
        text: the word in lower case, or the number as written.
        value: None for words, versions and dates.
        kind: word, number, version or date.
        unit: ratio, s, bytes, another unit as written, or empty.
        digits: significant digits that were given.
        below: written as "< number".
    """

    text: str
    kind: str
    value: float | None = None
    step: float = 0.0
    unit: str = ""
    digits: int = 0
    below: bool = False


def tokens_of(sentence: str) -> list[Token]:
    """Words and numbers in order. Full-width and other digits count; ids, digests and ordinals do not."""
    text = unicodedata.normalize("NFKC", sentence)
    text = "".join(str(unicodedata.digit(c)) if c.isdigit() and not c.isascii() else c for c in text)
    return list(_with_units(_raw_tokens(_SKIPPED.sub(" ", text))))


def _raw_tokens(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        if match["version"] or match["date"]:
            yield Token(match[0], "version" if match["version"] else "date")
        elif match["number"]:
            number = _number(match["number"], (match["unit"] or "").strip())
            yield replace(number, below=bool(match["less"]))
        else:
            word = match["word"].lower()
            if word in _WORDS:
                yield Token(word, "number", float(_WORDS[word]), 1.0, "", len(str(_WORDS[word])))
            else:
                yield Token(word, "word")


def _number(text: str, unit: str) -> Token:
    plain = text.replace(",", "").lower()
    mantissa, _, exponent = plain.partition("e")
    decimals = len(mantissa.partition(".")[2])
    step = 10.0 ** (int(exponent or 0) - decimals)
    digits = len(mantissa.lstrip("+-").replace(".", "").lstrip("0")) or 1
    return _scaled(Token(text, "number", float(plain), step, "", digits), unit)


def _scaled(token: Token, unit: str) -> Token:
    assert token.value is not None
    if not unit:
        return token
    name, factor = UNITS.get(unit.lower(), (unit.lower(), 1.0))
    return replace(token, value=token.value * factor, step=token.step * factor, unit=name)


def _with_units(raw: Iterator[Token]) -> Iterator[Token]:
    """Join a number with a unit that follows as a word of its own."""
    held: Token | None = None
    for token in raw:
        if held is not None and token.kind == "word" and token.text in UNITS and not held.unit:
            yield _scaled(held, token.text)
            held = None
            continue
        if held is not None:
            yield held
        held = token if token.kind == "number" else None
        if held is None:
            yield token
    if held is not None:
        yield held
