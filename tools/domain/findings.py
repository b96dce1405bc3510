"""Findings and questions: what a report says of one thing that it looked at."""

from typing import Literal

from runtime.config.plan import Frozen


class Finding(Frozen):
    """One observation. Errors keep a plan from becoming valid; warnings and notes are shown."""

    code: str
    level: Literal["error", "warning", "note"]
    message: str
    hint: str = ""


class Question(Frozen):
    """A value that affects the result and that nobody gave. `allowed` is empty for a free answer."""

    id: str
    text: str
    allowed: tuple[str, ...] = ()
    proposal: str = ""


class Answer(Frozen):
    """The user's own words, or an assumption that the report will list."""

    question_id: str
    value: str
    source: Literal["user", "assumption"]
