"""The settings of a run: one dataclass per table of the configuration file, filled from every source alike.

From the weakest to the strongest: the defaults of the fields, the recipe of the model, a TOML file, the environment
(`OPSTAGE_SEED` and the other options), flags (`--optimizer.lr 1e-3`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

from ..config import Layer, merge, read_toml, toml_literal
from ..models import MODELS
from ..ops.errors import UsageError, nearest
from ..ops.untrusted import brief
from ..options import Options
from ..training import optim, schedule
from ..training.recipes import recipe as shipped_recipe
from .directory import CONFIG, ORIGINS
from .origins import first_origins

if TYPE_CHECKING:
    OptimizerName: TypeAlias = str
else:
    OptimizerName = Literal[tuple(optim.SHIPPED)]
_NUMBERS = ("weight_decay", "betas", "eps", "momentum")
"""Those of an optimizer that can be set, where it has them."""
ScheduleName: TypeAlias = Literal["constant", "cosine", "warmup_cosine", "linear_warmup", "one_cycle"]

DEFAULT_MODEL = "cnn"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """[run]: what is trained, for how long, and what is kept of it."""

    model: str = DEFAULT_MODEL
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
    require_finite: bool = True
    """Stop where a loss, a held-out metric, a parameter or a moment is nan or infinite; False goes on regardless."""

    def __post_init__(self) -> None:
        for name in ("epochs", "log_every", "checkpoint_every"):
            _require_positive(name, getattr(self, name))
        _require_path("out", self.out)


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """[data]: what it is trained on."""

    file: Path | None = None
    """A data file in place of the recipe's own data."""
    batch_size: int = 64
    held_out: float = 0.2
    """Share of a data file's rows that is held out; the recipe's own data have their own split."""
    prefetch: int = 0
    """Batches that a thread cuts ahead; it pays where cutting one takes long, and costs mlp a tenth of its speed."""

    def __post_init__(self) -> None:
        _require_path("file", self.file)
        _require_positive("batch_size", self.batch_size)
        if self.prefetch < 0:
            raise UsageError(f"prefetch must be a number of batches, 0 for none ahead, but is {self.prefetch}")
        if not 0 < self.held_out < 1:
            raise UsageError(f"held_out must lie between 0 and 1 but is {self.held_out}")


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

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise UsageError(f"lr must be finite and at least 0 but is {self.lr}")
        if not 0 <= self.warmup < 1:
            raise UsageError(f"warmup must be a share of the steps, at least 0 and below 1, but is {self.warmup}")
        if self.clip_norm is not None and self.clip_norm <= 0:
            raise UsageError(f"clip_norm must be greater than 0 but is {self.clip_norm}")
        self.make(2)

    def make(self, steps: int) -> optim.Optimizer:
        """The optimizer, its learning rate scheduled over `steps` steps."""
        cls = optim.SHIPPED[self.name]
        own = {f.name for f in fields(cls)}
        chosen = {name: getattr(self, name) for name in _NUMBERS if getattr(self, name) is not None}
        for name in chosen:
            if name not in own:
                has = [n for n in _NUMBERS if n in own]
                raise UsageError(f"{self.name} has no {name}; of these it has {', '.join(has)}")
        return cls.of_all(lr=self._rate(steps), **chosen)

    def make_clip(self) -> Any:
        """The program that clips gradients, or None."""
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
class Settings:
    """A run, whole. `model` is the `Config` of the model that `run.model` names."""

    run: RunSettings = field(default_factory=RunSettings)
    options: Options = field(default_factory=Options)
    data: DataSettings = field(default_factory=DataSettings)
    model: Any = field(default_factory=lambda: MODELS[DEFAULT_MODEL].Config())
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)


