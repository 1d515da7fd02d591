"""`Journal`: records a run while it runs, and writes the report and plot at its end."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self, final

from ..ops.errors import OpstageError, is_installed
from ..optim.groups import group_rows
from ..training.callback import Loop
from ..training.finite import NotFiniteError
from ..training.fit import EpochResult, Position
from .charts import Curves, plot_png
from .directory import METRICS, PLOT, REPORT, RUN, RunDirectory, read_run
from .metrics_log import Events, MetricLog, read_metrics
from .processes import Processes
from .report import ReportContent, report_html
from .report_samples import Shown
from .run_setup import Task
from .settings import Configuration

# Pace of reports ------------------------------------------------------------------------------------------------------

SHARE = 0.01
"""The fraction of the run's time that may be spent on its report."""
INTERVAL = 3.0
"""The minimum number of seconds between two writes."""
_FIRST = 0.03
"""The assumed cost of the first write, in seconds."""


@final
class Pace:
    """Decides when a write is due, from the cost of earlier ones.

    A write is due `INTERVAL` seconds after the last one, once the total cost, including another write like the last, is
    at most `SHARE` of the elapsed time.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._began = self._last = clock()
        self._spent = 0.0
        self._latest = _FIRST

    @property
    def due(self) -> bool:
        """Return whether a write is due."""
        now = self._clock()
        return now - self._last >= INTERVAL and self._spent + self._latest <= SHARE * (now - self._began)

    def spend(self, write: Callable[[], object]) -> None:
        """Write, and record the cost."""
        since = self._clock()
        try:
            write()
        finally:
            self._last = self._clock()
            self._latest = self._last - since
            self._spent += self._latest


@final
class Journal:
    """An observer of the training loop that writes metrics.jsonl and TensorBoard events.

    It writes report.html during the run, and again with loss.png when its `with` block ends, even by an error.
    """

    def __init__(
        self,
        task: Task,
        configuration: Configuration,
        directory: RunDirectory,
        start: Position,
        say: Callable[[str], None],
        lines: int | None = None,
        *,
        pace: Pace | None = None,
    ):
        """`lines` is the number of lines in metrics.jsonl at the checkpoint to resume from, if known.

        `pace` decides when to write the report during the run.
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
        self._pace = pace if pace is not None else Pace()
        self._cost = ""
        self.loop: Loop | None = None
        self.processes: Processes | None = None
        """The processes of the run, if it has several; they are notified before the journal."""
        self.shown: Shown | None = None
        """The classifications and samples in the report of a complete run."""

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
            except OpstageError as another:  # a request to end the run is raised first
                self._say(f"no {REPORT}: {another}")

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Write a line every `run.log_every` steps."""
        self._directory.started = True
        self._steps += 1
        self._samples += samples
        if self._steps % self._task.settings.run.log_every and math.isfinite(loss):
            return
        now = time.perf_counter()
        rate, self._since, self._samples = self._samples / (now - self._since), now, 0
        lr = self.loop.lr if self.loop is not None else self._task.optimizer.step_scalars(self._steps)["lr"]
        norm = self.loop.gradient_norm if self.loop is not None else None
        more = {} if norm is None else {"gradient_norm": norm}
        self._log.append(
            {
                "kind": "step",
                "step": self._steps,
                "epoch": epoch,
                "loss": loss,
                "lr": lr,
                **more,
                "samples_per_second": round(rate, 1),
            }
        )
        self._scalars({"loss/step": loss, "lr": lr, **more})
        self._show()

    def epoch(self, result: EpochResult) -> None:
        """Write a line for the epoch."""
        self._results.append(result)
        self._log.append(
            {
                "kind": "epoch",
                "step": self._steps,
                "epoch": result.epoch,
                "train_loss": result.train_loss,
                "held_out": dict(result.held_out),
                "samples_per_second": round(result.samples / result.seconds, 1) if result.seconds else 0.0,
                **({} if self.processes is None else {"processes": self.processes.data()}),
            }
        )
        self._scalars(
            {"loss/epoch": result.train_loss, **{f"held_out/{name}": v for name, v in result.held_out.items()}}
        )
        self._show()
        self._since, self._samples = time.perf_counter(), 0

    def sync(self) -> int:
        """Return the number of lines, once they are on disk. Raises WriteError."""
        self._log.sync()
        return self._log.count

    def _scalars(self, values: dict[str, float]) -> None:
        if self._events is not None:
            for tag, value in values.items():
                self._events.scalar(tag, value, self._steps)

    def _show(self) -> None:
        """Write the report of a running run if it is due. The run continues if that fails."""
        if self._pace.due:
            with suppress(OpstageError):
                self._table()  # needed at the end too
                self._pace.spend(lambda: self._report(f"Running: {self._progress()}.", running=True))

    def _progress(self) -> str:
        task = self._task
        return f"{len(self._results)} of {task.settings.run.epochs} epochs, {self._steps:,} of {task.steps:,} steps"

    @property
    def _title(self) -> str:
        return f"{self._task.settings.defined.called}, {self._task.trainer.parameter_count:,} parameters"

    def _finish(self, error: BaseException | None = None) -> None:
        task, directory = self._task, self._directory
        run = task.settings.run
        curves = Curves(read_metrics(directory.path / METRICS))
        if any(panel.curves for panel in curves.panels()):
            if run.plot or (run.plot is None and is_installed("matplotlib")):
                directory.write(PLOT, plot_png(curves, self._title))
            elif run.plot is None:
                self._say(f"no {PLOT}: matplotlib is not installed; pip install 'opstage[plot]'")
        if isinstance(error, OpstageError):
            place = error.place if isinstance(error, NotFiniteError) else error
            status = f"Stopped after {self._progress()}: {place}"
        elif error is None:
            status = f"Finished: {self._progress()}."
        else:
            status = f"Interrupted after {self._progress()}; opstage train --resume goes on."
        self._report(status, shown=self.shown if error is None else None, curves=curves)

    def _table(self) -> str:
        """Return shapes and cost as HTML, computed once."""
        if not self._cost:
            self._cost = self._task.trainer.report(*self._task.model.batch).table._repr_html_()
        return self._cost

    def _report(
        self, status: str, *, running: bool = False, shown: Shown | None = None, curves: Curves | None = None
    ) -> None:
        """Write the report."""
        task = self._task
        content = ReportContent(
            title=self._title,
            status=f"{status} {self.gap}." if self.gap else status,
            directory=str(self._directory.path.absolute()),
            seconds=sum(result.seconds for result in self._results),
            held_out=self._results[-1].held_out if self._results else {},
            curves=curves if curves is not None else Curves(read_metrics(self._directory.path / METRICS)),
            cost=self._table(),
            classification=None if shown is None else shown.classification,
            samples=None if shown is None else shown.samples,
            configuration=self._configuration,
            run=self._run,
            classes=task.held_out.classes,
            written=time.time() if running else None,
            processes=() if self.processes is None else self.processes.table,
            groups=group_rows(task.trainer.moved_by(task.optimizer)),
        )
        # run.json may contain half a character
        self._directory.write(REPORT, report_html(content).encode(errors="replace"))
