"""The tables of a run's configuration, one dataclass each: run, data, optimizer, callbacks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from .. import optim as optim
from ..data.columns import read_columns
from ..data.table import CategoriesName, ScaleName
from ..ops.errors import UsageError
from ..ops.untrusted import brief
from ..optim import schedule as schedule
from ..training import callbacks as callbacks
from ..training.accumulate import Accumulate
from .groups import read_groups

if TYPE_CHECKING:
    OptimizerName: TypeAlias = str
else:
    OptimizerName = Literal[tuple(optim.SHIPPED)]
_NUMBERS = ("weight_decay", "betas", "eps", "momentum")
"""The hyperparameters that can be set, for optimizers that have them."""
ScheduleName: TypeAlias = Literal["constant", "cosine", "warmup_cosine", "linear_warmup", "one_cycle"]

DEFAULT_MODEL = "cnn"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """[run]: what is trained, for how long, and what is kept of it."""

    model: str = DEFAULT_MODEL
    """A shipped model, or a file of your own: my_model.py."""
    epochs: int = 10
    """Passes over the training data."""
    out: Path | None = None
    """The run directory; None keeps nothing."""
    log_every: int = 10
    """Steps between two lines of metrics.jsonl."""
    checkpoint_every: int = 500
    """Steps between two checkpoints within an epoch; each epoch ends with one in any case."""
    plot: bool | None = None
    """Draw loss.png; None draws it where matplotlib is installed (extra `plot`)."""
    tensorboard: bool = False
    """Write TensorBoard events (extra `tensorboard`)."""
    accumulate: int = 1
    """In how many parts a step computes its batch, one after the other: the memory of a part, the gradient of all."""
    accumulate_by: str = "rows"
    """How the parts are weighed: rows, sum, or a metric of the loss, as for targets that are ignored."""
    gradient_norm: bool = False
    """Write the norm of all gradients, before clipping, beside the loss; it changes no bit of the run."""
    require_finite: bool = True
    """Stop where a loss, a held-out metric, a parameter or a moment is nan or infinite; False goes on regardless."""

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every", "checkpoint_every", "accumulate"):
            _require_positive(name, getattr(self, name))
        _require_path("out", self.out)
        Accumulate(self.accumulate, self.accumulate_by)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """[data]: what it is trained on."""

    file: Path | None = None
    """A data file in place of the recipe's own data."""
    label: str = ""
    """The column of a table that holds the label; "" is the one called y, else the last."""
    columns: str = ""
    """Which columns of a table go to which argument: `x=weight,height; kind=species`; * stands for all others."""
    categories: CategoriesName = "auto"
    """Names in a table's inputs: numbered (number) or a column each (one_hot); auto numbers them, for integers."""
    scale: ScaleName = "none"
    """Move inputs to mean 0 and deviation 1 (standard) or to 0 … 1 (minmax), by what the training part shows."""
    size: str = ""
    """HEIGHTxWIDTH, to which images of a folder are resized; "" resizes none."""
    batch_size: int = 64
    held_out: float = 0.2
    """Share of a data file's rows that is held out; the recipe's own data have their own split."""
    prefetch: int = 0
    """Batches that a thread cuts ahead; it pays where cutting one takes long, and costs mlp a tenth of its speed."""

    def __post_init__(self) -> None:
        _require_path("file", self.file)
        self.image_size()
        read_columns(self.columns)
        _require_positive("batch_size", self.batch_size)
        if self.prefetch < 0:
            raise UsageError(f"prefetch must be a number of batches, 0 for none ahead, but is {self.prefetch}")
        if not 0 < self.held_out < 1:
            raise UsageError(f"held_out must lie between 0 and 1 but is {self.held_out}")

    def image_size(self) -> tuple[int, int] | None:
        """`size` as (height, width). Raises UsageError."""
        if not self.size:
            return None
        height, _, width = self.size.partition("x")
        if not (height.isdecimal() and width.isdecimal() and 0 < int(height) <= 8192 and 0 < int(width) <= 8192):
            raise UsageError(f"size must be HEIGHTxWIDTH in pixels, as in 32x32, at most 8192, but is {self.size!r}")
        return int(height), int(width)


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """[optimizer]: a field that is None keeps the optimizer's own default; only fields that it has can be set."""

    name: OptimizerName = "adamw"
    lr: float = 1e-3
    """Peak learning rate."""
    schedule: ScheduleName = "warmup_cosine"
    warmup: float = 0.03
    """Share of all steps in which the learning rate rises."""
    clip_norm: float | None = None
    """Gradients are scaled down to this norm over all parameters."""
    weight_decay: float | None = None
    betas: tuple[float, float] | None = None
    eps: float | None = None
    momentum: float | None = None
    groups: str = ""
    """Other numbers for parameters whose paths match: `*.bias|*norm*: weight_decay=0; emb.*: lr=1e-4`, or tables."""
    freeze: str = ""
    """Parameters whose paths match this pattern are not trained: `encoder.*|emb`."""

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise UsageError(f"lr must be finite and at least 0 but is {self.lr}")
        if not 0 <= self.warmup < 1:
            raise UsageError(f"warmup must be a share of the steps, at least 0 and below 1, but is {self.warmup}")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise UsageError(f"clip_norm must be greater than 0 but is {self.clip_norm}")
        self.make(2)

    def make(self, steps: int = 1000) -> optim.Optimizer:
        """Return the optimizer, with its learning rate scheduled over `steps` steps. Their number changes no op, shape
        or cost of a step, since learning rates are its inputs."""
        cls = optim.SHIPPED[self.name]
        own = {f.name for f in fields(cls)}
        chosen = {name: getattr(self, name) for name in _NUMBERS if getattr(self, name) is not None}
        for name in chosen:
            if name not in own:
                has = [n for n in _NUMBERS if n in own]
                raise UsageError(f"{self.name} has no {name}; of these it has {', '.join(has)}")
        made = cls.of_all(lr=self._rate(steps), **chosen)
        return optim.grouped(made, read_groups(self.groups)) if self.groups.strip() else made

    def make_clip(self) -> Any:
        """Return the gradient-clipping program, or None."""
        return None if self.clip_norm is None else optim.clip.by_global_norm(self.clip_norm)

    def _rate(self, steps: int) -> optim.Rate:
        warmup = int(self.warmup * steps)
        if self.schedule == "constant":
            return self.lr
        if self.schedule == "cosine":
            return schedule.cosine(self.lr, total_steps=steps)
        if self.schedule == "linear_warmup":
            return schedule.linear_warmup(self.lr, warmup_steps=warmup)
        if self.schedule == "one_cycle":
            return schedule.one_cycle(self.lr, total_steps=steps)
        return schedule.warmup_cosine(self.lr, warmup_steps=warmup, total_steps=steps)


