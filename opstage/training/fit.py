"""Training loops: epochs over batches with evaluation and observers, and the learning-rate range test.

The loop can stop and resume at any step boundary. `Position` is the current boundary, a `Saver` receives every position
with its optimizer state, and `fit(start=…)` continues from one, bit for bit as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, Protocol, final

from ..data import Batches, Loader, Prefetch, bind
from ..ops.errors import UsageError, brief
from ..ops.tracebacks import called_by_users
from ..optim import Optimizer
from ..optim.hyperparameters import require_count, require_positive
from ..optim.schedule import Schedule
from ..program_arguments import batch_arguments
from .callback import Callback, Loop, require_metrics, require_names
from .commit import uninterrupted
from .finite import require_finite_loss, require_finite_numbers, require_finite_values
from .snapshot import EpochResult, Position
from .state import OptimizerState, RunningAverage
from .trainer import ScalarTrainer

__all__ = ["EpochResult", "Observer", "Position", "Saver", "evaluate", "fit", "require_callbacks"]
__dir__ = __all__.copy


class Observer(Protocol):
    """Receives every step and epoch; see opstage.runs.progress."""

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Called after each training step."""

    def epoch(self, result: EpochResult) -> None:
        """Called after each epoch's evaluation."""


class Saver(Protocol):
    """Receives each position of the loop and may save it; SIGINT and SIGTERM are deferred meanwhile."""

    def boundary(self, state: OptimizerState, position: Position) -> None:
        """Called after each training step, and after each epoch's evaluation (`position.batch` is then 0)."""

    def interrupted(self, state: OptimizerState, position: Position) -> None:
        """Called on KeyboardInterrupt, before it is re-raised. Trainer, state and position are consistent."""


def fit(
    trainer: ScalarTrainer,
    optimizer: Optimizer,
    train: Batches,
    held_out: Batches,
    metrics: Callable[..., Any],
    *,
    epochs: int,
    observer: Observer | None = None,
    state: OptimizerState | None = None,
    start: Position | None = None,
    saver: Saver | None = None,
    require_finite: bool = True,
    callbacks: Sequence[Callback] = (),
) -> list[EpochResult]:
    """Train until `epochs` are done; the result of each, those of `start` included.

    `metrics` is a program that returns sums over a batch by name; they become means over the held-out samples. With
    `start` the trainer and `state` must be those of that position; see opstage.training.checkpoint. Every step moves
    `state` on. The arrays of a dataset go to the arguments of loss and metrics that have their names; see `data.bind`.
    A step is whole: an interrupt that comes during one is raised after it.

    `callbacks` receive every step and epoch in their order, before `observer`, and may end the run or scale its
    learning rate; see `Callback`. With `start` they must have been restored too.

    With `require_finite` a loss or held-out metric that is nan or infinite raises NotFiniteError before `saver` has it;
    so does such a number in parameters, state or moments, which are looked through after each epoch.
    """
    require_callbacks(callbacks, trainer, metrics, held_out)
    train = bind(train, trainer.batch_arguments, "the loss")
    if isinstance(train, (Loader, Prefetch)):
        train = train.own(trainer.own_rows)  # with several processes, each reads the rows of its own ranks
    arguments = trainer.batch_arguments
    names = (*arguments.required, *arguments.optional) if arguments is not None else ()
    state = state if state is not None else trainer.init_optim(optimizer)
    at = start if start is not None else Position()
    if require_finite and start is not None:
        require_finite_values(trainer.unfetched(), trainer.unfetched_optim(optimizer, state))
    loop = Loop(
        trainer, optimizer, state, at, callbacks, lambda average: evaluate(trainer, metrics, held_out, average=average)
    )
    steps = trainer.steps_taken  # the steps at the loop's position, with which the callbacks agree
    told = True
    for callback in callbacks:
        callback.begin(loop)
    try:
        while loop.position.epoch < epochs and not (loop.position.stopped and not loop.position.batch):
            with closing(train.epoch(loop.position.epoch, loop.position.batch)) as batches:
                while not loop.position.stopped:
                    since = time.perf_counter()
                    batch = next(batches, None)
                    if batch is None:
                        break
                    with uninterrupted():
                        loop.last = loop.optimizer
                        result = trainer.advance(loop.last, state, *batch)
                        told, at = False, loop.position
                        loop.gradient_norm = None if result.gradient_norm is None else float(result.gradient_norm)
                        loss, size, number = float(result.loss), len(batch[0]), at.batch
                        loop.position = replace(
                            at,
                            batch=number + 1,
                            loss_sum=at.loss_sum + loss * size,
                            samples=at.samples + size,
                            seconds=at.seconds + time.perf_counter() - since,
                        )
                        for callback in callbacks:
                            callback.step(loop, loss)
                        steps, told = trainer.steps_taken, True
                        if observer is not None:
                            observer.step(at.epoch, number, loss, size)
                        if require_finite:
                            require_finite_loss(loss, steps, batch, names)
                        if saver is not None:
                            saver.boundary(state, loop.position)
            at = loop.position
            means, counted = _evaluated(trainer, metrics, held_out)
            for callback in callbacks:
                means = _joined(means, callback.name, callback.evaluated(loop))
            outcome = EpochResult(at.epoch, at.loss_sum / at.samples, means, at.seconds, at.samples, counted)
            with uninterrupted():
                told = False
                loop.position = Position(
                    at.epoch + 1, results=(*at.results, outcome), lr_scale=at.lr_scale, stopped=at.stopped
                )
                for callback in callbacks:
                    callback.epoch(loop, outcome)
                told = True
                if observer is not None:
                    observer.epoch(outcome)
                if require_finite:
                    require_finite_numbers("the epoch's mean ", {"loss": outcome.train_loss}, steps)
                    require_finite_numbers("held-out ", means, steps)
                    require_finite_values(trainer.unfetched(), trainer.unfetched_optim(optimizer, state))
                if saver is not None:
                    saver.boundary(state, loop.position)
    except KeyboardInterrupt:
        # an exception that is not from a signal may come when a step has been taken but not yet reported
        if saver is not None and told and steps == trainer.steps_taken:
            with uninterrupted():
                saver.interrupted(state, loop.position)
        raise
    return list(loop.position.results)


