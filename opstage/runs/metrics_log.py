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
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias, final

from ..files import NO_LINK, Document, WriteError, write_file
from ..ops.errors import require_extra
from ..safetensors_files import read_bytes

Line: TypeAlias = dict[str, Any]


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise OSErrors of a block as WriteErrors about `path`."""
    try:
        yield
    except OSError as error:
        raise WriteError(path, error) from error


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
        kept = [line for line in read_metrics(path, torn_end=True, most=most) if _precedes(line, steps, epochs)]
        self.count = len(kept)
        write_file(path, [b"".join(map(_encode, kept))])
        with write_errors(path):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | NO_LINK)

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
        with write_errors(self._path):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_metrics(path: Path, *, torn_end: bool = False, most: int | None = None) -> list[Line]:
    """Return the lines of a metrics file, none if it does not exist; `torn_end` allows a truncated last line.

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
    """Return whether people read a metric in percent, in texts and in curves alike."""
    return name == "accuracy" or name.endswith("_accuracy")


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


def _precedes(line: Line, steps: int, epochs: int) -> bool:
    return bool(line["epoch"] < epochs if line["kind"] == "epoch" else line["step"] <= steps)


def _encode(line: Mapping[str, Any]) -> bytes:
    return (json.dumps(_finite(line), allow_nan=False) + "\n").encode()


def _finite(value: Any) -> Any:
    """Return `value` with null in place of nan and infinities, which JSON cannot represent."""
    if isinstance(value, Mapping):
        return {name: _finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


# TensorBoard ----------------------------------------------------------------------------------------------------------


@final
class Events:
    """A TensorBoard event file in a run directory."""

    def __init__(self, folder: Path, *, steps: int = 0):
        """Record events after `steps` steps; TensorBoard drops later events of an earlier process."""
        require_extra("tensorboard", "tensorboard", "run.tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = Event
        self._summary: Any = Summary
        self._folder = folder
        with write_errors(folder):
            self._writer: Any = EventFileWriter(str(folder))
        if steps:
            self._add(Event(step=steps + 1, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to the curve `tag`."""
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=value)])
        self._add(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Write pending events. Raises WriteError."""
        with write_errors(self._folder):
            self._writer.close()

    def _add(self, event: Any) -> None:
        """Queue an event. Raises WriteError, possibly for an earlier one."""
        with write_errors(self._folder):
            self._writer.add_event(event)
