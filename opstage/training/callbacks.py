"""The callbacks that come with Opstage, for `training.fit(callbacks=…)` and `[callbacks]` of a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from typing_extensions import override

from ..files import Document
from ..ops.errors import UsageError, nearest
from ..ops.tracebacks import constructed_by_users
from ..optim.hyperparameters import (
    require_choice,
    require_count,
    require_fraction,
    require_nonnegative,
    require_positive,
)
from . import checkpoint
from .callback import Callback, Loop
from .snapshot import CallbackValues, EpochResult, Position
from .state import RunningAverage
from .trainer import ScalarTrainer

__all__ = [
    "BestCheckpoint",
    "Callback",
    "CallbackValues",
    "EachEpoch",
    "EachStep",
    "EarlyStopping",
    "Ema",
    "Loop",
    "ReduceOnPlateau",
]
__dir__ = __all__.copy

_MODES = ("min", "max")
_RISING = ("accuracy", "precision", "recall", "f1", "auc", "r2")
_FALLING = ("loss", "error", "_l2", "perplexity", "mse", "mae", "rmse", "nll")


def infer_mode(owner: str, metric: str, mode: str | None) -> str:
    """Return "max" or "min", the better end of a metric; None infers it from the name. Raises UsageError if that
    fails."""
    if mode is not None:
        require_choice(owner, "mode", mode, _MODES)
        return mode
    if metric.endswith(_RISING):
        return "max"
    if metric.endswith(_FALLING):
        return "min"
    close = nearest(metric, (*_RISING, *(name.lstrip("_") for name in _FALLING)))
    raise UsageError(
        f"{owner}: the name does not tell whether a larger or a smaller {metric!r} is better; give mode='max' or "
        f"'min'{close}"
    )


class _Watching(Callback):
    """A callback that tracks a metric: its best value so far, and the number of epochs since."""

    def __init__(self, metric: str, mode: str | None, min_delta: float):
        self.metric = metric
        self.mode = infer_mode(self.name, metric, mode)
        self.min_delta = float(require_nonnegative(self.name, "min_delta", min_delta))
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.waited = 0

    @override
    def require(self, metrics: Sequence[str]) -> None:
        if self.metric not in metrics:
            close, there = nearest(self.metric, metrics), ", ".join(metrics)
            raise UsageError(f"{self.name}: argument metric: expected one of {there}, got {self.metric!r}{close}")

    @override
    def begin(self, loop: Loop) -> None:
        if loop.position == Position():  # it may have followed another run
            self.best, self.best_epoch, self.waited = None, None, 0

    def improves(self, result: EpochResult) -> bool:
        """Return whether the metric beats the best by more than `min_delta`; if so, record it as the best. nan never
        does."""
        value = result.train_loss if self.metric == "train_loss" else result.held_out[self.metric]
        if self.best is None:
            better = value == value
        elif self.mode == "min":
            better = value < self.best - self.min_delta
        else:
            better = value > self.best + self.min_delta
        self.waited = 0 if better else self.waited + 1
        if better:
            self.best, self.best_epoch = value, result.epoch
        return better

    def describe_best(self) -> str:
        """Describe the best value: `it was best, 0.61, in epoch 3`."""
        if self.best is None or self.best_epoch is None:
            return "it has been nan"
        return f"it was best, {self.best:.6g}, in epoch {self.best_epoch + 1}"

    @override
    def export(self) -> CallbackValues:
        return CallbackValues({"best": self.best, "best_epoch": self.best_epoch, "waited": self.waited})

    @override
    def restore(self, values: CallbackValues) -> None:
        saved = Document(dict(values.data), f"the saved state of {self.name}")
        best, epoch = saved.get("best"), saved.get("best_epoch")
        self.best = None if best is None else best.number()
        self.best_epoch = None if epoch is None else epoch.count()
        self.waited = saved["waited"].count()


@final
@constructed_by_users
class EarlyStopping(_Watching):
    """Ends the run when `metric` has not improved by more than `min_delta` for `patience` epochs.

    metric      a held-out metric, or `train_loss`
    mode        "min" or "max", the better end; None: inferred from its name, if possible

    Raises:
        UsageError: an unknown mode, or none for a metric of no known sense; numbers out of bounds.
    """

    def __init__(self, metric: str = "loss", *, patience: int, min_delta: float = 0.0, mode: str | None = None):
        super().__init__(metric, mode, min_delta)
        self.patience = require_count(self.name, "patience", patience)

    @override
    def extend(self) -> None:
        self.waited = 0

    @property
    @override
    def name(self) -> str:
        return "early_stopping"

    @override
    def epoch(self, loop: Loop, result: EpochResult) -> None:
        if not self.improves(result) and self.waited >= self.patience:
            epochs = f"{self.patience} epoch{'s' * (self.patience > 1)}"
            loop.stop(f"{self.metric} has not become better for {epochs}; {self.describe_best()}")


@final
@constructed_by_users
class BestCheckpoint(_Watching):
    """Keeps a checkpoint of the epoch with the best `metric`, in `folder`, by default in RUN/best of its run.

    metric, mode    as of `EarlyStopping`
    config          plain JSON data, kept in the checkpoint; `identity`, of the run, is kept with it

    In a run of several processes, only the one that `writes` saves it.

    Raises:
        UsageError: an unknown mode, or none for a metric of no known sense.
    """

    writes = True

    def __init__(
        self,
        metric: str = "loss",
        folder: str | os.PathLike[str] | None = None,
        *,
        mode: str | None = None,
        config: Mapping[str, Any] | None = None,
    ):
        super().__init__(metric, mode, 0.0)
        self.folder = None if folder is None else Path(folder)
        self.of_run: Path | None = None
        self.config = dict(config) if config else {}
        self.identity: Mapping[str, Any] = {}

    @property
    @override
    def name(self) -> str:
        return "best_checkpoint"

    @override
    def require(self, metrics: Sequence[str]) -> None:
        super().require(metrics)
        if self.folder is None and self.of_run is None:
            raise UsageError(
                "best_checkpoint: argument folder: expected a folder. Give one, or run.out, as with --out RUN, in "
                "Python out="
            )

    @override
    def epoch(self, loop: Loop, result: EpochResult) -> None:
        if self.improves(result):
            folder = self.folder if self.folder is not None else self.of_run
            assert folder is not None
            snapshot = loop.snapshot({**self.identity, **self.config}, fetched=False)
            # the metric is finite; whether parameters must be too is decided by whoever saves the run
            checkpoint.save(folder if self.writes else None, snapshot, require_finite=False)


@final
@constructed_by_users
class ReduceOnPlateau(_Watching):
    """Multiplies the learning rate by `factor` when `metric` has not improved for `patience` epochs.

    metric, mode, min_delta    as of `EarlyStopping`
    least                      the lower limit, as a fraction of the original rate

    It applies on top of any schedule. Keras: ReduceLROnPlateau.

    Raises:
        UsageError: an unknown mode, or none for a metric of no known sense; numbers out of bounds.
    """

    def __init__(
        self,
        metric: str = "loss",
        *,
        patience: int = 10,
        factor: float = 0.1,
        min_delta: float = 0.0,
        least: float = 0.0,
        mode: str | None = None,
    ):
        super().__init__(metric, mode, min_delta)
        self.patience = require_count(self.name, "patience", patience)
        self.factor = float(require_positive(self.name, "factor", factor))
        if self.factor >= 1:
            raise UsageError(f"{self.name}: factor must be below 1 but is {factor}")
        self.least = float(require_fraction(self.name, "least", least))

    @property
    @override
    def name(self) -> str:
        return "reduce_on_plateau"

    @override
    def epoch(self, loop: Loop, result: EpochResult) -> None:
        if self.improves(result) or self.waited < self.patience:
            return
        self.waited = 0
        scale = max(loop.position.lr_scale * self.factor, self.least)
        if scale < loop.position.lr_scale:
            loop.scale_lr(scale / loop.position.lr_scale)


@final
@constructed_by_users
class Ema(Callback):
    """An exponential moving average of the parameters, evaluated too: metrics `ema_loss`, `ema_accuracy` ….

    e ← decay·e + (1 - decay)·p after each step, from e = p before the first. It is computed where the parameters are,
    and is part of the checkpoint. The program's own state (running statistics) is the trainer's. PyTorch:
    torch.optim.swa_utils.AveragedModel(multi_avg_fn=get_ema_multi_avg_fn(decay)), whose average begins after a step.

    Raises:
        UsageError: a decay outside [0, 1).
    """

    def __init__(self, decay: float = 0.999):
        self.decay = float(require_fraction(self.name, "decay", decay))
        self._average: RunningAverage | None = None
        self._saved: Mapping[str, Any] | None = None
        self._trainer: ScalarTrainer | None = None

    @property
    @override
    def name(self) -> str:
        return "ema"

    @property
    def values(self) -> dict[str, Any]:
        """Return the average of each parameter by path, as arrays that the caller owns. Raises UsageError
        before a run."""
        if self._trainer is None or self._average is None:
            raise UsageError("an average has values once a run has begun")
        return self._trainer.export_average(self._average)

    @override
    def begin(self, loop: Loop) -> None:
        if loop.position == Position():  # it may have followed another run
            self._saved = None
        self._trainer, self._average = loop.trainer, RunningAverage(self._saved)
        loop.trainer.export_average(self._average)  # the average starts here, so that an error is raised now

    @override
    def step(self, loop: Loop, loss: float) -> None:
        assert self._average is not None
        loop.trainer.average(self._average, self.decay)

    @override
    def gives(self, names: Sequence[str]) -> list[str]:
        return [f"ema_{name}" for name in names]

    @override
    def evaluated(self, loop: Loop) -> dict[str, float]:
        return {f"ema_{name}": value for name, value in loop.evaluate(self._average).items()}

    @override
    def export(self) -> CallbackValues:
        return CallbackValues(arrays=self.values if self._trainer is not None else dict(self._saved or {}))

    @override
    def restore(self, values: CallbackValues) -> None:
        self._saved = values.arrays or None


class _Calling(Callback):
    def __init__(self, function: Callable[..., Any]):
        if not callable(function):
            raise UsageError(f"{type(self).__name__} takes a function but got {function!r}")
        self._function = function

    @property
    @override
    def name(self) -> str:
        return ""


@final
@constructed_by_users
class EachStep(_Calling):
    """Calls `function(loop, loss)` after each step. Its state is not saved in checkpoints: see `Callback`.

    Raises:
        UsageError: something other than a function.
    """

    @override
    def step(self, loop: Loop, loss: float) -> None:
        self._function(loop, loss)


@final
@constructed_by_users
class EachEpoch(_Calling):
    """Calls `function(loop, result)` after each epoch. Its state is not saved in checkpoints: see `Callback`.

    Raises:
        UsageError: something other than a function.
    """

    @override
    def epoch(self, loop: Loop, result: EpochResult) -> None:
        self._function(loop, result)
