"""metrics.jsonl: a line for each interval of steps and for each epoch, in the order in which they happened.

A step's line:   {"kind": "step", "step": 20, "epoch": 0, "loss": …, "lr": …, "samples_per_second": …}
An epoch's line: {"kind": "epoch", "step": 22, "epoch": 0, "train_loss": …, "held_out": {…}, "samples_per_second": …}
`step` counts training steps from 1, epochs are counted from 0. Rates are measurements; all else is the same for every
run of one configuration, interrupted or not. A loss that is nan or infinite is null.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

from ..atomic import WriteError, write_file
from ..ops.errors import UsageError

Line: TypeAlias = dict[str, Any]


@final
class MetricLog:
    """Appends lines to a file; a line that cannot be written whole is taken back, and is a `UsageError`."""

    def __init__(self, path: Path, *, steps: int = 0, epochs: int = 0):
        """Continue after `steps` steps and `epochs` whole epochs; the lines of what came after them are dropped."""
        self._path = path
        kept = [line for line in read_metrics(path, torn_end=True) if _is_before(line, steps, epochs)]
        write_file(path, [b"".join(map(_encode, kept))])
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
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
            os.ftruncate(self._file, before)
            raise WriteError(self._path, error) from error

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)


def read_metrics(path: Path, *, torn_end: bool = False) -> list[Line]:
    """The lines of a metrics file, none where there is no file; `torn_end` forgives a last line that is cut short."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    lines: list[Line] = []
    rows = text.splitlines()
    for number, row in enumerate(rows, start=1):
        try:
            lines.append(json.loads(row))
        except json.JSONDecodeError as error:
            if torn_end and number == len(rows) and not text.endswith("\n"):
                break
            raise UsageError(f"{path}:{number}: not a line of JSON: {error}") from error
    return lines


def _is_before(line: Line, steps: int, epochs: int) -> bool:
    return bool(line["epoch"] < epochs if line["kind"] == "epoch" else line["step"] <= steps)


def _encode(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(_finite(line), allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    """`value` with null in the place of nan and infinities, for which JSON has no words."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
