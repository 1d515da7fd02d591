"""What a person sees while a model trains: a bar on a terminal, a line per epoch otherwise."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, final

import click

from ..training.fit import EpochResult


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
            f"epoch {result.epoch + 1}/{self._epochs}  loss {result.train_loss:.4f}  {_held_out(result)}  "
            f"{result.samples / result.seconds:,.0f} samples/s"
        )


@final
class Bar(AbstractContextManager["Bar"]):
    """A rich progress bar over all steps, with loss, held-out accuracy, samples per second and time left."""

    def __init__(self, epochs: int, done: int, steps: int, **progress: Any):
        """`done` of all `steps` are done already; `progress` is passed on to rich."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._epochs = epochs
        self._held_out = ""
        self._progress: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
            **progress,
        )
        epoch = min(epochs, done * epochs // steps + 1)
        self._task = self._progress.add_task(
            f"epoch {epoch}/{epochs}", total=steps, completed=done, status="resumed" if done else ""
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        speed = self._progress.tasks[0].speed
        rate = f"  {speed * samples:,.0f} samples/s" if speed else ""
        self._progress.update(
            self._task,
            advance=1,
            description=f"epoch {epoch + 1}/{self._epochs}",
            status=f"loss {loss:.4f}{self._held_out}{rate}",
        )

    def epoch(self, result: EpochResult) -> None:
        self._held_out = f"  {_held_out(result)}"


def make_watcher(epochs: int, done: int, steps: int) -> PlainLines | Bar:
    """A bar where there is a terminal to draw it on, lines otherwise; `done` of all `steps` are done already."""
    return Bar(epochs, done, steps) if sys.stdout.isatty() else PlainLines(epochs)


def format_held_out(means: Mapping[str, float]) -> str:
    """`accuracy 98.33 %, loss 0.0612`."""
    return ", ".join(
        f"{name} {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4f}"
        for name, value in sorted(means.items())
    )


def _held_out(result: EpochResult) -> str:
    return f"held-out {format_held_out(result.held_out)}"
