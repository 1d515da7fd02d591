"""The settings of a run: its tables, filled from all sources.

In order of increasing precedence: the defaults of the fields, the recipe of the model, a TOML file, the environment
(`OPSTAGE_SEED` and the other options), flags (`--optimizer.lr 1e-3`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from .. import optim as optim
from ..config import GROUPS, Layer, hints_of, merge, read_groups, read_toml, toml_literal, with_group_text
from ..data.table import CategoriesName, ScaleName, read_columns
from ..models import MODELS
from ..ops.errors import UsageError, brief
from ..optim import schedule as schedule
from ..options import Options, environment
from ..training import callbacks as callbacks
from ..training.accumulate import Accumulate, require_one_meaning
from .directory import CONFIG, ORIGINS, first_origins
from .model_files import Definition, definition, named_file, saved_model_file

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
                raise UsageError(
                    f"optimizer {self.name}: {name} is not one of its hyperparameters; expected {', '.join(has)}"
                )
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
        raise UsageError(f"{name} has characters that cannot be shown: {brief(text)}; choose another name")


def _require_positive(name: str, value: int) -> None:
    if value < 1:
        raise UsageError(f"{name} must be at least 1 but is {value}")


@final
@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of a run. `model` is the `Config` of the model `run.model`, which is `defined`."""

    run: RunSettings = field(default_factory=RunSettings)
    options: Options = field(default_factory=Options)
    data: DataSettings = field(default_factory=DataSettings)
    model: Any = field(default_factory=lambda: MODELS[DEFAULT_MODEL].Config())
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    callbacks: CallbackSettings = field(default_factory=CallbackSettings)
    given: InitVar[Definition | None] = None
    """The definition of the model, if already known."""

    def __post_init__(self, given: Definition | None) -> None:
        if self.run.accumulate > 1:
            require_one_meaning("run.accumulate", self.run.accumulate, self.options)
        object.__setattr__(self, "given", given)  # stored where `dataclasses.replace` looks for it

    @property
    def defined(self) -> Definition:
        """Return the definition of the model. Raises UsageError if the name is unknown."""
        given: Definition | None = self.__dict__["given"]
        return given if given is not None else definition(self.run.model)

    @property
    def parts(self) -> int:
        """Return the number of parts in which a step computes its batch: run.accumulate, or the option of that name."""
        return max(self.run.accumulate, self.options.accumulate)

    def sections(self) -> dict[str, Any]:
        """Return the tables, each a dataclass, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@final
@dataclass(frozen=True)
class Configuration:
    """Settings, with every value and its origin by dotted path (`model.depth`)."""

    settings: Settings
    values: Mapping[str, Any]
    origins: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings) -> Configuration:
        """Return the configuration of settings built in Python. Raises UsageError, with the name, for a field of the
        wrong type."""
        name, defined = settings.run.model, settings.defined
        if not isinstance(settings.model, defined.config):
            where = f"opstage.models.{name}" if defined.file is None else defined.called
            raise UsageError(
                f"the settings are for model {name} but hold a Config of {type(settings.model).__module__}; "
                f"give model={where}.{defined.config.__name__}(…)"
            )
        values = {name: asdict(section) for name, section in settings.sections().items()}
        return configure(values=values, environ={}, defined=defined)

    def literals(self) -> dict[str, str]:
        """Return every value by dotted path, spelled as TOML: plain data to keep and compare."""
        values = {**self.values, "run.model": self.settings.defined.absolute()}
        return {path: toml_literal(value) for path, value in values.items()}

    def with_directory(self, directory: Path) -> Configuration:
        """Return the configuration with `directory` as the run directory."""
        settings = replace(self.settings, run=replace(self.settings.run, out=directory))
        return Configuration(settings, {**self.values, "run.out": directory}, self.origins)

    def from_anywhere(self) -> Configuration:
        """Return the configuration with absolute paths, so that it can be read from any directory."""
        values = {path: value.absolute() if isinstance(value, Path) else value for path, value in self.values.items()}
        return Configuration(self.settings, values | {"run.model": self.settings.defined.absolute()}, self.origins)

    def toml(self) -> str:
        """Return the merged configuration as a TOML document with each value's origin as a comment; it can be run
        again."""
        lines = [f"{path.partition('.')[2]} = {toml_literal(value)}" for path, value in self.values.items()]
        width = min(44, max(map(len, lines)))
        text: list[str] = []
        table = ""
        for line, path in zip(lines, self.values):
            section = path.partition(".")[0]
            if section != table:
                text += ["", f"[{section}]"] if table else [f"[{section}]"]
                table = section
            text.append(f"{line:<{width}}  # {self.origins[path]}")
        return "\n".join(text) + "\n"


def configure(
    model: str | None = None,
    *,
    file: str | os.PathLike[str] | None = None,
    values: Mapping[str, Any] | None = None,
    flags: Sequence[Layer] = (),
    below: Sequence[Layer] = (),
    environ: Mapping[str, str] | None = None,
    defined: Definition | None = None,
) -> Configuration:
    """Return the configuration of a run from all sources; `values` come from Python, `{"model": {"depth": 6}}`. All
    sources but the recipe override those `below`.

    `defined` is the model, if already known; else it is found by name. Raises `UsageError`, with the source, for an
    entry that is not a setting.
    """
    layers = [*below]
    if file is not None:
        layers.append(read_toml(file, {GROUPS}))
    layers.append(environment(environ))
    if values is not None:
        layers.append(Layer.of(values, "a value given in Python", {GROUPS}))
    layers += flags
    if model is not None:
        layers.append(Layer.of({"run.model": model}, "the argument MODEL"))
    layers = [*map(with_group_text, layers)]
    name, origin = _chosen_model(layers)
    if defined is None:
        defined = definition(name, origin)
    hints = {**hints_of(Settings), "model": defined.config}
    schema = {f.name: hints[f.name] for f in fields(Settings)}
    merged = merge(schema, [_recipe_layer(defined), *layers], weak={_recipe_origin(defined)})
    return Configuration(Settings(**merged.sections, given=defined), merged.values, merged.origins)


def configure_resumed(
    directory: Path,
    model: str | None = None,
    *,
    flags: Sequence[Layer] = (),
    environ: Mapping[str, str] | None = None,
    defined: Definition | None = None,
) -> Configuration:
    """Return the configuration of the run in `directory`; other sources may repeat its values but not contradict them.

    Unchanged values keep their original origins. Raises `UsageError` if a source would change the run.
    """
    file = directory / CONFIG
    began = configure_saved(directory, "resume", defined=defined)
    defined = began.settings.defined
    given = [*flags, *([Layer.of({"run.model": model}, "the argument MODEL")] if model is not None else [])]
    name, origin = _chosen_model(given)
    if origin != _NOWHERE and _from_anywhere(name) != began.settings.run.model:
        raise UsageError(
            f"{directory} holds a run of {began.settings.run.model}, but {origin} says {name}; leave that out, or "
            "start a new run with another --out, in Python out="
        )
    given = [
        Layer({**g.values, "run.model": defined.word}, g.origins, g.text) if "run.model" in g.values else g
        for g in given
    ]
    now = configure(file=file, flags=given, environ=environ, defined=defined)
    for path, value in now.values.items():
        if path not in MAY_CHANGE_ON_RESUME and value != began.values[path]:
            raise UsageError(
                f"{directory} was started with {path} = {toml_literal(began.values[path])}, but {now.origins[path]} "
                f"says {toml_literal(value)}; leave that out, or start a new run with another --out, in "
                "Python out="
            )
    here = Layer.of({"run.out": directory}, "--resume")
    again = configure(file=file, flags=[*given, here], environ=environ, defined=defined)
    origins = first_origins(directory / ORIGINS, again.from_anywhere().literals(), again.origins)
    return Configuration(again.settings, again.values, origins)


def configure_saved(directory: Path, purpose: str = "use", *, defined: Definition | None = None) -> Configuration:
    """Return the configuration of the run in `directory`, with the model of the files that the run has kept.

    defined   replaces that model, for a run of a model built in Python

    Raises UsageError if the directory lacks a run, or has one of another model; `purpose` is for messages.
    """
    file = directory / CONFIG
    if not os.path.isfile(file):
        raise UsageError(f"{directory}: {purpose}: expected a run, but {CONFIG} is missing")
    name, origin = _chosen_model([read_toml(file, {GROUPS})])
    if defined is None:
        defined = definition(name, origin, kept=saved_model_file(directory))
    elif defined.word != name:
        raise UsageError(f"{directory} holds a run of {name}, but the model given is {defined.word}")
    return configure(file=file, environ={}, defined=defined)


_OF_RUN = "out epochs plot tensorboard log_every checkpoint_every require_finite"
_OTHERS = ("options.detect_anomaly", "options.mesh", "options.timeout", "options.zero", "data.file", "data.prefetch")
MAY_CHANGE_ON_RESUME = frozenset({*[f"run.{name}" for name in _OF_RUN.split()], *_OTHERS})
"""Settings that a resumed run may change; the data file is identified by its content."""

_NOWHERE = "default"


def _chosen_model(layers: Sequence[Layer]) -> tuple[str, str]:
    """Return the model named by the last of `layers` that names one, and the origin."""
    name, origin = DEFAULT_MODEL, _NOWHERE
    for layer in layers:
        if isinstance(layer.values.get("run.model"), str):
            name, origin = layer.values["run.model"], layer.origins["run.model"]
    return name, origin


def _from_anywhere(name: str) -> str:
    """Return a model's name with an absolute path, as a run keeps it."""
    file = named_file(name) if name not in MODELS else None
    return name if file is None else f"{Path(file).absolute()}{name[len(file) :]}"


def _recipe_layer(defined: Definition) -> Layer:
    recipe = defined.recipe
    return Layer.of(
        {
            "run": {"epochs": recipe.epochs},
            "data": {"batch_size": recipe.batch_size},
            "optimizer": {
                "name": recipe.optimizer,
                "lr": recipe.lr,
                "weight_decay": recipe.weight_decay,
                "warmup": recipe.warmup,
                "clip_norm": recipe.clip_norm,
            },
        },
        _recipe_origin(defined),
    )


def _recipe_origin(defined: Definition) -> str:
    return f"recipe of {defined.called}"
