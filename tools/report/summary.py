"""The agent's summary, sentence by sentence: a number counts only if evidence of the report supports it."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..domain.reports import Verification
from ..statistics import explain_as_batch_means
from ..text import shown
from .known_numbers import Known
from .numbers import RATIO_WORDS, Token, tokens_of

MAX_CHARACTERS = 20_000
_BOUNDARY = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+|\n+")
_NO_SENTENCE = re.compile(r"[\W\d_]*")
_TRAINING_WORDS = frozenset(["script", "training", "train", "validation", "val", "reported", "reports", "logged"])
_HELD_OUT_WORDS = frozenset(["verified", "holdout", "hold-out", "held-out", "server-scored", "confirmed"])
_COMPARING = frozenset(
    [
        "better",
        "beats",
        "beat",
        "outperforms",
        "outperformed",
        "outperform",
        "exceeds",
        "exceeded",
        "surpasses",
        "surpassed",
        "superior",
        "improves",
        "improved",
        "state-of-the-art",
        "sota",
        "significantly",
        "significant",
    ]
)
_RELATIVE_TOLERANCE = 0.05
_RANK = ("none", "server", "supervisor", "human", "plan", "estimate", "script")


@dataclass(frozen=True)
class Sentence:
    """One sentence, masked and made visible. `support` names the weakest evidence; `none` means no numbers in it."""

    text: str
    supported: bool
    support: str
    reason: str


@dataclass(frozen=True)
class CheckedSummary:
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True)
class Evidence:
    """What sentences are held against.

    Attributes:
        versions, dates: texts that may stand in a sentence as they are.
        per_row: metric -> one value per hold-out row, to explain averages of averages; called at most once.
    """

    numbers: Sequence[Known]
    verification: Verification | None
    versions: frozenset[str]
    dates: frozenset[str]
    per_row: Callable[[], Mapping[str, Sequence[float]]]


def check_summary(text: str, evidence: Evidence) -> CheckedSummary:
    """Check every sentence. What cannot be supported is marked so, with the reason; nothing is corrected or dropped."""
    pieces = [piece.strip() for piece in _BOUNDARY.split(text[:MAX_CHARACTERS])]
    sentences = [_check(p, evidence) for p in pieces if p and (not _NO_SENTENCE.fullmatch(p) or re.search(r"\d", p))]
    if len(text) > MAX_CHARACTERS:
        reason = f"only the first {MAX_CHARACTERS} characters of the summary were read"
        sentences.append(Sentence("(the rest of the summary)", False, "none", reason))
    return CheckedSummary(tuple(sentences))


def _check(sentence: str, evidence: Evidence) -> Sentence:
    tokens = tokens_of(sentence)
    words = _words(tokens)
    reasons = [_unsupported_word(token.text, evidence) for token in tokens if token.kind in ("version", "date")]
    support = "plan" if any(token.kind in ("version", "date") for token in tokens) else "none"
    for place, token in enumerate(tokens):
        if token.kind != "number":
            continue
        known = _supporting(place, tokens, words, evidence)
        if known is None:
            reasons.append(_why_not(place, tokens, evidence))
        elif _RANK.index(known.support) > _RANK.index(support):
            support = known.support
    reasons += _comparing(words, evidence)
    problems = [reason for reason in reasons if reason]
    if support == "none" and words & _COMPARING:
        support = "server"
    return Sentence(shown(sentence), not problems, support, shown("; ".join(dict.fromkeys(problems))))


def _words(tokens: Sequence[Token]) -> frozenset[str]:
    return frozenset(token.text for token in tokens if token.kind == "word")


def _unsupported_word(text: str, evidence: Evidence) -> str:
    known = evidence.versions | evidence.dates
    return "" if any(text == k or k.startswith(text) for k in known) else f"{text} stands in no record of this run"


def _supporting(place: int, tokens: Sequence[Token], words: frozenset[str], evidence: Evidence) -> Known | None:
    """The evidence whose value fits and whose word is the one that the sentence ties to this number."""
    token = tokens[place]
    fitting = [known for known in evidence.numbers if _fits(token, known) and _may_speak(known, words, evidence)]
    if not fitting:
        return None
    tied = _tied_words(place, tokens, evidence)
    for known in sorted(fitting, key=lambda k: _RANK.index(k.support)):
        if known.partner is not None and _is_beside(known.partner, place, tokens, known):
            return known
        if known.words & tied or (token.unit == known.unit == "s" and not tied):
            return known
    if not (_vocabulary(token, evidence) & words) and token.digits >= 3:
        return next((known for known in fitting if known.support == "server"), None)
    return None


def _is_beside(partner: float, place: int, tokens: Sequence[Token], known: Known) -> bool:
    """Whether the other bound of the interval stands next to this one, as in '0.93 to 0.99'."""
    near = (*tokens[max(0, place - 2) : place], *tokens[place + 1 : place + 3])
    other = replace(known, value=partner)
    return any(token.kind == "number" and _fits(token, other) for token in near)


def _fits(token: Token, known: Known) -> bool:
    value = token.value
    assert value is not None
    if token.below:
        return "p" in known.words and known.value < value
    if token.unit and token.unit != known.unit and token.unit not in ("", "eur", "usd"):
        return False
    if known.unit in ("s", "bytes") and token.unit != known.unit:
        return False
    if math.isclose(value, known.value, rel_tol=1e-9, abs_tol=1e-12):
        return True
    if float(known.value).is_integer() and known.unit not in ("s", "bytes"):
        return False
    if value in (0.0, 1.0) and known.unit == "ratio":
        return False  # nothing is rounded up to perfect or down to nothing
    off = abs(value - known.value)
    return off <= token.step / 2 * (1 + 1e-9) and off <= _RELATIVE_TOLERANCE * abs(known.value)


def _may_speak(known: Known, words: frozenset[str], evidence: Evidence) -> bool:
    """A script's value is no verified one, and stands for a metric that the server scored only if said so."""
    if known.support != "script" or not known.name:
        return True
    if words & _HELD_OUT_WORDS:
        return False
    scored = {m.name for m in evidence.verification.metrics} if evidence.verification else set()
    if known.name not in scored and known.name.lower() in words:
        return True
    of_scored = {word for k in evidence.numbers if k.support == "server" and k.name in scored for word in k.words}
    return not (known.words & of_scored) or bool(words & _TRAINING_WORDS)


