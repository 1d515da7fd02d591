"""The settings of a run: its tables, filled from all sources.

In order of increasing precedence: the defaults of the fields, the recipe of the model, a TOML file, the environment
(`OPSTAGE_SEED` and the other options), flags (`--optimizer.lr 1e-3`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, final

from ..config import Layer, merge, read_toml, toml_literal
from ..models import MODELS
from ..ops.errors import UsageError
from ..options import Options
from ..training.accumulate import require_one_meaning
from .config import DEFAULT_MODEL, CallbackSettings, DataSettings, OptimizerSettings, RunSettings
from .definition import Definition, definition, file_of
from .directory import CONFIG, ORIGINS, first_origins
from .groups import GROUPS, with_group_text
from .saved_source import kept_file


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
        """The definition of the model. Raises UsageError if the name is unknown."""
        given: Definition | None = self.__dict__["given"]
        return given if given is not None else definition(self.run.model)

    @property
    def parts(self) -> int:
        """The number of parts in which a step computes its batch: run.accumulate, or the option of that name."""
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

    def kept_in(self, directory: Path) -> Configuration:
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
    environ: Mapping[str, str] | None = None,
    defined: Definition | None = None,
) -> Configuration:
    """Return the configuration of a run from all sources; `values` come from Python, `{"model": {"depth": 6}}`.

    `defined` is the model, if already known; else it is found by name. Raises `UsageError`, with the source, for an
    entry that is not a setting.
    """
    layers: list[Layer] = []
    if file is not None:
        layers.append(read_toml(file, {GROUPS}))
    layers.append(_environment(os.environ if environ is None else environ))
    if values is not None:
        layers.append(Layer.of(values, "a value given in Python", {GROUPS}))
    layers += flags
    if model is not None:
        layers.append(Layer.of({"run.model": model}, "the argument MODEL"))
    layers = [*map(with_group_text, layers)]
    name, origin = _chosen_model(layers)
    if defined is None:
        defined = definition(name, origin)
    schema = {f.name: {"model": defined.config}.get(f.name) or _CLASSES[f.name] for f in fields(Settings)}
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
    began = configure_kept(directory, "resume", defined=defined)
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
        if path not in MAY_CHANGE and value != began.values[path]:
            raise UsageError(
                f"{directory} was started with {path} = {toml_literal(began.values[path])}, but {now.origins[path]} "
                f"says {toml_literal(value)}; leave that out, or start a new run with another --out, in "
                "Python out="
            )
    here = Layer.of({"run.out": directory}, "--resume")
    again = configure(file=file, flags=[*given, here], environ=environ, defined=defined)
    origins = first_origins(directory / ORIGINS, again.from_anywhere().literals(), again.origins)
    return Configuration(again.settings, again.values, origins)


def configure_kept(directory: Path, purpose: str = "use", *, defined: Definition | None = None) -> Configuration:
    """Return the configuration of the run in `directory`, with the model of the files that the run has kept.

    defined   replaces that model, for a run of a model built in Python

    Raises UsageError if there is no run, or one of another model; `purpose` is for messages.
    """
    file = directory / CONFIG
    if not os.path.isfile(file):
        raise UsageError(f"{directory} holds no run to {purpose}: it has no {CONFIG}")
    name, origin = _chosen_model([read_toml(file, {GROUPS})])
    if defined is None:
        defined = definition(name, origin, kept=kept_file(directory))
    elif defined.word != name:
        raise UsageError(f"{directory} holds a run of {name}, but the model given is {defined.word}")
    return configure(file=file, environ={}, defined=defined)


MAY_CHANGE = frozenset(
    {
        "run.out",
        "run.epochs",
        "run.plot",
        "run.tensorboard",
        "run.log_every",
        "run.checkpoint_every",
        "run.require_finite",
        "options.detect_anomaly",
        "options.mesh",
        "options.timeout",
        "data.file",
        "data.prefetch",
    }
)
"""Settings that a resumed run may change; the data file is identified by its content."""

_NOWHERE = "default"


def _chosen_model(layers: Sequence[Layer]) -> tuple[str, str]:
    """Return the model named by the last of `layers` that names one, and the origin."""
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
    "callbacks": CallbackSettings,
}


def _from_anywhere(name: str) -> str:
    """Return a model's name with an absolute path, as a run keeps it."""
    file = file_of(name) if name not in MODELS else None
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


def _environment(environ: Mapping[str, str]) -> Layer:
    read = Options.from_env(environ)
    names = {f"options.{f.name}": f"OPSTAGE_{f.name.upper()}" for f in fields(Options)}
    given = {path: variable for path, variable in names.items() if variable in environ}
    return Layer(
        {path: getattr(read, path.partition(".")[2]) for path in given},
        {path: f"environment variable {variable}" for path, variable in given.items()},
    )
