"""Findings are collected here while the inputs are looked at; their text is made safe to show as it comes in."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from runtime.errors import ForerunError

from ..domain.findings import Finding
from ..text import shown


@dataclass
class Notes:
    """An ordered list of findings without repeats."""

    findings: list[Finding] = field(default_factory=list)

    def add(self, level: Literal["error", "warning", "note"], code: str, message: str, hint: str = "") -> None:
        finding = Finding(code=code, level=level, message=shown(message), hint=shown(hint))
        if finding not in self.findings:
            self.findings.append(finding)

    def error(self, code: str, message: str, hint: str = "") -> None:
        self.add("error", code, message, hint)

    def warning(self, code: str, message: str, hint: str = "") -> None:
        self.add("warning", code, message, hint)

    def note(self, code: str, message: str, hint: str = "") -> None:
        self.add("note", code, message, hint)

    def refusal(self, code: str, error: ForerunError) -> None:
        """An error of another part as a finding."""
        hint = ". ".join(
            part for part in (f"allowed: {error.allowed}" if error.allowed else "", error.next_step) if part
        )
        self.error(code, error.what, hint)

    @property
    def has_errors(self) -> bool:
        return any(finding.level == "error" for finding in self.findings)


def nearest(word: str, known: Iterable[str]) -> str:
    """'did you mean ...' with the closest known names, and all of them if they are few."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(close) + "?"
    return "allowed: " + ", ".join(names[:30]) if names else ""


def close_names(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """The known names that come closest; the first few of all if none comes close."""
    names = sorted(known)
    return tuple(difflib.get_close_matches(word, names, n=5, cutoff=0.5) or names[:8])


def nearest_files(path: Path, *, suffix: str = "") -> str:
    """The files beside a missing path whose names come closest."""
    folder = path.parent
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    names = [entry.name for entry in sorted(folder.iterdir())[:2000] if not suffix or entry.suffix == suffix]
    close = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(str(folder / name) for name in close) + "?"
    listed = ", ".join(names[:10]) or "nothing" + (f" that ends in {suffix}" if suffix else "")
    return f"{folder} holds {listed}"
