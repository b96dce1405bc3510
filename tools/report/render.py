"""HTML and Markdown, rendered from the report's JSON alone: equal JSON gives equal bytes."""

import re
from collections.abc import Callable
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ..text import visible
from .charts import bars_svg, curve_svg

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+!|~>$])|^([-=])|(<)|(&)")
_TOO_LONG = 2_000


def render_html(body: dict[str, Any], *, sha256: str) -> str:
    """A page of its own: no script, nothing fetched, light and dark."""
    return _html().get_template("report.html.j2").render(body=body, sha256=sha256) + "\n"


def render_markdown(body: dict[str, Any], *, sha256: str) -> str:
    return _markdown().get_template("report.md.j2").render(body=body, sha256=sha256).strip() + "\n"


@cache
def _html() -> Environment:
    environment = _environment(autoescape=True, finalize=_shown)
    environment.globals.update(curve_svg=curve_svg, bars_svg=bars_svg)
    return environment


@cache
def _markdown() -> Environment:
    return _environment(autoescape=False, finalize=escape_markdown)


def _environment(*, autoescape: bool, finalize: Callable[[Any], Any]) -> Environment:
    """`finalize` is the last gate before the page: every printed expression passes it, the template's own text not."""
    environment = Environment(
        loader=PackageLoader("tools.report"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters.update(number=number, size=size, duration=duration)
    return environment


def _shown(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    if value is None:
        return "unknown"
    return visible(value[:_TOO_LONG] + " ..." if len(value) > _TOO_LONG else value) if isinstance(value, str) else value


def escape_markdown(value: Any) -> str:
    """Outside text for a Markdown page: no markup, no HTML, no line break of its own."""
    text = visible("unknown" if value is None else str(value))[:_TOO_LONG]
    return _MARKDOWN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    if match[3]:
        return "&lt;"
    return "&amp;" if match[4] else "\\" + match[0]


def number(value: Any) -> str:
    """Four to six digits, or the word unknown."""
    if value is None or isinstance(value, bool):
        return "unknown"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def size(value: Any) -> str:
    """Bytes in a readable unit."""
    if not isinstance(value, int | float):
        return "unknown"
    amount = float(value)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def duration(value: Any) -> str:
    """Seconds as hours, minutes and seconds."""
    if not isinstance(value, int | float):
        return "unknown"
    minutes, seconds = divmod(float(value), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours:.0f} h" if hours else "", f"{minutes:.0f} min" if minutes else "", f"{seconds:.1f} s"]
    return " ".join(part for part in parts if part)
