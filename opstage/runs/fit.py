"""`fit`: train a model from Python, with all features of `opstage train`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import click

from ..config import GROUPS, Layer
from ..data import Dataset, from_arrays, from_frame
from ..data.memory_map import as_rows
from ..models import Model
from ..models.model import shipped_name
from ..ops.array_conversion import is_table
from ..ops.errors import UsageError, a_type, nearest
from ..ops.spec import Spec
from ..ops.static_arguments import plain
from ..ops.tracebacks import called_by_users
from ..optim import Optimizer
from ..options import Options
from ..source_files import Refusal
from ..training.callback import Callback
from ..training.trainer import ScalarTrainer
from .model_files import Definition, NoSettings, changes, define_model, define_module, definition
from .progress import Unwatched, Watcher, make_watcher, stopped_line
from .run import run_task
from .run_data import arguments, require_file_settings, split
from .run_setup import Provided, prepare
from .settings import Configuration, Settings, configure, configure_resumed
from .trained_model import Trained

Data: TypeAlias = "Dataset | Mapping[str, Any] | Sequence[Any] | str | os.PathLike[str] | None"

_ORIGIN = "an argument of fit"


@called_by_users
def fit(
    model: Model | ScalarTrainer | ModuleType | str | os.PathLike[str],
    data: Data = None,
    *,
    held_out: Any = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    optimizer: Optimizer | str | None = None,
    lr: float | None = None,
    config: Any = None,
    metrics: Any = None,
    outputs: Any = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    options: Options | None = None,
    settings: Mapping[str, Any] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = True,
) -> Trained:
    """Train a model as `opstage train` does, and return it trained.

    model       a Model; a ScalarTrainer; a shipped model's name, a model file, or an imported model module
    data        a Dataset, (training, held out), a dict of arrays by argument, or arrays in the order of the arguments.
                Also a data frame with a column of labels (see `from_frame`), or a file. None: the recipe's data
    held_out    the fraction of the rows of `data` to hold out (default 0.2), or the held-out data in the form of `data`
    optimizer   a name, as on the command line, with peak learning rate `lr`; or an Optimizer, used as it is
    config      the settings of a model that is given by name, file or module
    metrics     for a ScalarTrainer: see `Model.metrics`; outputs likewise
    out         a new directory for the run: metrics, report, checkpoints
    resume      continue the run in `out`, with its original settings
    options     the interpreter, dtype and seed; those of a ScalarTrainer are its own
    settings    any other settings, as in a configuration file: {"run": {"log_every": 5}}
    callbacks   see `opstage.callbacks`: early stopping, a function after each epoch. A resumed run takes new instances
                of the same ones
    progress    show the progress: a bar on a terminal, lines elsewhere

    Numbers are those of `opstage train` with the same settings, bit for bit. An interrupt saves a checkpoint in
    `out` before it is raised again. Errors about arguments are raised before anything is written. A
    loss that is nan or infinite raises NotFiniteError.

    Raises:
        UsageError: an unknown model, data or settings, or ones that do not fit together.
    """
    if isinstance(model, ScalarTrainer):
        if options is not None or config is not None:
            raise UsageError("a ScalarTrainer has its options and its model; leave options= and config= out")
        options = model.options
    elif metrics is not None or outputs is not None:
        raise UsageError(
            "metrics= and outputs= go with a ScalarTrainer; a Model has its own: dataclasses.replace(model, metrics=…)"
        )
    epochs, batch_size, lr, held_out = (plain(value) for value in (epochs, batch_size, lr, held_out))
    if isinstance(callbacks, Callback):
        callbacks = (callbacks,)
    _require_kinds(optimizer, held_out, callbacks, options, settings, out, progress)
    if isinstance(optimizer, Optimizer) and lr is not None:
        raise UsageError("lr= goes with the name of an optimizer; an Optimizer has its own")
    chosen, own = _definition(model, data, metrics, outputs)
    if isinstance(model, Model) and config is not None:
        raise UsageError("a Model has its config already; leave config= out")
    tables: dict[str, dict[str, Any]] = {
        "run": {"epochs": epochs},
        "data": {
            "batch_size": batch_size,
            "held_out": float(held_out) if isinstance(held_out, (int, float)) else None,
            "file": Path(data) if isinstance(data, (str, os.PathLike)) else None,
        },
        "optimizer": {"name": optimizer if isinstance(optimizer, str) else None, "lr": lr},
    }
    values = {name: {k: v for k, v in table.items() if v is not None} for name, table in tables.items()}
    values["options"] = {} if options is None else asdict(options)
    values["model"] = _fields(chosen, config if own is None else own)
    _require_once(values, settings or {})
    configuration = _configured(
        chosen, [Layer.of(values, _ORIGIN), Layer.of(settings or {}, _ORIGIN, {GROUPS})], out, resume
    )
    made = chosen.make(configuration.settings.model)
    given = Provided(
        _split(data, held_out, made, configuration),
        model if isinstance(model, ScalarTrainer) else None,
        optimizer if isinstance(optimizer, Optimizer) else None,
    )
    task = prepare(configuration.settings, given)
    if progress and task.left_out:
        click.echo(task.left_out)
    epochs = configuration.settings.run.epochs

    def watch(done: int, steps: int) -> Watcher:
        return make_watcher(epochs, done, steps) if progress else Unwatched()

    outcome = run_task(task, configuration, watch, resume=resume, callbacks=callbacks)
    if progress and outcome.stopped:
        click.echo(stopped_line(len(outcome.results), epochs, outcome.stopped))
    return Trained(task.model, task.trainer, outcome.results, configuration, task.held_out, task.preparation)


def _definition(model: Any, data: Data, metrics: Any, outputs: Any) -> tuple[Definition, Any]:
    """Return the definition of the model to train, and its config if it is already built."""
    if isinstance(model, Model):
        return define_model(model), model.config
    if isinstance(model, ScalarTrainer):
        made = Model("trainer", None, model.params, model.loss, metrics, _batch_specs(model, data), None, outputs)
        return define_model(made if model.state is None else replace(made, state=model.state)), None
    if isinstance(model, ModuleType):
        named = shipped_name(model)
        if named is not None:
            return definition(named), None
        file = Path(model.__file__ or model.__name__)
        try:
            return define_module(str(file), file, model), None
        except Refusal as error:
            raise UsageError(f"{file}: {error.reason}") from error
    if isinstance(model, (str, os.PathLike)):
        return definition(os.fspath(model)), None
    raise UsageError(
        f"{a_type(model)} cannot be trained; expected an opstage.Model, a ScalarTrainer, a model file, or the "
        "name of a shipped model"
    )


def _fields(chosen: Definition, config: Any) -> dict[str, Any]:
    """Return the settings of a model's config, by name."""
    if config is None or chosen.config is NoSettings:
        return {}
    if not isinstance(config, chosen.config):
        raise UsageError(
            f"config= is {a_type(config)}; the model {chosen.word} is configured by {chosen.config.__name__}"
        )
    given: Any = config
    fields: dict[str, Any] = asdict(given)
    return fields


