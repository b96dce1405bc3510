"""Reply: what a tool says, a sentence with the next step and small structured data; and how values are written."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mcp.types import CallToolResult, TextContent

from tools.domain.findings import Finding
from tools.domain.reports import Interval

from .outgoing import clean, clean_text

MOST = 12


@dataclass(frozen=True)
class Reply:
    """What a tool says. Empty values are left out of `data` on the wire; unknown ones are named in words."""

    text: str
    next: str
    data: dict[str, Any]

    def result(self) -> CallToolResult:
        kept = {name: value for name, value in self.data.items() if value not in (None, "", [], {}, ())}
        return CallToolResult(
            content=[TextContent(type="text", text=clean_text(f"{self.text}\nNext: {self.next}"))],
            structured_content=clean(kept | {"next": self.next}),
        )


def number(value: float | str | None) -> float | str | None:
    """Six significant digits; NaN and infinity as words, since JSON has none."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else str(value)


def gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else round(size_bytes / 2**30, 1)


def compact(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if value not in (None, "", [], {})}


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    shown = [f"{f.level} {f.code}: {f.message}" + (f" ({f.hint})" if f.hint else "") for f in findings[:MOST]]
    return [*shown, f"{len(findings) - MOST} more"] if len(findings) > MOST else shown


def interval_values(value: float, interval: Interval) -> dict[str, Any]:
    return {"value": number(value), "low": number(interval.low), "high": number(interval.high)}


def interval_or_unknown(interval: Interval | None) -> dict[str, Any] | str:
    return "unknown" if interval is None else interval_values(interval.value, interval)


def range_text(interval: Interval, unit: float = 1.0) -> str:
    return f"{interval.value / unit:.3g} [{interval.low / unit:.3g} to {interval.high / unit:.3g}]"


def utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
