"""Curves as inline SVG: no script, no fonts or files from elsewhere; colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from .curves import Curve, Panel

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 28, 40
_MOST_POINTS = 1000


def panel_svg(panel: Panel) -> str:
    """One panel with axes, ticks, a legend, and for each curve a polyline whose tooltip is its last value."""
    points = [point for curve in panel.curves for point in curve.points]
    if not points:
        return f"<p>No values of {escape(panel.name)} yet.</p>"
    x_low, x_high = _range([x for x, _ in points])
    y_low, y_high = _range([y for _, y in points])

    def x_of(x: float) -> float:
        return _LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - _LEFT - _RIGHT)

    def y_of(y: float) -> float:
        return HEIGHT - _BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(panel.name)} over steps">',
        f'<text class="axis" x="{_LEFT}" y="14">{escape(panel.name)}</text>',
        f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step</text>',
    ]
    for tick in _ticks(y_low, y_high):
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:.4g}</text>')
    for tick in _ticks(x_low, x_high):
        x = x_of(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{tick:.6g}</text>')
    for number, curve in enumerate(panel.curves):
        places = [(x_of(x), y_of(y)) for x, y in thinned(curve)]
        label = escape(f"{curve.name}: {curve.points[-1][1]:.6g} at step {curve.points[-1][0]:g}")
        style = f"curve c{number}" + (" faint" if curve.faint else "")
        if len(places) == 1:
            shape = f'<circle class="{style}" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3">'
            parts.append(f"{shape}<title>{label}</title></circle>")
        else:
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            parts.append(f'<polyline class="{style}" points="{path}"><title>{label}</title></polyline>')
    parts.append("</svg>")
    legend = "".join(f'<li class="c{number}">{escape(curve.name)}</li>' for number, curve in enumerate(panel.curves))
    return "\n".join(parts) + f'\n<ul class="legend">{legend}</ul>'


def thinned(curve: Curve) -> Sequence[tuple[float, float]]:
    """At most about a thousand points: of each stretch of a longer curve its lowest and its highest."""
    points = curve.points
    stretch = math.ceil(2 * len(points) / _MOST_POINTS)
    if stretch <= 2:
        return points
    kept = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low == high:
        margin = abs(low) / 2 or 0.5
        return low - margin, high + margin
    return low, high


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers in [low, high], about five of them."""
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]
