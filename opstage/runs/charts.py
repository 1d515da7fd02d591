"""Curves of a run, drawn as inline SVG for pages and as a PNG."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..ops.errors import require_extra
from ..pages import render
from .metrics_log import Line, in_percent

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Points (step, value) in the order of steps; `faint` for a noisy curve."""

    name: str
    points: tuple[Point, ...]
    faint: bool = False

    @property
    def marker(self) -> str | None:
        """Return the marker: a single point needs one to be visible."""
        return "o" if len(self.points) == 1 else None


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis."""

    name: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Curves:
    """The loss of steps, mean loss of epochs, held-out metrics after each epoch, and rates over time."""

    lines: Sequence[Line]

    def panels(self) -> list[Panel]:
        """Return a panel for the loss and one for each other held-out metric; curves without a finite value are left
        out."""
        steps = [line for line in self.lines if line["kind"] == "step"]
        epochs = [line for line in self.lines if line["kind"] == "epoch"]
        names = list(dict.fromkeys(name for line in epochs for name in line["held_out"]))
        loss = [
            _curve("training, single steps", [(line["step"], line["loss"]) for line in steps], faint=True),
            _curve("training, mean of epoch", [(line["step"], line["train_loss"]) for line in epochs]),
        ]
        if "loss" in names:
            loss.append(_held_out_curve("loss", epochs))
        others = [(f"{name} in %" if in_percent(name) else name, [_held_out_curve(name, epochs)]) for name in names]
        panels = [("loss", loss), *[each for each in others if each[0] != "loss"]]
        return [Panel(name, tuple(c for c in curves if c.points)) for name, curves in panels]

    def rates(self) -> list[Panel]:
        """Return panels for the learning rate, the gradient norm and the samples per second, if recorded."""
        steps = [line for line in self.lines if line["kind"] == "step"]
        named = {"learning rate": "lr", "gradient norm": "gradient_norm", "samples per second": "samples_per_second"}
        curves = [
            (name, _curve(name, [(line["step"], line.get(key)) for line in steps])) for name, key in named.items()
        ]
        return [Panel(name, (curve,)) for name, curve in curves if curve.points]


def _held_out_curve(name: str, epochs: Sequence[Line]) -> Curve:
    unit = 100 if in_percent(name) else 1
    found = [(line["step"], line["held_out"].get(name)) for line in epochs]
    return _curve("held-out", [(step, value if value is None else unit * value) for step, value in found])


def _curve(name: str, points: Sequence[tuple[float, float | None]], *, faint: bool = False) -> Curve:
    return Curve(name, tuple((x, y) for x, y in points if y is not None and math.isfinite(y)), faint)


# Curves as inline SVG, without external fonts or files; the page provides colours and interaction ---------------------

WIDTH, HEIGHT = 560, 300
COLOURS = 8
"""The number of curve colours of the page, used in rotation."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 64, WIDTH - 12, 28, HEIGHT - 40
_MOST_POINTS = 1000


class _CurveLine(NamedTuple):
    """A curve as drawn: its positions "x,y", and its last value as tooltip."""

    places: Sequence[str]
    label: str
    faint: bool


class _Plot(NamedTuple):
    """Ticks, each with its position and label, and a line for every curve."""

    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    lines: Sequence[_CurveLine]


def panel_svg(panel: Panel) -> str:
    """Draw a panel with axes, ticks, a legend, and for each curve a polyline with its last value as tooltip.

    Axes are linear; `<template data-log>` elements contain the logarithmic versions, and a script of type
    application/json the name and points of each curve, for the page's script.
    """
    curves = [Curve(curve.name, tuple(thin_curve(curve)), curve.faint) for curve in panel.curves]
    drawings = {axes: made for axes in ("", "y", "x", "yx") if (made := _drawing(curves, axes)) is not None}
    if not drawings:
        return f"<p>No values of {escape(panel.name)} yet.</p>"
    return render(
        "chart.html",
        name=panel.name,
        curves=curves,
        drawings=drawings,
        points=[[curve.name, curve.points] for curve in curves],
        colours=COLOURS,
        width=WIDTH,
        height=HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        top=_TOP,
        bottom=_BOTTOM,
    )


def _drawing(curves: Sequence[Curve], logarithmic: str) -> _Plot | None:
    """Draw curves with these axes logarithmic; None if no point is positive on them."""
    shown = [[p for p in curve.points if all(p["xy".index(axis)] > 0 for axis in logarithmic)] for curve in curves]
    points = [point for each in shown for point in each]
    if not points:
        return None
    x_at, x_ticks = _axis([x for x, _ in points], _LEFT, _RIGHT, "x" in logarithmic)
    y_at, y_ticks = _axis([y for _, y in points], _BOTTOM, _TOP, "y" in logarithmic)
    lines = []
    for curve, each in zip(curves, shown):
        label = f"{curve.name}: {each[-1][1]:.6g} at step {each[-1][0]:g}" if each else ""
        lines.append(_CurveLine([f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in each], label, curve.faint))
    return _Plot(
        list(zip(map(x_at, x_ticks), _labels(x_ticks, 6))), list(zip(map(y_at, y_ticks), _labels(y_ticks, 4))), lines
    )


def thin_curve(curve: Curve) -> Sequence[tuple[float, float]]:
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


def data_uri(image: npt.NDArray[np.floating]) -> str:
    """Encode an image (height, width), from 0 black to 1 white, clipped, as `data:image/png;base64,…`."""
    pixels = np.clip(np.rint(np.nan_to_num(image) * 255), 0, 255).astype(np.uint8)
    height, width = pixels.shape
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter type, 0 for none
    rows[:, 1:] = pixels
    chunks = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
        _chunk(b"IEND", b""),
    ]
    encoded = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()
    return f"data:image/png;base64,{encoded}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# Curves as a PNG ------------------------------------------------------------------------------------------------------


def plot_png(curves: Curves, title: str) -> bytes:
    """Return the loss and each held-out metric over steps, as a PNG."""
    require_extra("matplotlib", "plot", "run.plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = curves.panels()
    figure: Any = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for curve in panel.curves:
            axes.plot(
                *zip(*curve.points), label=_literal(curve.name), linewidth=1 if curve.faint else 2, marker=curve.marker
            )
        axes.set_xlabel("step")
        axes.set_ylabel(_literal(panel.name))
        axes.grid(alpha=0.3)
        axes.legend()
    data = BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()


def _literal(name: str) -> str:
    """Escape dollar signs, which delimit formulas in matplotlib."""
    return name.replace("$", r"\$")
