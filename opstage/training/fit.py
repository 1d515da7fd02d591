"""The training loop: epochs over batches, evaluation after each, and someone who is told about it.

The loop can be left and entered at any step boundary: `Position` is where it stands, a `Saver` is told every position
with the optimizer state that belongs to it, and `fit(start=…)` goes on from one, bit for bit as if it had never
stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..api import batch_arguments
from ..data import Batches, bind
from .commit import uninterrupted
from .finite import require_finite_loss, require_finite_numbers, require_finite_values
from .optim import Optimizer
from .optimizer_state import OptimizerState
from .trainer import ScalarTrainer


@dataclass(frozen=True)
class EpochResult:
    """One epoch: mean training loss, held-out metrics (means per sample), and how long its training took."""

    epoch: int
    train_loss: float
    held_out: Mapping[str, float]
    seconds: float
    samples: int


@dataclass(frozen=True)
class Position:
    """A step boundary: `batch` steps of epoch `epoch` are done, both counted from 0, and the epochs of `results`.

    loss_sum, samples, seconds    what the epoch has gathered so far; the loss is summed over samples
    """

    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    samples: int = 0
    seconds: float = 0.0
    results: tuple[EpochResult, ...] = ()


class Observer(Protocol):
    """Is told of every step and epoch; see opstage.cli.progress."""

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """After each training step."""

    def epoch(self, result: EpochResult) -> None:
        """After each epoch's evaluation."""


class Saver(Protocol):
    """Is told where the loop stands, and may save it; SIGINT and SIGTERM are put off while it does."""

    def boundary(self, state: OptimizerState, position: Position) -> None:
        """After each training step, and after each epoch's evaluation (`position.batch` is then 0)."""

    def interrupted(self, state: OptimizerState, position: Position) -> None:
        """On KeyboardInterrupt, before it goes on its way. Trainer, state and position belong together."""


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
) -> list[EpochResult]:
    """Train until `epochs` are done; the result of each, those of `start` included.

    `metrics` is a program that returns sums over a batch by name; they become means over the held-out samples. With
    `start` the trainer and `state` must be those of that position; see opstage.training.checkpoint. Every step moves
    `state` on. The arrays of a dataset go to the arguments of loss and metrics that have their names; see `data.bind`.
    A step is whole: an interrupt that comes during one is raised after it.

    With `require_finite` a loss or held-out metric that is nan or infinite raises NotFiniteError before `saver` is told
    of it; so does such a number in parameters, state or moments, which are looked through after each epoch.
    """
    train = bind(train, trainer.batch_arguments, "the loss")
    arguments = trainer.batch_arguments
    names = (*arguments.required, *arguments.optional) if arguments is not None else ()
    state = state if state is not None else trainer.init_optim(optimizer)
    at = start if start is not None else Position()
    if require_finite and start is not None:
        require_finite_values(trainer.export(), trainer.export_optim(optimizer, state))
    steps = trainer.steps_taken  # those that belong to `at`
    try:
        while at.epoch < epochs:
            with closing(train.epoch(at.epoch, at.batch)) as batches:
                while True:
                    since = time.perf_counter()
                    batch = next(batches, None)
                    if batch is None:
                        break
                    with uninterrupted():
                        result = trainer.advance(optimizer, state, *batch)
                        loss, size, number = float(result.loss), len(batch[0]), at.batch
                        at = replace(
                            at,
                            batch=number + 1,
                            loss_sum=at.loss_sum + loss * size,
                            samples=at.samples + size,
                            seconds=at.seconds + time.perf_counter() - since,
                        )
                        steps = trainer.steps_taken
                        if observer is not None:
                            observer.step(at.epoch, number, loss, size)
                        if require_finite:
                            require_finite_loss(loss, steps, batch, names)
                        if saver is not None:
                            saver.boundary(state, at)
            means = evaluate(trainer, metrics, held_out)
            outcome = EpochResult(at.epoch, at.loss_sum / at.samples, means, at.seconds, at.samples)
            with uninterrupted():
                at = Position(at.epoch + 1, results=(*at.results, outcome))
                if observer is not None:
                    observer.epoch(outcome)
                if require_finite:
                    require_finite_numbers("the epoch's mean ", {"loss": outcome.train_loss}, steps)
                    require_finite_numbers("held-out ", means, steps)
                    require_finite_values(trainer.export(), trainer.export_optim(optimizer, state))
                if saver is not None:
                    saver.boundary(state, at)
    except KeyboardInterrupt:
        # an exception that no signal raised may come when a step is taken, but not yet told of
        if saver is not None and steps == trainer.steps_taken:
            with uninterrupted():
                saver.interrupted(state, at)
        raise
    return list(at.results)


def evaluate(trainer: ScalarTrainer, metrics: Callable[..., Any], batches: Batches) -> dict[str, float]:
    """Means over the samples of metrics that a program gives as sums over a batch; see `Model.metrics`.

    Of a metric whose name ends in `_l2` the sum is one of squares, and the result the root of its mean.
    """
    batches = bind(batches, batch_arguments(metrics, skip=trainer.batch_starts), "the program of the metrics")
    sums: dict[str, float] = {}
    samples = 0
    with closing(batches.epoch(0)) as epoch:
        for batch in epoch:
            for name, value in trainer.evaluate(metrics, *batch).items():
                sums[name] = sums.get(name, 0.0) + float(value)
            samples += len(batch[0])
    count = sums.pop("count", samples)
    means = {name: value / count for name, value in sums.items()}
    return {name: math.sqrt(mean) if name.endswith("_l2") else mean for name, mean in means.items()}