def require_callbacks(
    callbacks: Sequence[Callback], trainer: ScalarTrainer, metrics: Callable[..., Any], held_out: Batches
) -> None:
    """Raise a UsageError unless all are callbacks that can follow this run. `fit` calls this first."""
    require_names(callbacks)
    require_metrics(callbacks, lambda: list(evaluate(trainer, metrics, held_out, most=1)))


def _joined(means: dict[str, float], whose: str, more: Mapping[str, float]) -> dict[str, float]:
    for name in more:
        if name in means:
            raise UsageError(f"the callback {whose!r} gives a held-out metric {name!r}, which there is already")
    return {**means, **more}


def evaluate(
    trainer: ScalarTrainer,
    metrics: Callable[..., Any],
    batches: Batches,
    *,
    most: int | None = None,
    average: RunningAverage | None = None,
) -> dict[str, float]:
    """Return the mean per sample of metrics that a program returns as sums over a batch; see `Model.metrics`.

    `most` limits the number of batches (None: all); `average` replaces the parameters. A metric with a name that ends
    in `_l2` is a sum of squares, and the result is the square root of its mean.
    """
    return _evaluated(trainer, metrics, batches, most=most, average=average)[0]


def _evaluated(
    trainer: ScalarTrainer,
    metrics: Callable[..., Any],
    batches: Batches,
    *,
    most: int | None = None,
    average: RunningAverage | None = None,
) -> tuple[dict[str, float], float]:
    """Return what `evaluate` does, and by how much the sums were divided."""
    batches = bind(batches, batch_arguments(metrics, skip=trainer.batch_starts), "the program of the metrics")
    sums: dict[str, float] = {}
    samples = 0
    with closing(batches.epoch(0)) as epoch:
        for batch in islice(epoch, most):
            found = (
                trainer.evaluate(metrics, *batch) if average is None else trainer.evaluate_at(average, metrics, *batch)
            )
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            samples += len(batch[0])
    count = sums.pop("count", samples)
    means = {name: value / count if count else math.nan for name, value in sums.items()}
    roots = {name: math.sqrt(mean) if name.endswith("_l2") else mean for name, mean in means.items()}
    return roots, float(count)


# The learning-rate range test: the trainer is restored afterwards -----------------------------------------------------

_SMOOTHING = 0.98
_DIVERGED = 4.0
_SHOWN = 20


