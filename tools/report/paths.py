"""The files of a report below <run>/report."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ReportPaths:
    root: Path

    @property
    def json(self) -> Path:
        """The in-toto statement: exactly the bytes that are signed."""
        return self.root / "report.json"

    @property
    def envelope(self) -> Path:
        """The DSSE envelope around them."""
        return self.root / "report.dsse.json"

    @property
    def html(self) -> Path:
        return self.root / "report.html"

    @property
    def markdown(self) -> Path:
        return self.root / "report.md"
