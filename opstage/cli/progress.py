"""Progress of a training run: a bar on a terminal, a line per epoch otherwise."""

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
        click.echo(
            printable(
                f"epoch {result.epoch + 1}/{self._epochs}  loss {result.train_loss:.4f}  {_held_out(result)}  "
                f"{result.samples / result.seconds:,.0f} samples/s"
            )
        )


@final
class Bar(AbstractContextManager["Bar"]):
    """A rich progress bar over all steps, with loss, held-out metrics, samples per second and time left."""

    def __init__(
        self, epochs: int, done: int, steps: int, *, clock: Callable[[], float] = time.monotonic, **progress: Any
    ):
        """`done` of all `steps` are done already; `progress` is passed on to rich."""
        from rich.progress import BarColumn, Progress, TextColumn

        self._epochs = epochs
        self._steps = steps
        self._done = done
        self._held_out = ""
        self._clock = clock
        self._times: deque[float] = deque(maxlen=_WINDOW)  # when the last steps ended; first, when the first began
        self._progress: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}", markup=False),  # names of metrics are the user's
            **progress,
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
            pace = f"  {speed * samples:,.0f} samples/s  {left} left"
        self._progress.update(
            self._task,
            completed=self._done,
            description=f"epoch {epoch + 1}/{self._epochs}",
            status=f"loss {loss:.4f}{self._held_out}{pace}",
        )

    def epoch(self, result: EpochResult) -> None:
        """The metrics that are shown from now on."""
        self._held_out = f"  {_held_out(result)}"

    def refresh(self) -> None:
        """Draw now."""
        self._progress.refresh()


def make_watcher(epochs: int, done: int, steps: int) -> PlainLines | Bar:
    """A bar where there is a terminal to draw it on, lines otherwise; `done` of all `steps` are done already."""
    return Bar(epochs, done, steps) if sys.stdout is not None and sys.stdout.isatty() else PlainLines(epochs)


def format_held_out(means: Mapping[str, float]) -> str:
    """`accuracy 98.33 %, loss 0.0612`."""
    return ", ".join(
        f"{name} {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4f}"
        for name, value in sorted(means.items())
    )


def _held_out(result: EpochResult) -> str:
    return printable(f"held-out {format_held_out(result.held_out)}")
