"""Progress of a training run: a line per epoch, and on a terminal a bar beneath them."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, final

import click

from ..ops.untrusted import printable
from ..training.fit import EpochResult

_WINDOW = 50
"""How many steps the rate is measured over."""

_WIDE = 80
"""From so many columns on, the bar says its units."""


@final
class PlainLines(AbstractContextManager["PlainLines"]):
    """One line an epoch, for logs and pipes."""

    def __init__(self, epochs: int):
        self._epochs = epochs

    def __exit__(self, *exception: object) -> None:
        return None

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        pass

    def epoch(self, result: EpochResult) -> None:
        click.echo(epoch_line(result, self._epochs))


@final
class Bar(AbstractContextManager["Bar"]):
    """A line per epoch, which stays, above a rich bar over all steps: loss, samples per second, time left.

    The bar is one row of any terminal of 60 columns; what does not fit into fewer is cut off.
    """

    def __init__(
        self, epochs: int, done: int, steps: int, *, clock: Callable[[], float] = time.monotonic, **progress: Any
    ):
        """`done` of all `steps` are done already; `progress` is passed on to rich."""
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._epochs = epochs
        self._steps = steps
        self._done = done
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_WINDOW)  # when the last steps ended; first, when the first began
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
        self._times.append(self._clock())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """One step more. The rate is that of the last steps in this process, known from the first of them on."""
        self._done += 1
        self._times.append(self._clock())
        elapsed = self._times[-1] - self._times[0]
        pace = ""
        if elapsed > 0:
            speed = (len(self._times) - 1) / elapsed
            left = timedelta(seconds=round((self._steps - self._done) / speed))
            wide = self._progress.console.width >= _WIDE
            pace = f"  {speed * samples:,.0f}{' samples' if wide else ''}/s  {left}{' left' if wide else ''}"
        self._progress.update(
            self._task,
            completed=self._done,
            description=f"epoch {epoch + 1}/{self._epochs}",
            status=f"loss {_short(loss)}{pace}",
        )

    def epoch(self, result: EpochResult) -> None:
        """The epoch's line, above the bar."""
        line = epoch_line(result, self._epochs)
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def refresh(self) -> None:
        """Draw now."""
        self._progress.refresh()


def make_watcher(epochs: int, done: int, steps: int) -> PlainLines | Bar:
    """A bar where there is a terminal to draw it on, lines otherwise; `done` of all `steps` are done already."""
    return Bar(epochs, done, steps) if sys.stdout is not None and sys.stdout.isatty() else PlainLines(epochs)


def epoch_line(result: EpochResult, epochs: int) -> str:
    """One line about one of so many epochs: mean loss, held-out metrics, rate."""
    pace = f"  {result.samples / result.seconds:,.0f} samples/s" if result.seconds else ""
    held_out = format_held_out(result.held_out)
    return printable(f"epoch {result.epoch + 1}/{epochs}  loss {result.train_loss:.4f}  held-out {held_out}{pace}")


def format_held_out(means: Mapping[str, float]) -> str:
    """`accuracy 98.33 %, loss 0.0612`."""
    return ", ".join(
        f"{name} {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4f}"
        for name, value in sorted(means.items())
    )


def _short(value: float) -> str:
    """At most nine characters."""
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.2e}"
