"""What a person sees while a model trains: a bar on a terminal, a line per epoch otherwise."""

from __future__ import annotations

import sys
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

    def __init__(self, epochs: int, steps_per_epoch: int):
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self._epochs = epochs
        self._held_out = ""
        self._progress: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task("", total=epochs * steps_per_epoch, status="")

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


def make_observer(epochs: int, steps_per_epoch: int) -> PlainLines | Bar:
    """A bar where there is a terminal to draw it on, lines otherwise."""
    return Bar(epochs, steps_per_epoch) if sys.stdout.isatty() else PlainLines(epochs)


def _held_out(result: EpochResult) -> str:
    return "held-out " + ", ".join(
        f"{name} {100 * value:.2f} %" if name == "accuracy" else f"{name} {value:.4f}"
        for name, value in sorted(result.held_out.items())
    )