def _tied_words(place: int, tokens: Sequence[Token], evidence: Evidence) -> frozenset[str]:
    """The word right behind the number; else, for a count, the nearest word, for a measure the nearest before it."""
    token = tokens[place]
    vocabulary = _vocabulary(token, evidence)
    behind = _nearest(tokens[place + 1 :], vocabulary)
    before = _nearest(list(reversed(tokens[:place])), vocabulary, backwards=True)
    if behind is None or before is None:
        return (behind or before or (0, frozenset()))[1]
    is_behind_nearer = behind[0] < before[0] if _is_count(token) else behind[0] == 0
    return behind[1] if is_behind_nearer or (behind[0] == 0 and before[0] > 0) else before[1]


def _vocabulary(token: Token, evidence: Evidence) -> frozenset[str]:
    """The words that may be tied to this number: those of counts say nothing of a measure."""
    if token.unit in ("s", "bytes"):
        kept = [known for known in evidence.numbers if known.unit == token.unit]
    else:
        kept = [k for k in evidence.numbers if _is_count(token) or k.unit or not float(k.value).is_integer()]
    return frozenset(word for known in kept for word in known.words)


def _is_count(token: Token) -> bool:
    return token.value is not None and token.value.is_integer() and not token.unit and "." not in token.text


def _nearest(
    tokens: Sequence[Token], vocabulary: frozenset[str], *, backwards: bool = False
) -> tuple[int, frozenset[str]] | None:
    """(distance, the word alone and joined with its neighbour) of the first token that is in the vocabulary."""
    for distance, token in enumerate(tokens):
        if token.kind != "word":
            continue
        neighbour = tokens[distance + 1] if distance + 1 < len(tokens) else None
        names = {token.text}
        if neighbour is not None and neighbour.kind == "word":
            pair = (neighbour.text, token.text) if backwards else (token.text, neighbour.text)
            names |= {"_".join(pair)}
        if names & vocabulary:
            return distance, frozenset(names)
    return None


def _why_not(place: int, tokens: Sequence[Token], evidence: Evidence) -> str:
    token = tokens[place]
    said = f"{token.text}{'%' if token.unit == 'ratio' else ''}"
    tied = _tied_words(place, tokens, evidence)
    for metric in evidence.verification.metrics if evidence.verification else ():
        if not any(known.name == metric.name and known.words & tied for known in evidence.numbers):
            continue
        reason = f"{said} is claimed, the server computed {metric.name} = {metric.value:.4f} over {metric.n} rows"
        return reason + _batch_means(token, metric.name, evidence)
    return f"no evidence of this run supports {said}"


def _batch_means(token: Token, metric: str, evidence: Evidence) -> str:
    per_row = evidence.per_row().get(metric)
    if per_row is None or token.value is None or token.step <= 0:
        return ""
    decimals = max(0, round(-math.log10(token.step)))
    found = explain_as_batch_means(per_row, token.value, decimals=decimals)
    if not found or token.digits < 3:
        return ""
    size, num_batches = found[0]
    others = f" (batch sizes {', '.join(str(s) for s, _ in found[1:4])} give it too)" if found[1:] else ""
    return (
        f"; the claim agrees with the mean of {num_batches} batch means at batch size {size}{others}, in which a short"
        " last batch weighs too much"
    )


def _comparing(words: frozenset[str], evidence: Evidence) -> list[str]:
    ratios = sorted(words & RATIO_WORDS)
    found = [f"'{ratios[0]}' is a ratio that no evidence supports"] if ratios else []
    said = sorted(words & _COMPARING)
    comparisons = evidence.verification.comparisons if evidence.verification else ()
    named = [c for c in comparisons if c.baseline in words]
    meant = named or (comparisons if words & {"baseline", "baselines"} else [])
    if said and not (meant and all(c.conclusion.startswith("better") for c in meant)):
        found.append(f"'{said[0]}': no paired test of this run shows that")
    return found
