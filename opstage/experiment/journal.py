"""`Journal`: writes down what happens in a run as it happens, and at its end what there is to look at."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, final

from ..ops.errors import OpstageError
from ..training.finite import NotFiniteError
from ..training.fit import EpochResult, Position
from .confusion import confusion_matrix
from .curves import Curves
from .directory import METRICS, PLOT, REPORT, RUN, RunDirectory
from .extras import Events, is_installed, plot_png
from .metrics import MetricLog, read_metrics
from .report import ReportContent, report_html
from .samples import samples
from .settings import Configuration
from .task import Task
from .versions import read_run


@final
class Journal:
    """An observer of the training loop that keeps metrics.jsonl and TensorBoard's events.

    When its `with` block ends, by an error too, it writes loss.png and report.html.
    """

    def __init__(
        self,
        task: Task,
        configuration: Configuration,
        directory: RunDirectory,
        start: Position,
        say: Callable[[str], None],
        lines: int | None = None,
    ):
        """`lines` of metrics.jsonl there were at the checkpoint that the run goes on from, where it says so.

        `gap` says in words which of them are lost.
        """
        self._task = task
        self._configuration = configuration
        self._directory = directory
        self._say = say
        self._steps = start.epoch * len(task.batches) + start.batch
        self._run = read_run(directory.path / RUN)
        self._log = MetricLog(directory.path / METRICS, steps=self._steps, epochs=start.epoch, most=lines)
        self.gap = ""
        if lines is not None and self._log.count < lines:
            self.gap = (
                f"{directory.path / METRICS} holds {self._log.count} of the {lines} lines that were written up to step "
                f"{self._steps:,}: the others are lost; the run itself is whole"
            )
        run = task.settings.run
        self._events = Events(directory.path, steps=self._steps) if run.tensorboard else None
        self._since = time.perf_counter()
        self._samples = 0
        self._results: list[EpochResult] = list(start.results)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()
        if self._events is not None:
            self._events.close()
        if error is None:
            self._finish()
        elif isinstance(error, (KeyboardInterrupt, OpstageError)):
            try:
                self._finish(error)
            except OpstageError as another:  # who asks for the run's end is told of that first
                self._say(f"no {REPORT}: {another}")

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """A line every `run.log_every` steps."""
        self._steps += 1
        self._samples += samples
        if self._steps % self._task.settings.run.log_every and math.isfinite(loss):
            return
        now = time.perf_counter()
        rate, self._since, self._samples = self._samples / (now - self._since), now, 0
        lr = self._task.optimizer.scalars(self._steps)["lr"]
        self._log.append(
            {
                "kind": "step",
                "step": self._steps,
                "epoch": epoch,
                "loss": loss,
                "lr": lr,
                "samples_per_second": round(rate, 1),
            }
        )
        self._scalars({"loss/step": loss, "lr": lr})

    def epoch(self, result: EpochResult) -> None:
        """A line for the epoch."""
        self._results.append(result)
        self._log.append(
            {
                "kind": "epoch",
                "step": self._steps,
                "epoch": result.epoch,
                "train_loss": result.train_loss,
                "held_out": dict(result.held_out),
                "samples_per_second": round(result.samples / result.seconds, 1) if result.seconds else 0.0,
            }
        )
        self._scalars(
            {"loss/epoch": result.train_loss, **{f"held_out/{name}": v for name, v in result.held_out.items()}}
        )
        self._since, self._samples = time.perf_counter(), 0

    def sync(self) -> int:
        """How many lines there are, once they are on the disk. Raises WriteError."""
        self._log.sync()
        return self._log.count

    def _scalars(self, values: dict[str, float]) -> None:
        if self._events is not None:
            for tag, value in values.items():
                self._events.scalar(tag, value, self._steps)

    def _finish(self, error: BaseException | None = None) -> None:
        task, directory, whole = self._task, self._directory, error is None
        run = task.settings.run
        curves = Curves(read_metrics(directory.path / METRICS))
        title = f"{run.model}, {task.trainer.parameter_count:,} parameters"
        if any(panel.curves for panel in curves.panels()):
            if run.plot or (run.plot is None and is_installed("matplotlib")):
                directory.write(PLOT, plot_png(curves, title))
            elif run.plot is None:
                self._say(f"no {PLOT}: matplotlib is not installed; pip install 'opstage[plot]'")
        done = f"{len(self._results)} of {run.epochs} epochs, {self._steps:,} of {task.steps:,} steps"
        if isinstance(error, OpstageError):
            status = f"Stopped after {done}: {error.place if isinstance(error, NotFiniteError) else error}"
        else:
            status = f"Finished: {done}." if whole else f"Interrupted after {done}; opstage train --resume goes on."
        if self.gap:
            status += f" {self.gap}."
        content = ReportContent(
            title=title,
            status=status,
            held_out=self._results[-1].held_out if self._results else {},
            curves=curves,
            cost=task.trainer.report(*task.model.batch).table,
            confusion=confusion_matrix(task.trainer, task.model.metrics, task.test_batches) if whole else None,
            samples=samples(task) if whole else None,
            configuration=self._configuration,
            run=self._run,
        )
        directory.write(REPORT, report_html(content).encode(errors="replace"))  # run.json may hold half a character
