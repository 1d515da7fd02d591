"""The curves of a run, from the lines of its metrics file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from .metrics import Line, in_percent

Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Points (step, value) in the order of steps; `faint` for a noisy curve."""

    name: str
    points: tuple[Point, ...]
    faint: bool = False

    @property
    def marker(self) -> str | None:
        """The marker: a single point needs one to be visible."""
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
            loss.append(_held_out("loss", epochs))
        others = [(f"{name} in %" if in_percent(name) else name, [_held_out(name, epochs)]) for name in names]
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


def _held_out(name: str, epochs: Sequence[Line]) -> Curve:
    unit = 100 if in_percent(name) else 1
    found = [(line["step"], line["held_out"].get(name)) for line in epochs]
    return _curve("held-out", [(step, value if value is None else unit * value) for step, value in found])


def _curve(name: str, points: Sequence[tuple[float, float | None]], *, faint: bool = False) -> Curve:
    return Curve(name, tuple((x, y) for x, y in points if y is not None and math.isfinite(y)), faint)