@final
@dataclass(frozen=True, kw_only=True)
class CallbackSettings:
    """[callbacks]: what follows the run and may act on it; None leaves it out. See `opstage.callbacks`."""

    metric: str = "loss"
    """The held-out metric that `patience` and `plateau` wait for."""
    mode: Literal["min", "max"] | None = None
    """Which values of `metric` and `best` are good; None: as the name says."""
    min_delta: float = 0.0
    """A metric is better where it is so by more than this."""
    patience: int | None = None
    """Epochs without a better metric after which the run ends."""
    plateau: int | None = None
    """Epochs without a better metric after which the learning rate is multiplied by `plateau_factor`."""
    plateau_factor: float = 0.1
    ema: float | None = None
    """The decay of a moving average of the parameters, which is evaluated beside them."""
    best: str | None = None
    """The held-out metric by which the best epoch is kept, in RUN/best."""

    def __post_init__(self) -> None:
        self.make(Path())

    def make(self, folder: Path | None) -> list[callbacks.Callback]:
        """Return the callbacks; `folder` keeps the best epoch."""
        watched: dict[str, Any] = {"mode": self.mode, "min_delta": self.min_delta}
        made: list[callbacks.Callback] = []
        if self.ema is not None:
            made.append(callbacks.Ema(self.ema))
        if self.plateau is not None:
            made.append(
                callbacks.ReduceOnPlateau(self.metric, patience=self.plateau, factor=self.plateau_factor, **watched)
            )
        if self.patience is not None:
            made.append(callbacks.EarlyStopping(self.metric, patience=self.patience, **watched))
        if self.best is not None:  # last, so that it saves the state that the others have updated
            made.append(callbacks.BestCheckpoint(self.best, folder, mode=self.mode))
        return made


def _require_path(name: str, path: Path | None) -> None:
    """Raise UsageError for an invalid path, or one that the run's own files could not contain."""
    text = "" if path is None else str(path)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} is not a path in UTF-8: {brief(text)}; choose another name") from None
    if not text.isprintable():
        raise UsageError(f"{name} holds characters that cannot be shown: {brief(text)}; choose another name")


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{name} must be at least 1 but is {value}")