@final
@dataclass(frozen=True)
class Configuration:
    """Settings, and by dotted path (`model.depth`) every value and where it came from."""

    settings: Settings
    values: Mapping[str, Any]
    origins: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings) -> Configuration:
        """The configuration of settings made in Python; a `UsageError` names a field of another type than its own."""
        name = settings.run.model
        if name in MODELS and not isinstance(settings.model, MODELS[name].Config):
            raise UsageError(
                f"the settings are for model {name} but hold a Config of {type(settings.model).__module__}; "
                f"give model=opstage.models.{name}.Config(…)"
            )
        return configure(values=asdict(settings), environ={})

    def literals(self) -> dict[str, str]:
        """Every value by dotted path as TOML spells it: plain data, to be kept and compared."""
        return {path: toml_literal(value) for path, value in self.values.items()}

    def from_anywhere(self) -> Configuration:
        """The same with absolute paths, to be kept: it means the same from whatever directory it is read."""
        values = {path: value.absolute() if isinstance(value, Path) else value for path, value in self.values.items()}
        return Configuration(self.settings, values, self.origins)

    def toml(self) -> str:
        """The merged configuration as a TOML document with each value's origin beside it; a file to run again."""
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
    environ: Mapping[str, str] | None = None,
) -> Configuration:
    """The configuration of a run from every source; `values` is Python's own, `{"model": {"depth": 6}}`.

    Raises `UsageError` on whatever a source has that the settings have not, naming the source.
    """
    layers: list[Layer] = []
    if file is not None:
        layers.append(read_toml(file))
    layers.append(_environment(os.environ if environ is None else environ))
    if values is not None:
        layers.append(Layer.of(values, "a value given in Python"))
    layers += flags
    if model is not None:
        layers.append(Layer.of({"run.model": model}, "the argument MODEL"))
    name, origin = _chosen_model(layers)
    if name not in MODELS:
        raise UsageError(
            f"{origin}: unknown model {name!r}{nearest(name, MODELS)}; shipped are {', '.join(sorted(MODELS))}"
        )
    schema = {f.name: {"model": MODELS[name].Config}.get(f.name) or _CLASSES[f.name] for f in fields(Settings)}
    merged = merge(schema, [_recipe_layer(name), *layers], weak={_recipe_origin(name)})
    return Configuration(Settings(**merged.sections), merged.values, merged.origins)


def configure_resumed(
    directory: Path, model: str | None = None, *, flags: Sequence[Layer] = (), environ: Mapping[str, str] | None = None
) -> Configuration:
    """The configuration of the run in `directory`, which what else is given may repeat but not contradict.

    Values that are as they were keep the origins that they had when the run was started. Raises `UsageError` where a
    source would have the run be another one.
    """
    file = directory / CONFIG
    if not os.path.isfile(file):
        raise UsageError(f"{directory} holds no run to resume: it has no {CONFIG}")
    began = configure(file=file, environ={})
    given = [*flags, *([Layer.of({"run.model": model}, "the argument MODEL")] if model is not None else [])]
    name, origin = _chosen_model(given)
    if origin != _NOWHERE and name != began.settings.run.model:
        raise UsageError(
            f"{directory} holds a run of {began.settings.run.model}, but {origin} says {name}; leave that out, or "
            "start a new run with --out"
        )
    now = configure(file=file, flags=given, environ=environ)
    for path, value in now.values.items():
        if path not in MAY_CHANGE and value != began.values[path]:
            raise UsageError(
                f"{directory} was started with {path} = {toml_literal(began.values[path])}, but {now.origins[path]} "
                f"says {toml_literal(value)}; leave that out, or start a new run with --out"
            )
    again = configure(file=file, flags=[*given, Layer.of({"run.out": directory}, "--resume")], environ=environ)
    origins = first_origins(directory / ORIGINS, again.from_anywhere().literals(), again.origins)
    return Configuration(again.settings, again.values, origins)


MAY_CHANGE = frozenset(
    {
        "run.out",
        "run.plot",
        "run.tensorboard",
        "run.log_every",
        "run.checkpoint_every",
        "run.require_finite",
        "options.detect_anomaly",
        "data.file",
        "data.prefetch",
    }
)
"""Settings that a resumed run may change; the data file is identified by its content."""

_NOWHERE = "default"


def _chosen_model(layers: Sequence[Layer]) -> tuple[str, str]:
    """The model that the last of `layers` to name one names, and where."""
    name, origin = DEFAULT_MODEL, _NOWHERE
    for layer in layers:
        if isinstance(layer.values.get("run.model"), str):
            name, origin = layer.values["run.model"], layer.origins["run.model"]
    return name, origin


_CLASSES: dict[str, type] = {
    "run": RunSettings,
    "options": Options,
    "data": DataSettings,
    "optimizer": OptimizerSettings,
}


def _recipe_layer(name: str) -> Layer:
    recipe = shipped_recipe(name)
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
        _recipe_origin(name),
    )


def _recipe_origin(name: str) -> str:
    return f"recipe of {name}"


def _environment(environ: Mapping[str, str]) -> Layer:
    read = Options.from_env(environ)
    names = {f"options.{f.name}": f"OPSTAGE_{f.name.upper()}" for f in fields(Options)}
    given = {path: variable for path, variable in names.items() if variable in environ}
    return Layer(
        {path: getattr(read, path.partition(".")[2]) for path in given},
        {path: f"environment variable {variable}" for path, variable in given.items()},
    )


def _require_path(name: str, path: Path | None) -> None:
    """Raise UsageError for a path that no file can have, or that the run's own files could not name."""
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
