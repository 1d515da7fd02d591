"""The training loop: epochs over batches with evaluation and observers.

The loop can stop and resume at any step boundary. `Position` is the current boundary, a `Saver` receives every position
with its optimizer state, and `fit(start=…)` continues from one, bit for bit as if it had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import Any, Protocol

from ..data import Batches, Loader, Prefetch, bind
from ..ops.errors import UsageError
from ..optim import Optimizer
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
                means = _merge_metrics(means, callback.name, callback.evaluated(loop))
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


def _merge_metrics(means: dict[str, float], whose: str, more: Mapping[str, float]) -> dict[str, float]:
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
