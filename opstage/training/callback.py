"""`Callback`: observes a training run and may act on it; its state is part of the checkpoint.

A callback sees the run through a `Loop`. Its effects on the loop (a new learning rate, a stop) are kept in the
`Position`. Its own state is returned by `export` and loaded by `restore`, so a run that was killed and resumed
continues as if it had never stopped, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, final

from ..ops.errors import UsageError, a_type, nearest
from ..optim import Optimizer
from ..optim.hyperparameters import require_positive
from .snapshot import CallbackValues, EpochResult, Position, Snapshot, take_snapshot
from .state import OptimizerState, RunningAverage
from .trainer import ScalarTrainer


class Callback:
    """The base of callbacks. Every method does nothing; override those that you need.

    SIGINT and SIGTERM are deferred while `step` and `epoch` run, and while a checkpoint is saved after them: neither
    can separate a callback's state from the trainer's.
    """

    @property
    def name(self) -> str:
        """Return the key of this callback's state in a checkpoint, unique among a run's callbacks; empty if it has no
        state."""
        return type(self).__name__.lower()

    def require(self, metrics: Sequence[str]) -> None:
        """Raise a UsageError if the callback cannot follow a run with these metrics. Called before the run begins."""

    def begin(self, loop: Loop) -> None:
        """Called before the first step of this process; in a resumed run after `restore`.

        Position `Position()` is the start of a run: reset any state that belongs to an earlier run.
        """

    def extend(self) -> None:
        """Called before `begin` if a finished run is extended: a rule that ends runs resets its counters."""

    def step(self, loop: Loop, loss: float) -> None:
        """Called after each training step."""

    def evaluated(self, loop: Loop) -> Mapping[str, float]:
        """Called after each epoch's evaluation. Return further held-out metrics; change nothing."""
        return {}

    def gives(self, names: Sequence[str]) -> Sequence[str]:
        """Return the names of the metrics that `evaluated` will add to those in `names`."""
        return ()

    def epoch(self, loop: Loop, result: EpochResult) -> None:
        """Called after each epoch; `result` has the held-out metrics of all callbacks."""

    def export(self) -> CallbackValues:
        """Return all state that must survive between steps, as plain data and arrays that the caller owns."""
        return CallbackValues()

    def restore(self, values: CallbackValues) -> None:
        """Restore the state that `export` returned."""


@final
class Loop:
    """A training run as its callbacks see it.

    trainer, state    the trainer, and the state of the optimizer
    position          the step boundary that the run has reached
    """

    def __init__(
        self,
        trainer: ScalarTrainer,
        optimizer: Optimizer,
        state: OptimizerState,
        position: Position,
        callbacks: Sequence[Callback],
        evaluate: Callable[[RunningAverage | None], dict[str, float]],
    ):
        self.trainer = trainer
        self.state = state
        self.position = position
        self.callbacks = tuple(callbacks)
        self._evaluate = evaluate
        self._given = optimizer
        self._scaled = 1.0, optimizer
        self.gradient_norm: float | None = None
        """The global norm of the last step's gradient before clipping, or None if the trainer does not compute it."""
        self.last = optimizer
        """The optimizer of the last step, with the learning rate of that step."""

    @property
    def optimizer(self) -> Optimizer:
        """Return the optimizer of the next step: the given one with its learning rate scaled."""
        scale = self.position.lr_scale
        if self._scaled[0] != scale:
            self._scaled = scale, self._given.scaled(scale)
        return self._scaled[1]

    @property
    def lr(self) -> float:
        """Return the learning rate of the last step, or of the first if no step was taken yet."""
        return self.last.step_scalars(max(1, self.state.t))["lr"]

    def evaluate(self, average: RunningAverage | None = None) -> dict[str, float]:
        """Return the held-out metrics of the current parameters, or of an average of them."""
        return self._evaluate(average)

    def stop(self, reason: str) -> None:
        """End the run with the current step or epoch. What it has trained so far is still evaluated.

        `reason` is kept in the checkpoint: a resumed run stays ended unless it is extended by more epochs.
        """
        if not self.position.stopped:
            self.position = replace(self.position, stopped=reason or "stopped by a callback")

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rates of all later steps by `factor`, on top of any schedule."""
        scale = self.position.lr_scale * require_positive("scale_lr", "factor", factor)
        self.position = replace(self.position, lr_scale=scale)

    def snapshot(self, config: Mapping[str, Any] | None = None, *, fetched: bool = True) -> Snapshot:
        """Take a snapshot of the run, to be saved as a checkpoint. Unless `fetched`, save it before the next step."""
        trainer, position = self.trainer, self.position
        return take_snapshot(trainer, self._given, self.state, position, config, self.callbacks, fetched=fetched)


def require_names(callbacks: Sequence[Callback]) -> None:
    """Raise a UsageError unless all are callbacks with distinct names."""
    seen: set[str] = set()
    for callback in callbacks:
        if not isinstance(callback, Callback):
            what = f"{callback.__name__} itself" if isinstance(callback, type) else a_type(callback)
            raise UsageError(
                f"a callback must be a Callback, such as callbacks.EarlyStopping(patience=5), but is {what}; "
                "callbacks.EachEpoch(function) makes one of a function"
            )
        if callback.name and callback.name in seen:
            raise UsageError(f"two callbacks are called {callback.name!r}; give one of them another name")
        seen.add(callback.name)


def require_metrics(callbacks: Sequence[Callback], names: Callable[[], Sequence[str]]) -> None:
    """Raise a UsageError if a callback cannot follow a run with held-out metrics of these names."""
    if all(type(callback).require is Callback.require for callback in callbacks):
        return
    own = tuple(names())
    metrics = ("train_loss", *own, *chain.from_iterable(callback.gives(own) for callback in callbacks))
    for callback in callbacks:
        callback.require(metrics)


def require_restorable(callbacks: Sequence[Callback], saved: Mapping[str, CallbackValues]) -> None:
    """Raise a UsageError unless `saved` holds the states of exactly these callbacks."""
    require_names(callbacks)
    names = [callback.name for callback in callbacks if callback.name]
    for name in names:
        if name not in saved:
            raise UsageError(
                f"the checkpoint lacks a state of the callback {name!r}{nearest(name, saved)}; a run continues with "
                "the callbacks with which it started"
            )
    for name in saved:
        if name not in names:
            raise UsageError(
                f"the checkpoint has a state of the callback {name!r}{nearest(name, names)}, which this run lacks; "
                "a run continues with the callbacks with which it started"
            )
