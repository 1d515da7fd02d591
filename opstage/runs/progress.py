"""Progress of a training run: a line per epoch, on a terminal with a bar below; a table in notebooks."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from html import escape
from types import TracebackType
from typing import Any, Protocol, Self, final

import click
from typing_extensions import override

from ..distributed.processes import is_terminal
from ..ops.errors import printable
from ..training.fit import EpochResult, Observer
from .metrics_log import in_percent, show_value

_WINDOW = 50
"""The number of steps over which the rate is measured."""

_WIDE = 80
"""From this many columns on, the bar shows units."""


class Watcher(Observer, AbstractContextManager[Any], Protocol):
    """Displays the progress of a run."""


class Unwatched(AbstractContextManager["Unwatched"]):
    """A watcher that displays nothing."""

    def __exit__(self, *exception: object) -> None:
        return None

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        pass

    def epoch(self, result: EpochResult) -> None:
        pass


@final
class PlainLines(Unwatched):
    """One line per epoch, for logs and pipes."""

    def __init__(self, epochs: int):
        self._epochs = epochs

    @override
    def epoch(self, result: EpochResult) -> None:
        click.echo(epoch_line(result, self._epochs))


@final
class Rate:
    """Steps and samples per second over the last `_WINDOW` steps of this process, and the remaining time."""

    def __init__(self, done: int, steps: int, clock: Callable[[], float]):
        self.done, self._steps, self._clock = done, steps, clock
        self._times: deque[float] = deque(maxlen=_WINDOW)  # when the last steps ended; first, when the first began

    def begin(self) -> None:
        """Mark the start of the first step."""
        self._times.append(self._clock())

    def step(self, samples: int) -> tuple[float, timedelta] | None:
        """Record a finished step; return samples per second and the remaining time, or None while unknown."""
        self.done += 1
        self._times.append(self._clock())
        elapsed = self._times[-1] - self._times[0]
        if elapsed <= 0:
            return None
        speed = (len(self._times) - 1) / elapsed
        return speed * samples, timedelta(seconds=round((self._steps - self.done) / speed))


@final
class Bar(AbstractContextManager["Bar"]):
    """A permanent line per epoch above a rich progress bar over all steps: loss, samples per second, time left.

    The bar fits on one row of 60 columns; on a narrower terminal it is cut off.
    """

    def __init__(
        self, epochs: int, done: int, steps: int, *, clock: Callable[[], float] = time.monotonic, **progress: Any
    ):
        """`done` of all `steps` are already done; `progress` is passed on to rich."""
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._epochs = epochs
        self._rate = Rate(done, steps, clock)
        self._progress: Any = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=None, table_column=Column(ratio=1, max_width=40)),
            TextColumn("{task.fields[status]}", markup=False, table_column=Column(no_wrap=True, overflow="crop")),
            **{"expand": True, **progress},
        )
        epoch = min(epochs, done * epochs // steps + 1)
        self._task = self._progress.add_task(
            f"epoch {epoch}/{epochs}", total=steps, completed=done, status="resumed" if done else ""
        )

    def __enter__(self) -> Self:
        self._progress.start()
        self._rate.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Count a step. The rate is known after the first."""
        rate, pace = self._rate.step(samples), ""
        if rate is not None:
            wide = self._progress.console.width >= _WIDE
            pace = f"  {rate[0]:,.0f}{' samples' if wide else ''}/s  {rate[1]}{' left' if wide else ''}"
        self._progress.update(
            self._task,
            completed=self._rate.done,
            description=f"epoch {epoch + 1}/{self._epochs}",
            status=f"loss {short(loss)}{pace}",
        )

    def epoch(self, result: EpochResult) -> None:
        """Print the epoch's line above the bar."""
        line = epoch_line(result, self._epochs)
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        """Redraw now."""
        self._progress.refresh()


def make_watcher(epochs: int, done: int, steps: int, *, bar: bool = True) -> PlainLines | Bar | NotebookCell:
    """Return a table in a notebook, a bar on a terminal unless it is unwanted, lines elsewhere; `done` of all `steps`
    are done."""

    if in_notebook():
        return NotebookCell(epochs, done, steps)
    return Bar(epochs, done, steps) if bar and is_terminal(sys.stdout) else PlainLines(epochs)


