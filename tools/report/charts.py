"""Charts as inline SVG: curves of metrics, and scores beside their baselines with intervals. Colours come from CSS."""

import math
from typing import Any

from markupsafe import Markup, escape

_WIDTH, _HEIGHT = 640, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
_BAR_HEIGHT = 34


def curve_svg(curve: dict[str, Any]) -> Markup:
    """One curve; values that are not finite break the line."""
    points = [(float(x), y) for x, y in curve["points"]]
    values = [float(y) for _, y in points if isinstance(y, int | float)]
    if not values:
        return Markup("<p>No finite value to draw.</p>")
    x_low, x_high = _spread(points[0][0], points[-1][0])
    y_low, y_high = _spread(min(values), max(values))

    def place(x: float, y: float) -> str:
        across = _LEFT + (x - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)
        down = _TOP + (y_high - y) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)
        return f"{across:.1f},{down:.1f}"

    lines, current = [], list[str]()
    for x, y in points:
        if isinstance(y, int | float):
            current.append(place(x, float(y)))
        elif current:
            lines.append(current)
            current = []
    lines += [current] if current else []
    drawn = "".join(
        f'<polyline class="curve" points="{" ".join(line)}"/>'
        if len(line) > 1
        else f'<circle class="dot" cx="{line[0].split(",")[0]}" cy="{line[0].split(",")[1]}" r="3"/>'
        for line in lines
    )
    floor, side = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    axis = "step" if curve["by_step"] else "value number"
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(curve["name"])}">'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{floor}H{side}"/>{drawn}'
        f'<text x="{_LEFT - 6}" y="{_TOP + 10}" text-anchor="end">{y_high:.4g}</text>'
        f'<text x="{_LEFT - 6}" y="{floor}" text-anchor="end">{y_low:.4g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}">{x_low:.6g}</text>'
        f'<text x="{side}" y="{_HEIGHT - 8}" text-anchor="end">{axis} {x_high:.6g}</text></svg>'
    )


def bars_svg(verification: dict[str, Any], metric: dict[str, Any]) -> Markup:
    """One metric of the model and of each baseline, with intervals, on one scale."""
    rows = [("this run", metric["value"], metric["interval"], "bar model")]
    rows += [
        (f"{c['baseline']} baseline", c["value"], c["interval"], "bar")
        for c in verification["comparisons"]
        if c["metric"] == metric["name"]
    ]
    ends = [v for _, value, interval, _ in rows for v in (value, interval["low"], interval["high"])]
    ends = [float(v) for v in ends if isinstance(v, int | float)]
    low, high = _spread(min(0.0, *ends), max([1.0, *ends] if max(ends) <= 1 and min(ends) >= 0 else ends))
    left, right = 150, 90

    def across(value: float) -> float:
        return left + (value - low) / (high - low) * (_WIDTH - left - right)

    parts = []
    for number, (label, value, interval, kind) in enumerate(rows):
        y = number * _BAR_HEIGHT + 6
        start, end = sorted((across(0.0), across(value)))
        middle = y + 11
        parts.append(
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="{kind}" x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="22"/>'
            f'<path class="whisker" d="M{across(interval["low"]):.1f} {middle}H{across(interval["high"]):.1f}'
            f'M{across(interval["low"]):.1f} {y + 5}v12M{across(interval["high"]):.1f} {y + 5}v12"/>'
            f'<text x="{_WIDTH - right + 8}" y="{y + 15}">{value:.4f}</text>'
        )
    height = len(rows) * _BAR_HEIGHT + 6
    name = escape(metric["name"])
    return Markup(f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{name}">{"".join(parts)}</svg>')


def _spread(low: float, high: float) -> tuple[float, float]:
    """A range that is never empty, so that a flat line can be drawn."""
    if math.isclose(low, high, rel_tol=1e-12, abs_tol=1e-300):
        pad = abs(low) * 0.1 or 1.0
        return low - pad, high + pad
    return low, high
