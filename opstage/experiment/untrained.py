"""A model with its initial parameters, for predictions without a loss or a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..data.any_file import read_arrays
from ..data.table import TABLES, read_table
from ..models import Model
from ..ops.errors import UsageError
from ..options import Options
from ..training.parameters import first_trees
from ..training.predictor import Predictor
from ..training.trainer import scalar_trainer
from .settings import Settings


def untrained_predictor(settings: Settings) -> Predictor:
    """Return the prediction function of a configured model with its initial parameters.

    Raises UsageError for a model that predicts nothing, and for a backend that computes no values.
    """
    model = settings.defined.make(settings.model)
    return predictor_of(model, settings.options)


def predictor_of(model: Model, options: Options) -> Predictor:
    """See `untrained_predictor`."""
    params, state = first_trees(model, options)
    # The loss is never run: a prediction-only model has none, but a trainer needs one.
    trainer = scalar_trainer(_no_loss, params, options=options.replace(validate=False), state=state)
    if not trainer.executes:
        raise UsageError(
            f"backend {options.backend!r} computes no values; choose one that does, such as eager or compiled"
        )
    return Predictor(model, trainer)


def _no_loss(ops: Any, *_: Any, **__: Any) -> Any:
    return ops.full(shape=(), value=0.0)


def inputs_of(predictor: Predictor, path: Path) -> list[Any]:
    """Return the inputs in a data file: arrays by name, or for a single input the columns of a table.

    A table may have an extra column, the label that training would use; it is skipped.
    """
    widths = [type_.shape[1] for type_ in predictor.types if len(type_.shape) == 2]
    if path.suffix in TABLES and len(predictor.types) == 1 and widths:
        names: list[str] = []

        def first(columns: Sequence[str]) -> tuple[Sequence[str], dict[str, Any]]:
            names.extend(columns)
            return (columns if len(columns) == widths[0] else columns[:0]), {}

        table = read_table(path, first)
        if len(names) == widths[0]:
            return [np.stack([table.numbers(name) for name in names], axis=1)]
    dataset = read_arrays(path, predictor.names)
    return [dataset[name] for name in predictor.names]


def made_inputs(predictor: Predictor, rows: int, sizes: dict[str, int]) -> list[Any]:
    """Make inputs to time a model on: normal floats, and zeros for integers, which are valid indices into any table.

    rows    the first size of the first input, if it has a name
    sizes   values of the other named sizes

    Raises UsageError for a name without a value, and for an unknown name.
    """
    rng = np.random.default_rng(0)
    first = next((str(type_.shape[0]) for type_ in predictor.types if type_.shape), "")
    names = {str(d) for type_ in predictor.types for d in type_.shape if not isinstance(d, int)}
    given = {**({first: rows} if first in names else {}), **sizes}
    for name in sorted(given.keys() - names):
        raise UsageError(f"--at {name}: model {predictor.model.name} has no size of this name")
    missing = sorted(names - given.keys())
    if missing:
        said = ",".join(f"{name}=16" for name in missing)
        raise UsageError(f"model {predictor.model.name} has sizes without a number: give them, as in --at {said}")
    inputs = []
    for type_ in predictor.types:
        shape = tuple(d if isinstance(d, int) else given[str(d)] for d in type_.shape)
        inputs.append(
            rng.standard_normal(shape).astype(type_.dtype) if type_.dtype.kind == "f" else np.zeros(shape, type_.dtype)
        )
    return inputs
