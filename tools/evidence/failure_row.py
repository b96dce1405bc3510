"""One kind of failure that is recognised by its words, and the builders of its rows."""

import re
from dataclasses import dataclass

from ..domain.reports import Remedy


@dataclass(frozen=True)
class FailurePattern:
    """One kind of failure. `pattern` has at most one match per line; its groups are for the explanation."""

    row: int | None
    cause: str
    pattern: re.Pattern[str]
    explanation: str
    remedies: tuple[Remedy, ...]


def keep(action: str, **settings: str) -> Remedy:
    """A remedy that leaves the results as they are."""
    return Remedy(action=action, settings=settings, changes_results=False)


def ask(action: str, **settings: str) -> Remedy:
    """A remedy that changes results: the human is asked."""
    return Remedy(action=action, settings=settings, changes_results=True)


def row(number: int | None, cause: str, pattern: str, explanation: str, *remedies: Remedy) -> FailurePattern:
    return FailurePattern(number, cause, re.compile(pattern, re.IGNORECASE), explanation, remedies)
