"""Text that came from outside, made safe to show: controls become visible, secrets are masked.

Every text from a log, a file name, a column or an exception passes `shown` (or `visible` and `redact`) before it
reaches an agent, a terminal, a report or an approval.
"""

import re
import unicodedata

from runtime.masking import MASK, redact, secret_spans

__all__ = ["MASK", "mixed_words", "redact", "secret_spans", "shown", "visible"]

# Marks that take no room or are drawn as nothing: text can hide in them though they are no "format" characters.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
_VISIBLE_UNPRINTABLE = "Zs"  # spaces of other widths
_WORD = re.compile(r"\w+")
# Alphabets with letters that look like Latin ones, and Latin letters in another dress.
_ALIKE = ("CYRILLIC ", "GREEK ", "ARMENIAN ", "CHEROKEE ", "COPTIC ", "LISU ", "FULLWIDTH ", "MATHEMATICAL ")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """`text` with every control, escape, bidirectional and zero-width character written as an escape.

    Nothing is removed: what a terminal would have hidden or overwritten stays in the result, in its order.

    Args:
        keep_newlines: leave "\\n" as it is; all other controls are escaped in any case.
    """
    if text.isprintable() and not _INVISIBLE.search(text):
        return text
    return "".join(c if keep_newlines and c == "\n" else _escape(c) for c in text)


def _escape(character: str) -> str:
    printable = character.isprintable() or unicodedata.category(character) == _VISIBLE_UNPRINTABLE
    if printable and not _INVISIBLE.match(character):
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def mixed_words(text: str) -> tuple[str, ...]:
    """Words with letters of Latin and of an alphabet whose letters look like it, the others written as escapes.

    Such a word may be read as another one: a path with a Cyrillic `a` is not the path that it seems to be.
    """
    found: dict[str, None] = {}
    for word in dict.fromkeys(_WORD.findall(text)):
        if word.isascii():
            continue
        names = [unicodedata.name(character, "") for character in word if character.isalpha()]
        foreign = any(name.startswith(_ALIKE) for name in names)
        if foreign and any(name.startswith("LATIN ") for name in names):
            found[_spelt(word)] = None
    return tuple(found)


def _spelt(word: str) -> str:
    return "".join(c if c.isascii() else f"\\u{ord(c):04x}" if ord(c) < 2**16 else f"\\U{ord(c):08x}" for c in word)


def shown(text: str, *, keep_newlines: bool = False) -> str:
    """Masked, then made visible: the form in which outside text may leave the server."""
    return visible(redact(text), keep_newlines=keep_newlines)