@final
@dataclass(frozen=True)
class LrRange:
    """The result of a range test: rates, the loss at each step, and its bias-corrected exponential moving average.

    suggestion   the rate at which that average fell fastest, per log of the rate; None if it did not fall
    diverged     the rate at which it reached four times its minimum or was not finite; None if it never did
    """

    rates: tuple[float, ...]
    losses: tuple[float, ...]
    smoothed: tuple[float, ...]
    suggestion: float | None
    diverged: float | None

    def __repr__(self) -> str:
        span = f"{len(self.rates)} rates from {self.rates[0]:.3g} to {self.rates[-1]:.3g}" if self.rates else "no rates"
        return f"LrRange({span}, suggestion={self.suggestion}, diverged={self.diverged})"

    def __str__(self) -> str:
        every = max(1, math.ceil(len(self.rates) / _SHOWN))
        shown = sorted({*range(0, len(self.rates), every), len(self.rates) - 1})
        lines = [f"{'rate':>10}  {'loss':>10}  {'smoothed':>10}"]
        lines += [f"{self.rates[i]:>10.3g}  {self.losses[i]:>10.4g}  {self.smoothed[i]:>10.4g}" for i in shown]
        if self.diverged is not None:
            lines.append(f"the loss diverged at a rate of {self.diverged:.3g}")
        if self.suggestion is None:
            lines.append("the loss did not fall at any of these rates; try others")
        else:
            lines.append(f"suggested rate: {self.suggestion:.3g}, where the loss fell fastest")
        return "\n".join(lines)


@called_by_users
def lr_range_test(
    trainer: ScalarTrainer,
    optimizer: Optimizer,
    batches: Batches,
    *,
    start: float = 1e-6,
    end: float = 1.0,
    steps: int = 100,
) -> LrRange:
    """Train for up to `steps` steps at rates start·(end/start)^(i/(steps - 1)), i = 0, 1, …, and take all of it back.

    Rates of groups keep their ratios to that of `optimizer`. It ends where the smoothed loss is four times its least,
    or not finite. Parameters, the program's state, moments and the number of steps are what they were before, then.
    Source: Smith 2017, Cyclical Learning Rates. Raises UsageError for an optimizer whose rate is a schedule, or 0.

    Raises:
        UsageError: what is no trainer; rates that are none.
    """
    if not isinstance(trainer, ScalarTrainer) or not isinstance(optimizer, Optimizer):
        raise UsageError(f"lr_range_test takes a trainer and an optimizer, not {brief(trainer)} and {brief(optimizer)}")
    start = float(require_positive("lr_range_test", "start", start))
    end = float(require_positive("lr_range_test", "end", end))
    steps = require_count("lr_range_test", "steps", steps, least=2)
    if end <= start:
        raise UsageError(f"lr_range_test: end must be above start, {start:g}, but is {end:g}")
    base: Any = optimizer.lr
    if isinstance(base, Schedule) or not base > 0:
        raise UsageError(f"lr_range_test takes an optimizer whose lr is a number above 0, but it is {base!r}")
    if not trainer.executes:
        raise UsageError("lr_range_test trains, but the trainer's backend computes no values")
    before = trainer.export()
    rates: list[float] = []
    losses: list[float] = []
    smoothed: list[float] = []
    average, diverged = 0.0, None
    try:
        state = trainer.init_optim(optimizer)
        for i, batch in zip(range(steps), _endless(bind(batches, trainer.batch_arguments, "the loss"))):
            rate = start * (end / start) ** (i / (steps - 1))
            loss = float(trainer.advance(optimizer.scaled(rate / float(base)), state, *batch).loss)
            average = _SMOOTHING * average + (1 - _SMOOTHING) * loss
            rates.append(rate)
            losses.append(loss)
            smoothed.append(average / (1 - _SMOOTHING ** (i + 1)))
            if not math.isfinite(loss) or smoothed[-1] > _DIVERGED * min(smoothed) > 0:
                diverged = rate
                break
    finally:
        trainer.restore(before)
    return LrRange(tuple(rates), tuple(losses), tuple(smoothed), _steepest(rates, smoothed), diverged)


def _steepest(rates: Sequence[float], smoothed: Sequence[float]) -> float | None:
    """Return the rate at which the smoothed loss falls fastest against the logarithm of the rate.

    Uses differences over a tenth of the steps, without the first tenth, where the average covers only a few batches.
    """
    finite = [value for value in smoothed if math.isfinite(value)]
    reach = max(1, len(finite) // 20)
    inner = range(reach + len(finite) // 10, len(finite) - reach)
    slopes = [(finite[i + reach] - finite[i - reach], rates[i]) for i in inner]
    slope, rate = min(slopes, default=(0.0, 0.0))
    return rate if slope < 0 else None


def _endless(batches: Batches) -> Iterator[Any]:
    for epoch in count():
        empty = True
        with closing(batches.epoch(epoch)) as each:
            for batch in each:
                empty = False
                yield batch
        if empty:
            raise UsageError("lr_range_test: there are no batches")
