"""Curves as inline SVG, without external fonts or files; the page provides colours and interaction.

A panel is drawn once for each pair of scales, linear or logarithmic, so that the page only switches between drawings
and computes no positions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape

from .curves import Curve, Panel, Point

WIDTH, HEIGHT = 560, 300
COLOURS = 8
"""The number of curve colours of the page, used in rotation."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 28, 40
_MOST_POINTS = 1000
_LOGARITHMIC = ("y", "x", "yx")
"""The combinations of logarithmic axes, besides none."""


def panel_svg(panel: Panel) -> str:
    """Draw a panel with axes, ticks, a legend, and for each curve a polyline with its last value as tooltip.

    Axes are linear; `<template data-log>` elements contain the logarithmic versions, and a script of type
    application/json the name and points of each curve, for the page's script.
    """
    drawn = [Curve(curve.name, tuple(thinned(curve)), curve.faint) for curve in panel.curves]
    if not any(curve.points for curve in drawn):
        return f"<p>No values of {escape(panel.name)} yet.</p>"
    others = ((axes, _drawing(panel.name, drawn, axes)) for axes in _LOGARITHMIC)
    templates = "".join(f'<template data-log="{axes}">{svg}</template>' for axes, svg in others if svg)
    legend = "".join(
        f'<li><i class="c{number % COLOURS}"></i>{escape(curve.name)}</li>' for number, curve in enumerate(drawn)
    )
    values = json.dumps([[curve.name, curve.points] for curve in drawn], separators=(",", ":"))
    return (
        f'<div class="panel" data-name="{escape(panel.name)}"><div class="plot">{_drawing(panel.name, drawn, "")}</div>'
        f'\n<ul class="legend">{legend}</ul>{templates}'
        f'<script type="application/json">{values.replace("<", chr(92) + "u003c")}</script></div>'
    )


def _drawing(name: str, curves: Sequence[Curve], logarithmic: str) -> str:
    """Draw the panel with these axes logarithmic; empty if no point is positive on them."""
    shown = [_positive(curve, logarithmic) for curve in curves]
    points = [point for curve in shown for point in curve.points]
    if not points:
        return ""
    x_at, x_ticks = _axis([x for x, _ in points], _LEFT, WIDTH - _RIGHT, "x" in logarithmic)
    y_at, y_ticks = _axis([y for _, y in points], HEIGHT - _BOTTOM, _TOP, "y" in logarithmic)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(name)} over steps">',
        f'<text class="axis" x="{_LEFT}" y="14">{escape(name)}</text>',
        f'<text class="axis" x="{WIDTH - _RIGHT}" y="{HEIGHT - 6}" text-anchor="end">step</text>',
    ]
    for tick, label in zip(y_ticks, _labels(y_ticks, 4)):
        y = y_at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for tick, label in zip(x_ticks, _labels(x_ticks, 6)):
        x = x_at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}" text-anchor="middle">{label}</text>')
    for number, curve in enumerate(shown):
        parts.append(_line(curve, number, [(x_at(x), y_at(y)) for x, y in curve.points]))
    parts.append("</svg>")
    return "\n".join(parts)


def _line(curve: Curve, number: int, places: Sequence[Point]) -> str:
    """Draw a curve; one without points is emitted too, so that the page's indices agree."""
    style = f"curve c{number % COLOURS}" + (" faint" if curve.faint else "")
    label = escape(f"{curve.name}: {curve.points[-1][1]:.6g} at step {curve.points[-1][0]:g}") if places else ""
    if len(places) == 1:
        shape = f'<circle class="{style}" cx="{places[0][0]:.1f}" cy="{places[0][1]:.1f}" r="3">'
        return f"{shape}<title>{label}</title></circle>"
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{style}" points="{path}"><title>{label}</title></polyline>'


def _positive(curve: Curve, logarithmic: str) -> Curve:
    """Return the curve without points that have no logarithm."""
    if not logarithmic:
        return curve
    axes = ["xy".index(axis) for axis in logarithmic]
    return Curve(curve.name, tuple(p for p in curve.points if all(p[axis] > 0 for axis in axes)), curve.faint)


def thinned(curve: Curve) -> Sequence[tuple[float, float]]:
    """Return at most about a thousand points: the minimum and maximum of each stretch of a longer curve."""
    points = curve.points
    stretch = math.ceil(2 * len(points) / _MOST_POINTS)
    if stretch <= 2:
        return points
    kept = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept


def _axis(
    values: Sequence[float], first: float, last: float, logarithmic: bool
) -> tuple[Callable[[float], float], list[float]]:
    """Return the function from value to position between two ends of the drawing, and the ticks."""
    low, high = min(values), max(values)
    if low == high:
        low, high = (low / 2, high * 2) if logarithmic else (low - (abs(low) / 2 or 0.5), high + (abs(low) / 2 or 0.5))
    scale: Callable[[float], float] = math.log if logarithmic else float
    begin, length = scale(low), scale(high) - scale(low)

    def at(value: float) -> float:
        return first + (scale(value) - begin) / length * (last - first)

    return at, _logarithmic_ticks(low, high) if logarithmic else _ticks(low, high)


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers in [low, high]."""
    rough = (high - low) / 5
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _logarithmic_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten in [low, high], with their multiples by 2 and 5 if there is room; round numbers if it is
    short."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**power for power in powers for m in (1, 2, 5) if low <= m * 10.0**power <= high]
    if len(ticks) < 3:
        return _ticks(low, high)
    if len(ticks) > 8:
        whole = [10.0**power for power in powers if low <= 10.0**power <= high]
        ticks = whole[:: math.ceil(len(whole) / 8)]
    return ticks


def _labels(ticks: Sequence[float], digits: int) -> list[str]:
    """Format numbers with `digits` digits, or as many as distinguish neighbours."""
    for more in range(digits, 16):
        labels = [f"{tick:.0f}" if 1e4 <= abs(tick) < 1e7 else f"{tick:.{more}g}" for tick in ticks]
        if len(set(labels)) == len(labels):
            break
    return labels
