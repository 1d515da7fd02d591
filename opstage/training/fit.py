"""The training loop: epochs over a loader, evaluation after each, and someone who is told about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..data import Loader
from .optim import Optimizer
from .trainer import OptimizerState, ScalarTrainer


@dataclass(frozen=True)
class EpochResult:
    """One epoch: mean training loss, held-out metrics (means per sample), and how long its training took."""

    epoch: int
    train_loss: float
    held_out: Mapping[str, float]
    seconds: float
    samples: int


class Observer(Protocol):
    """Is told of every step and epoch; see opstage.cli.progress."""

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """After each training step."""

    def epoch(self, result: EpochResult) -> None:
        """After each epoch's evaluation."""


def fit(
    trainer: ScalarTrainer,
    optimizer: Optimizer,
    train: Loader,
    held_out: Loader,
    metrics: Callable[..., Any],
    *,
    epochs: int,
    observer: Observer | None = None,
    state: OptimizerState | None = None,
) -> list[EpochResult]:
    """Train for `epochs`; the result of each, of which the observer is told as it ends.

    `metrics` is a program that returns sums over a batch by name; they become means over the held-out samples.
    """
    state = state if state is not None else trainer.init_optim(optimizer)
    results = []
    for epoch in range(epochs):
        start = time.perf_counter()
        total, samples = 0.0, 0
        for number, batch in enumerate(train.epoch(epoch)):
            result = trainer.train_step(optimizer, state, *batch)
            state = result.state
            size = len(batch[0])
            total += float(result.loss) * size
            samples += size
            if observer is not None:
                observer.step(epoch, number, float(result.loss), size)
        seconds = time.perf_counter() - start
        outcome = EpochResult(epoch, total / samples, evaluate(trainer, metrics, held_out), seconds, samples)
        if observer is not None:
            observer.epoch(outcome)
        results.append(outcome)
    return results


def evaluate(trainer: ScalarTrainer, metrics: Callable[..., Any], loader: Loader) -> dict[str, float]:
    """Means over the loader's samples of metrics that a program gives as sums over a batch; see `Model.metrics`."""
    sums: dict[str, float] = {}
    samples = 0
    for batch in loader.epoch(0):
        for name, value in trainer.evaluate(metrics, *batch).items():
            sums[name] = sums.get(name, 0.0) + float(value)
        samples += len(batch[0])
    count = sums.pop("count", samples)
    return {name: value / count for name, value in sums.items()}
