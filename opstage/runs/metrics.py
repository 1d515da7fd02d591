"""metrics.jsonl: a line for each interval of steps and for each epoch, in the order in which they happened.

A step's line:   {"kind": "step", "step": 20, "epoch": 0, "loss": …, "lr": …, "samples_per_second": …}
                 and "gradient_norm": … if the run has `gradient_norm`
An epoch's line: {"kind": "epoch", "step": 22, "epoch": 0, "train_loss": …, "held_out": {…}, "samples_per_second": …}
                 and "processes": [{…}, …] if several host a mesh, with the work of each so far: see `ProcessShare`
`step` counts training steps from 1, epochs are counted from 0. Rates and shares of processes are measurements; all else
is the same for every run of one configuration, interrupted or not. A loss that is nan or infinite is null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from ..atomic import NO_LINK, WriteError, write_file
from ..documents import Document
from ..tensors import read_bytes

Line: TypeAlias = dict[str, Any]


@final
class MetricLog:
    """Appends lines to a file; a line that cannot be written completely is removed and raises UsageError.

    count    the number of lines so far
    """

    def __init__(self, path: Path, *, steps: int = 0, epochs: int = 0, most: int | None = None):
        """Continue after `steps` steps and `epochs` complete epochs; later lines are dropped.

        most    the number of lines at that point, if known
        """
        self._path = path
        kept = [line for line in read_metrics(path, torn_end=True, most=most) if _is_before(line, steps, epochs)]
        self.count = len(kept)
        write_file(path, [b"".join(map(_encode, kept))])
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | NO_LINK)
        except OSError as error:
            raise WriteError(path, error) from error

    def append(self, line: Mapping[str, Any]) -> None:
        """Append one line. Raises WriteError."""
        before = os.fstat(self._file).st_size
        rest = memoryview(_encode(line))
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, before)
            raise WriteError(self._path, error) from error
        self.count += 1

    def sync(self) -> None:
        """Wait until all lines are on disk. Raises WriteError."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise WriteError(self._path, error) from error

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_metrics(path: Path, *, torn_end: bool = False, most: int | None = None) -> list[Line]:
    """Return the lines of a metrics file, none if there is no file; `torn_end` allows a truncated last line.

    most    the maximum number of lines to read; later ones are not checked

    Raises UsageError, naming the line, for one that this module would not write.
    """
    if not path.exists():
        return []
    rows = read_bytes(path).split(b"\n")
    whole = len(rows) - 1  # text after the last newline is a truncated line, or empty
    lines: list[Line] = []
    for number, row in enumerate(rows[:most], start=1):
        if number > whole and (torn_end or not row):
            break
        lines.append(_checked(Document.of(row, f"{path}:{number}", _ADVICE, what="a line of JSON")))
    return lines


_ADVICE = "restore the file from a copy, or remove it: the run goes on without its earlier lines"


def in_percent(name: str) -> bool:
    """Whether people read a metric in percent, in texts and in curves alike."""
    return name in ("accuracy", "ema_accuracy")


def show_value(name: str, value: float) -> str:
    """Format a metric: `98.33 %` for an accuracy, `0.0612` for any other."""
    return f"{100 * value:.2f} %" if in_percent(name) else f"{value:.4g}"


def _checked(line: Document) -> Line:
    """Return a line after checking its types."""
    kind = line["kind"].text()
    if kind not in ("step", "epoch"):
        raise line["kind"].expected("'step' or 'epoch'")
    line["step"].count()
    line["epoch"].count()
    numbers = [value for name in ("lr", "gradient_norm", "samples_per_second") if (value := line.get(name)) is not None]
    if kind == "step":
        numbers.append(line["loss"])
    else:
        numbers += [line["train_loss"], *[value for _, value in line["held_out"].items()]]
    for value in numbers:
        if isinstance(value.value, str):  # null stands for a value that is not finite
            raise value.expected("a number or null")
        value.number_or_null()
    return line.object()


def _is_before(line: Line, steps: int, epochs: int) -> bool:
    return bool(line["epoch"] < epochs if line["kind"] == "epoch" else line["step"] <= steps)


def _encode(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(_finite(line), allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    """Return `value` with null in place of nan and infinities, which JSON cannot represent."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Curves ---------------------------------------------------------------------------------------------------------------


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
