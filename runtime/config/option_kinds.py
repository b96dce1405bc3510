"""Kinds of values and their one parser: a text means the same on the command line, in the environment and in a file."""

import math
from dataclasses import dataclass
from typing import Any, Literal

TRUE_WORDS = ("true", "yes", "on", "1")
FALSE_WORDS = ("false", "no", "off", "0")
NULL_WORDS = ("null", "~")
_NO_WORDS = ("no", "off", "false")


class WrongValue(ValueError):
    """The text is no value of its kind; the message says what would be."""


@dataclass(frozen=True)
class Flag:
    """Yes or no."""

    def parse(self, text: str) -> bool:
        word = text.lower()
        if word in TRUE_WORDS:
            return True
        if word in FALSE_WORDS:
            return False
        raise WrongValue(self.allowed)

    @property
    def allowed(self) -> str:
        return "true, yes, on, 1, false, no, off, 0"


@dataclass(frozen=True)
class Whole:
    """A whole number; 1e8 is one."""

    low: int = 0
    high: int = 2**63 - 1

    def parse(self, text: str) -> int:
        try:
            number = int(text) if text.lstrip("+-").isdecimal() else _integral(text)
        except ValueError:
            raise WrongValue(self.allowed) from None
        if not text.isascii() or not self.low <= number <= self.high:
            raise WrongValue(self.allowed)
        return number

    @property
    def allowed(self) -> str:
        if self.high == 2**63 - 1:
            return f"a whole number of at least {self.low}"
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Number:
    """A finite number; 1e-5 is one."""

    low: float = 0.0
    high: float = math.inf

    def parse(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            raise WrongValue(self.allowed) from None
        if "_" in text or not text.isascii() or not math.isfinite(number) or not self.low <= number <= self.high:
            raise WrongValue(self.allowed)
        return number

    @property
    def allowed(self) -> str:
        return f"a number of at least {self.low:g}" + ("" if math.isinf(self.high) else f" and at most {self.high:g}")


@dataclass(frozen=True)
class Word:
    """One of a closed set, whatever its case.

    Attributes:
        no_word: what no, off and false mean (YAML makes one thing of them); empty if nothing.
        yes_word: the same for yes, on and true.
        old_words: (what older files say, the word that it means).
    """

    words: tuple[str, ...]
    no_word: str = ""
    yes_word: str = ""
    old_words: tuple[tuple[str, str], ...] = ()

    def parse(self, text: str) -> str:
        word = text.lower()
        for known in self.words:
            if known.lower() == word:
                return known
        for old, known in self.old_words:
            if old.lower() == word:
                return known
        if self.no_word and word in _NO_WORDS:
            return self.no_word
        if self.yes_word and word in TRUE_WORDS[:3]:
            return self.yes_word
        raise WrongValue(self.allowed)

    @property
    def allowed(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True)
class Text:
    """Any text that is not empty, without control characters."""

    def parse(self, text: str) -> str:
        if not text.strip() or any(ord(character) < 32 or ord(character) == 127 for character in text):
            raise WrongValue(self.allowed)
        _require_unicode(text, self.allowed)
        return text

    @property
    def allowed(self) -> str:
        return "a text that is not empty, in one line of UTF-8"


@dataclass(frozen=True)
class Many:
    """Several texts: repeated or separated by commas on the command line, a list in a file."""

    def parse(self, text: str) -> tuple[str, ...]:
        parts = tuple(part.strip() for part in text.split(","))
        if any(not part for part in parts):
            raise WrongValue(self.allowed)
        _require_unicode(text, self.allowed)
        return parts

    @property
    def allowed(self) -> str:
        return "texts separated by commas"


Kind = Flag | Whole | Number | Word | Text | Many

Effect = Literal["built", "none", "absent"]


@dataclass(frozen=True)
class Option:
    """One row of the table from which flags, variables, file keys and questions derive.

    Attributes:
        name: the flag --NAME (dashes or underscores) and the variable FORERUN_NAME.
        section: its group; in a file of ours, the mapping that it lies in ("" is the top level).
        default: the value if nobody gives one; None: it is found out, or not used.
        peer: its keys in the default_config.yaml of Accelerate, in full ("deepspeed_config.zero_stage").
        effect: built: this version acts on it; none: it changes nothing here; absent: no backend in this version.
        remark: why it changes nothing, or what to use in its place.
        accepts: the values that this version can act on, if not all.
        letter: a one-letter flag.
        question: what the wizard asks; empty if it does not.
        peer_unset: what Accelerate's files say for "not given".
        in_file: False for what belongs to one call alone.
    """

    name: str
    section: str
    kind: Kind
    help: str
    default: Any = None
    peer: tuple[str, ...] = ()
    effect: Effect = "built"
    remark: str = ""
    accepts: tuple[Any, ...] = ()
    letter: str = ""
    question: str = ""
    peer_unset: str = ""
    in_file: bool = True
    group: str = ""

    @property
    def variable(self) -> str:
        return f"FORERUN_{self.name.upper()}"

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def key(self) -> str:
        """The key in a file of ours, in full."""
        if not self.section:
            return self.name
        return f"{self.section}.{self.name.removeprefix(f'{self.section}_')}"

    @property
    def panel(self) -> str:
        """The heading in `--help` and in the table of `--explain`."""
        return self.group or self.section

    def asks_for_something(self, value: Any) -> bool:
        """Whether the value differs from doing nothing."""
        return value not in (None, False, "no", "none", (), self.default)


def parse_text(option: Option, text: str) -> Any:
    """The value of an option from its text; None for null, and for the None of Python where any text is a value.

    Raises:
        WrongValue: the text is no value of this option.
    """
    if text.lower() in NULL_WORDS or (text == "None" and isinstance(option.kind, Text | Many)):
        return None
    return option.kind.parse(text)


def write_text(value: Any) -> str:
    """The text that parses to the value again, for showing."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def _require_unicode(text: str, allowed: str) -> None:
    """Bytes that are no UTF-8 come from a shell or the environment as surrogates, which no file of ours can hold."""
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise WrongValue(allowed)


def _integral(text: str) -> int:
    number = float(text)
    if "_" in text or not math.isfinite(number) or number != int(number):
        raise ValueError(text)
    return int(number)
