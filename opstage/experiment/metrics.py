"""metrics.jsonl: a line for each interval of steps and for each epoch, in the order in which they happened.

A step's line:   {"kind": "step", "step": 20, "epoch": 0, "loss": …, "lr": …, "samples_per_second": …}
                 and "gradient_norm": … where the run says `gradient_norm`
An epoch's line: {"kind": "epoch", "step": 22, "epoch": 0, "train_loss": …, "held_out": {…}, "samples_per_second": …}
                 and "processes": [{…}, …] where several host a mesh, what each has done so far: see `ProcessShare`
`step` counts training steps from 1, epochs are counted from 0. Rates and shares of processes are measurements; all else
is the same for every run of one configuration, interrupted or not. A loss that is nan or infinite is null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias, final

from ..atomic import NO_LINK, WriteError, write_file
from ..documents import Document
from ..tensors import read_bytes

Line: TypeAlias = dict[str, Any]


@final
class MetricLog:
    """Appends lines to a file; a line that cannot be written whole is taken back, and is a `UsageError`.

    count    the lines so far
    """

    def __init__(self, path: Path, *, steps: int = 0, epochs: int = 0, most: int | None = None):
        """Continue after `steps` steps and `epochs` whole epochs; the lines of what came after them are dropped.

        most    how many lines there were then, if that is known
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
        """Add one line. Raises WriteError."""
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
        """Return when all lines are on the disk. Raises WriteError."""
        try:
            os.fsync(self._file)
        except OSError as error:
            raise WriteError(self._path, error) from error

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)


def read_metrics(path: Path, *, torn_end: bool = False, most: int | None = None) -> list[Line]:
    """The lines of a metrics file, none where there is no file; `torn_end` forgives a last line that is cut short.

    most    no more than so many are read; what comes after them may be anything

    Raises UsageError, naming the line, for one that is not as they are written.
    """
    if not path.exists():
        return []
    rows = read_bytes(path).split(b"\n")
    whole = len(rows) - 1  # what follows the last end of a line is cut short, or nothing
    lines: list[Line] = []
    for number, row in enumerate(rows[:most], start=1):
        if number > whole and (torn_end or not row):
            break
        lines.append(_checked(Document.of(row, f"{path}:{number}", _ADVICE, what="a line of JSON")))
    return lines


_ADVICE = "restore the file from a copy, or remove it: the run goes on without its earlier lines"


def show_value(name: str, value: float) -> str:
    """The value of a metric: `98.33 %` of an accuracy, `0.0612` of any other."""
    return f"{100 * value:.2f} %" if name in ("accuracy", "ema_accuracy") else f"{value:.4g}"


def _checked(line: Document) -> Line:
    """A line, its types as they are written."""
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
        if isinstance(value.value, str):  # here null is what is not finite
            raise value.expected("a number or null")
        value.number_or_null()
    return line.object()


def _is_before(line: Line, steps: int, epochs: int) -> bool:
    return bool(line["epoch"] < epochs if line["kind"] == "epoch" else line["step"] <= steps)


def _encode(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(_finite(line), allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    """`value` with null in the place of nan and infinities, for which JSON has no words."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