def _configured(
    chosen: Definition, layers: Sequence[Layer], out: str | os.PathLike[str] | None, resume: bool
) -> Configuration:
    if resume:
        if out is None:
            raise UsageError("resume=True continues a run in a directory; name it with out=")
        if chosen.file is None:
            return configure_resumed(Path(out), flags=layers, environ={}, defined=chosen)
        configuration = configure_resumed(Path(out), chosen.word, flags=layers, environ={})
        changed = changes(Path(out), chosen)
        if changed:
            raise UsageError(
                f"{changed[0]} has changed since the run in {out} was started, so it would continue with another "
                "model; start a new run, or let opstage train --resume continue with the run's own copy"
            )
        return configuration
    here = [] if out is None else [Layer.of({"run.out": Path(out)}, _ORIGIN)]
    named = Layer.of({"run.model": chosen.word}, _ORIGIN)
    return configure(flags=[*layers, *here, named], defined=chosen)


def _split(data: Any, held_out: Any, model: Model, configuration: Configuration) -> tuple[Dataset, Dataset] | None:
    """Return (training, held out), or None if the settings determine the data."""
    if data is None or isinstance(data, (str, os.PathLike)):
        if held_out is not None and not isinstance(held_out, (int, float)):
            raise UsageError("held_out= is arrays, so data= must be arrays too: the rows to train on")
        return None
    settings = configuration.settings
    require_file_settings(settings.data, ", and the data given are arrays; prepare them yourself")
    if _is_pair(data):
        if held_out is not None:
            raise UsageError("data= is (training, held out) already; leave held_out= out")
        first, second = data
        return _dataset(first, model), _dataset(second, model)
    dataset = _dataset(data, model)
    if held_out is not None and not isinstance(held_out, (int, float)):
        label = dataset.columns[-1][0] if is_table(data) else None  # in any order of the columns
        return dataset, from_frame(held_out, label=label) if is_table(held_out) else _dataset(held_out, model)
    return split(dataset, "y", settings.data.held_out, settings.options.seed)