def epoch_line(result: EpochResult, epochs: int) -> str:
    """Return a line about an epoch: mean loss, held-out metrics, rate."""
    pace = f"  {result.samples / result.seconds:,.0f} samples/s" if result.seconds else ""
    held_out = format_metrics(result.held_out)
    return printable(f"epoch {result.epoch + 1}/{epochs}  loss {result.train_loss:.4f}  held-out {held_out}{pace}")


def stopped_line(done: int, epochs: int, reason: str) -> str:
    """Return a line about a run that a callback has ended."""
    return printable(f"stopped after {done} of {epochs} epochs: {reason}")


def format_metrics(means: Mapping[str, float]) -> str:
    """Format as `accuracy 98.33 %, loss 0.0612`."""
    return ", ".join(f"{name} {format_metric(name, value)}" for name, value in sorted(means.items()))


def format_metric(name: str, value: float) -> str:
    """Format as `98.33 %` for an accuracy, `0.0612` for others."""
    return show_value(name, value) if in_percent(name) else f"{value:.4f}"


def short(value: float) -> str:
    """Format a number in at most nine characters."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.2e}"


# Notebooks ------------------------------------------------------------------------------------------------------------

_INTERVAL = 0.2
"""The minimum number of seconds between two updates, each a message to the browser."""

_ROWS = 100
"""The number of epochs in the table, the last ones, since every update sends all of it."""


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook (Jupyter, VS Code, Colab)."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@final
class NotebookCell(AbstractContextManager["NotebookCell"]):
    """A table of the epochs and a bar over all steps, redrawn in one output of the cell."""

    def __init__(self, epochs: int, done: int, steps: int, *, clock: Callable[[], float] = time.monotonic):
        """`done` of all `steps` are already done."""
        self._epochs, self._steps, self._clock = epochs, steps, clock
        self._rate = Rate(done, steps, clock)
        self._rows: list[EpochResult] = []
        self._status, self._left = "resumed" if done else "", ""
        self._epoch = min(epochs, done * epochs // steps + 1)
        self._drawn = -_INTERVAL
        self._output: Any = None

    def __enter__(self) -> Self:
        from IPython.display import display

        self._rate.begin()
        show: Any = display
        self._output = show(self, display_id=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._left = ""
        self._output.update(self)

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Count a step; redraw if the last update is old enough."""
        rate = self._rate.step(samples)
        pace = "" if rate is None else f", {rate[0]:,.0f} samples/s"
        self._epoch, self._status = epoch + 1, f"loss {short(loss)}{pace}"
        self._left = "" if rate is None else f", {rate[1]} left"
        self._redraw()

    def epoch(self, result: EpochResult) -> None:
        """Add the epoch's row; redraw if the last update is old enough."""
        self._rows.append(result)
        self._redraw()

    def _redraw(self) -> None:
        if self._clock() - self._drawn >= _INTERVAL:
            self._drawn = self._clock()
            self._output.update(self)

    def _repr_html_(self) -> str:
        rows = self._rows[-_ROWS:]
        names = sorted({name for row in rows for name in row.held_out})
        titles = ("epoch", "training loss", *[f"held-out {name}" for name in names], "samples/s")
        head = "".join(f"<th>{escape(title)}</th>" for title in titles)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(row, names))}</tr>" for row in rows)
        if before := len(self._rows) - len(rows):
            body = f'<tr><td colspan="{len(titles)}">{before} earlier epochs</td></tr>{body}'
        table = f"<table><tr>{head}</tr>{body}</table>" if self._rows else ""
        status = escape(self._status + self._left)
        return (
            f'<div class="opstage-progress">{table}epoch {self._epoch}/{self._epochs} '
            f'<progress value="{self._rate.done}" max="{self._steps}"></progress> {status}</div>'
        )

    def __repr__(self) -> str:
        return f"epoch {self._epoch}/{self._epochs}: {self._status + self._left or 'begins'}"


def _cells(row: EpochResult, names: list[str]) -> list[str]:
    means = [format_metric(name, row.held_out[name]) if name in row.held_out else "" for name in names]
    pace = f"{row.samples / row.seconds:,.0f}" if row.seconds else ""
    return [str(row.epoch + 1), f"{row.train_loss:.4f}", *means, pace]
