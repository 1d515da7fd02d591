"""`Callback`: what follows a training run and may act on it; its state is part of the checkpoint.

A callback sees the run through a `Loop`. What it lets the loop do (another learning rate, an end) is kept in the
`Position`, and what it remembers itself is given out by `export` and taken back by `restore`, so that a run that was
killed and resumed goes on as if it had never stopped, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, final

from ..ops.errors import UsageError, nearest
from .average import RunningAverage
from .hyperparameters import require_positive
from .optim import Optimizer
from .optimizer_state import OptimizerState
from .position import EpochResult, Position
from .saved import CallbackValues
from .snapshot import Snapshot, take_snapshot
from .trainer import ScalarTrainer


class Callback:
    """The base of callbacks: every method does nothing, so one overrides those that it needs.

    SIGINT and SIGTERM are put off while `step` and `epoch` run, and while a checkpoint is saved after them: neither
    comes between a callback's state and the trainer's.
    """

    @property
    def name(self) -> str:
        """Whose state it is in a checkpoint, another one for each callback of a run; empty for one without a state."""
        return type(self).__name__.lower()

    def require(self, metrics: Sequence[str]) -> None:
        """Raise a UsageError where it cannot follow a run with these metrics; asked before anything begins."""

    def begin(self, loop: Loop) -> None:
        """Before the first step of this process; in a resumed run after `restore`.

        At the position `Position()` a run begins: what a callback remembers of another one is to be forgotten.
        """

    def extend(self) -> None:
        """Before `begin`, where a run that had ended goes on for longer: a rule that ends runs starts to count anew."""

    def step(self, loop: Loop, loss: float) -> None:
        """After each training step."""

    def evaluated(self, loop: Loop) -> Mapping[str, float]:
        """After each epoch's evaluation: further held-out metrics. It changes nothing."""
        return {}

    def gives(self, names: Sequence[str]) -> Sequence[str]:
        """The names of the metrics that `evaluated` will give, beside those called `names`."""
        return ()

    def epoch(self, loop: Loop, result: EpochResult) -> None:
        """After each epoch; `result` has the held-out metrics of all callbacks."""

    def export(self) -> CallbackValues:
        """All that it must remember from step to step, as plain data and arrays of the caller's own."""
        return CallbackValues()

    def restore(self, values: CallbackValues) -> None:
        """Stand where `export` was called."""


@final
class Loop:
    """A training run as its callbacks see it.

    trainer, state    whose parameters are trained, and where the optimizer stands
    position          the step boundary at which the run stands
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
        """That of the last step, before clipping; None where the trainer does not compute it."""
        self.last = optimizer
        """The optimizer of the last step, with the learning rate that it was taken at."""

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer of the next step: the one that was given, its learning rate scaled."""
        scale = self.position.lr_scale
        if self._scaled[0] != scale:
            self._scaled = scale, self._given.scaled(scale)
        return self._scaled[1]

    @property
    def lr(self) -> float:
        """The learning rate of the last step; before the first, that of the first."""
        return self.last.scalars(max(1, self.state.t))["lr"]

    def evaluate(self, average: RunningAverage | None = None) -> dict[str, float]:
        """The held-out metrics of the parameters as they are now, or of an average of them."""
        return self._evaluate(average)

    def stop(self, reason: str) -> None:
        """End the run with the step or epoch in which this is called; what it has trained so far is still evaluated.

        `reason` is kept in the checkpoint: a resumed run has ended too, unless it is resumed for more epochs.
        """
        if not self.position.stopped:
            self.position = replace(self.position, stopped=reason or "stopped by a callback")

    def scale_lr(self, factor: float) -> None:
        """Multiply the learning rates of all later steps, whatever schedule they follow, by `factor`."""
        scale = self.position.lr_scale * require_positive("scale_lr", "factor", factor)
        self.position = replace(self.position, lr_scale=scale)

    def snapshot(self, config: Mapping[str, Any] | None = None, *, fetched: bool = True) -> Snapshot:
        """The run as it stands, to be saved as a checkpoint; unless `fetched` before the next step."""
        trainer, position = self.trainer, self.position
        return take_snapshot(trainer, self._given, self.state, position, config, self.callbacks, fetched=fetched)


def require_names(callbacks: Sequence[Callback]) -> None:
    """Raise a UsageError unless all are callbacks and of different names."""
    seen: set[str] = set()
    for callback in callbacks:
        if not isinstance(callback, Callback):
            what = f"{callback.__name__} itself" if isinstance(callback, type) else f"a {type(callback).__name__}"
            raise UsageError(
                f"a callback must be a Callback, such as callbacks.EarlyStopping(patience=5), but is {what}; "
                "callbacks.EachEpoch(function) makes one of a function"
            )
        if callback.name and callback.name in seen:
            raise UsageError(f"two callbacks are called {callback.name!r}; give one of them another name")
        seen.add(callback.name)


def require_metrics(callbacks: Sequence[Callback], names: Callable[[], Sequence[str]]) -> None:
    """Raise a UsageError where a callback cannot follow a run whose held-out metrics have these names."""
    if all(type(callback).require is Callback.require for callback in callbacks):
        return
    own = tuple(names())
    metrics = ("train_loss", *own, *chain.from_iterable(callback.gives(own) for callback in callbacks))
    for callback in callbacks:
        callback.require(metrics)


def require_restorable(callbacks: Sequence[Callback], saved: Mapping[str, CallbackValues]) -> None:
    """Raise a UsageError where the callbacks are not those of which `saved` holds the states."""
    require_names(callbacks)
    names = [callback.name for callback in callbacks if callback.name]
    for name in names:
        if name not in saved:
            raise UsageError(
                f"the checkpoint holds no state of the callback {name!r}{nearest(name, saved)}; a run goes on with the "
                "callbacks with which it began"
            )
    for name in saved:
        if name not in names:
            raise UsageError(
                f"the checkpoint holds a state of the callback {name!r}{nearest(name, names)}, which this run has not; "
                "a run goes on with the callbacks with which it began"
            )