def _dataset(data: Any, model: Model) -> Dataset:
    """Convert arrays by argument, or in argument order, to a dataset."""
    if isinstance(data, Dataset):
        return data
    if isinstance(data, Mapping):
        return replace(from_arrays(**data), ordered=False)
    if is_table(data):
        return from_frame(data)
    names = arguments(model)
    if not isinstance(data, (tuple, list)) or len(data) != len(names):
        has = f"{len(data)} arrays" if isinstance(data, (tuple, list)) else a_type(data)
        raise UsageError(
            f"data is {has}, but the loss of {model.name} takes {', '.join(names)}; give that many arrays, a dict of "
            "them, or a Dataset"
        )
    return from_arrays(**dict(zip(names, data)))


def _is_pair(data: Any) -> bool:
    """Return whether data are (training, held out): Datasets, dicts, or tuples of arrays."""
    if not isinstance(data, (tuple, list)) or len(data) != 2:
        return False
    return any(all(isinstance(part, kind) for part in data) for kind in (Dataset, Mapping, tuple))


def _require_kinds(
    optimizer: Any, held_out: Any, callbacks: Any, options: Any, settings: Any, out: Any, progress: Any
) -> None:
    """Raise UsageError for an argument of the wrong type, which might otherwise be ignored."""
    arrays = (Dataset, Mapping, tuple, list)
    held_out = None if is_table(held_out) else held_out
    for name, value, kinds, expected in (
        ("optimizer", optimizer, (str, Optimizer), "an Optimizer such as optim.adamw(lr=1e-3), or its name"),
        ("held_out", held_out, (int, float, *arrays), "a share such as 0.2, a Dataset, or arrays as data= takes them"),
        ("callbacks", callbacks, (tuple, list), "a list of callbacks"),
        ("options", options, (Options,), "an opstage.Options"),
        ("settings", settings, (Mapping,), 'a dict of tables, such as {"run": {"log_every": 5}}'),
        ("out", out, (str, os.PathLike), "a path"),
        ("progress", progress, (bool,), "True or False"),
    ):
        if value is not None and not isinstance(value, kinds):
            kind = f"{value.__name__} itself" if isinstance(value, type) else a_type(value)
            raise UsageError(f"{name}= is {kind}; expected {expected}")
    tables = [field.name for field in fields(Settings)]
    for name in settings or {}:
        if name.partition(".")[0] not in tables:
            raise UsageError(
                f"settings= has {name!r}, which is not a table{nearest(name, tables)}; these are {', '.join(tables)}"
            )


def _require_once(values: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
    """Raise UsageError for a setting that is both an argument and in `settings=`."""
    for table, own in values.items():
        given = settings.get(table)
        both = [name for name in own if isinstance(given, Mapping) and name in given]
        if both and table not in ("options", "model"):
            raise UsageError(f"{both[0]} is given twice: as an argument, and in settings= as {table}.{both[0]}")


def _batch_specs(trainer: ScalarTrainer, data: Data) -> tuple[Any, ...]:
    """Return the Specs of a trainer's batches: its own, or those of the data's arrays with any number of rows."""
    if trainer.specs:
        return trainer.specs
    part: Any = data
    if _is_pair(data):
        part, _ = part
    part = from_frame(part) if is_table(part) else part
    names = trainer.batch_arguments
    arrays: list[Any]
    if isinstance(part, (Dataset, Mapping)):
        order = list(part.names if isinstance(part, Dataset) else part)
        known = [] if names is None else [name for name in (*names.required, *names.optional) if name in order]
        arrays = [part[name] for name in known or order]
    elif isinstance(part, (tuple, list)):
        arrays = list(part)
    else:
        raise UsageError("a ScalarTrainer without Specs needs arrays or a Dataset as data")
    found = [as_rows(array) for array in arrays]
    kinds = {"f": None, "b": "bool"}
    return tuple(Spec(("B", *array.shape[1:]), kinds.get(array.dtype.kind, "int64")) for array in found)
