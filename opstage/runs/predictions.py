"""Predictions of a run, written to files, and of a model with its initial parameters."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.csv_and_parquet import read_table
from ..data.file import array_names, read_arrays
from ..data.memory_map import is_mapped
from ..data.preparation import Preparation
from ..data.table import (
    TABLES,
    Named,
    assign,
    cast,
    is_label,
    number_kind,
    read_columns,
    require_columns,
    stack_columns,
)
from ..files import Document, suffix_of, write_file
from ..models import Model
from ..ops.errors import UsageError
from ..ops.trees import flatten, structure_paths
from ..ops.types import Shape
from ..options import Options
from ..training.parameters import first_trees
from ..training.predictor import Predictor
from ..training.trainer import scalar_trainer
from .settings import DataSettings

# Files of predictions: .csv for numbers and classes, .npz for arrays of any shape -------------------------------------

CLASS = "class"
"""The output that holds class numbers."""

PATH = "path"
"""The column with the file name of each row."""

SUFFIXES = (".csv", ".npz")


def require_suffix(path: Path) -> None:
    """Raise UsageError for a file with another suffix."""
    if path.suffix not in SUFFIXES:
        raise UsageError(f"{path}: predictions are written as {' or '.join(SUFFIXES)}; end the name with one of these")


def write_predictions(
    path: Path, outputs: Any, classes: Sequence[str] | None = None, files: Sequence[str] | None = None
) -> int:
    """Write a tree of outputs, whose arrays have a row per prediction; return the number of rows.

    With `classes`, the numbers in `class` become names, and arrays with one column per class have their columns named
    by class. `files`, one per row, become a column `path`. Raises UsageError for arrays with more than two axes in a
    .csv, and if the file cannot be written.
    """
    require_suffix(path)
    arrays = named_outputs(outputs)
    if classes is not None and CLASS in arrays and arrays[CLASS].dtype.kind in "iu":
        for row in np.flatnonzero((arrays[CLASS] < 0) | (arrays[CLASS] >= len(classes)))[:1]:
            raise UsageError(
                f"{path}: row {row} is of class {arrays[CLASS][row]}, but the training data had {len(classes)} classes"
            )
    rows = {len(array) if array.ndim else -1 for array in arrays.values()}
    if len(rows) != 1 or -1 in rows:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise UsageError(f"{path}: expected outputs with a row for each prediction, got: {shapes}")
    if files is not None:
        if PATH in arrays:
            raise UsageError(f"{path}: the model has an output called {PATH}, which is the name of the column of files")
        if len(files) not in rows:
            raise UsageError(
                f"{path}: the folder has {len(files)} files now, but predictions are for {rows.pop()}; predict again"
            )
        arrays = {PATH: np.asarray(files), **arrays}
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        named = {CLASS: np.asarray(classes)[arrays[CLASS]]} if classes is not None and CLASS in arrays else {}
        if "file" in arrays:
            raise UsageError(
                f"{path}: NumPy cannot write an array called file; give that output of the model another name"
            )
        np.savez(buffer, **{**arrays, **named})
        write_file(path, [buffer.getvalue()])
    else:
        write_file(path, [_csv(path, arrays, classes).encode()])
    return rows.pop()


def named_outputs(outputs: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a tree of outputs by path; a single one is called `output`."""
    leaves, structure = flatten(outputs)
    return {path or "output": np.asarray(leaf) for path, leaf in zip(structure_paths(structure), leaves)}


def _csv(path: Path, arrays: dict[str, npt.NDArray[Any]], classes: Sequence[str] | None) -> str:
    columns: list[tuple[str, list[str]]] = []
    for name, array in arrays.items():
        if array.ndim > 2:
            raise UsageError(
                f"{path}: output {name} is {array.shape}, which does not fit a table; write it as "
                f"{path.with_suffix('.npz')}"
            )
        if array.ndim == 1:
            known = classes if name == CLASS else None
            columns.append((name, [known[int(value)] if known is not None else str(value) for value in array]))
            continue
        named = classes if classes is not None and len(classes) == array.shape[1] else range(array.shape[1])
        columns += [(f"{name}.{label}", list(map(str, array[:, i]))) for i, label in enumerate(named)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    writer.writerows(zip(*[column for _, column in columns]))
    return text.getvalue()


def initial_predictor(model: Model, options: Options) -> Predictor:
    """Return the prediction function of a model with its initial parameters.

    Raises UsageError for a model that predicts nothing, and for a backend that computes no values.
    """
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


def prepared_inputs(predictor: Predictor, path: Path, data: DataSettings) -> tuple[list[Any], Preparation | None]:
    """Return the inputs in a data file, and how they were read if the model's file tells, as one that `opstage export`
    wrote does.

    Else arrays have the names of the arguments, or those that the model's file has for them; so have columns of a
    table. `data.columns` names other columns. A single input may be all columns, or all but a label.

    Raises UsageError if it does not follow from the names which columns an input has.
    """
    names, metadata = predictor.names, predictor.model.metadata
    own = {metadata.get(f"input.{name}", name): name for name in names}
    if "preparation" in metadata and not (data.columns or data.label):
        document = Document.of(metadata["preparation"], f"{predictor.model.name}: metadata: preparation")
        preparation = Preparation.of(document)
        parts = [replace(part, argument=own.get(part.argument, part.argument)) for part in preparation.parts]
        preparation = replace(preparation, parts=tuple(parts))
        dataset = preparation.inputs(path, names)
        return [dataset[name] for name in names], preparation
    if suffix_of(path) not in TABLES:
        has = array_names(path)
        wanted = [name if name in has else theirs if theirs in has else name for theirs, name in own.items()]
        arrays = read_arrays(path, wanted)
        kinds = [number_kind(predictor.specs[name]) for name in names]
        return [
            array if is_mapped(array) else cast(array, kind, image=False, origin=origin)
            for array, kind, origin in zip(arrays.arrays, kinds, arrays.origins)
        ], None
    header: list[str] = []

    def nothing(columns: Sequence[str]) -> tuple[Sequence[str], dict[str, Named]]:
        header.extend(columns)
        return (), {}

    read_table(path, nothing)
    by_own_name = {name: (theirs,) for theirs, name in own.items() if theirs in header and name not in header}
    given = by_own_name | {own.get(name, name): columns for name, columns in read_columns(data.columns).items()}
    if len(names) == 1 and not given and (features := _features(path, header, predictor.types[0].shape, data.label)):
        given = {names[0]: features}
    found = assign(path, given, header, names, (), "")
    table = read_table(path, lambda _: ([column for columns in found.values() for column in columns], {}))
    inputs = []
    for name, type_ in zip(names, predictor.types):
        single = len(type_.shape) == len(found[name]) == 1
        array = table.numbers(found[name][0]) if single else stack_columns(table, found[name])
        inputs.append(cast(array, number_kind(predictor.specs[name]), image=False, origin=f"{path}: {name}"))
    return inputs, None


def _features(path: Path, header: Sequence[str], shape: Shape, label: str) -> tuple[str, ...]:
    """Return all columns, or all but the label, if that is as many as an input of this shape has; else ()."""
    likely = [name for name in header if name == label or (not label and is_label(name))]
    if label or (not likely and len(shape) == 2 and len(header) - 1 == shape[1]):
        require_columns(path, header, [label] if label else [])
        table = read_table(path, lambda columns: (columns, dict.fromkeys(columns, "class")))
        likely = likely or [name for name, values in table.columns.items() if isinstance(values, list)]
    for left in ([], likely):
        rest = tuple(name for name in header if name not in left)
        if len(left) < 2 and shape[1:] == (len(rest),):
            return rest
    return ()


def random_inputs(predictor: Predictor, rows: int, sizes: dict[str, int]) -> list[Any]:
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
        raise UsageError(f"--at {name}: model {predictor.model.name} lacks a size of this name")
    missing = sorted(names - given.keys())
    if missing:
        said = ",".join(f"{name}=16" for name in missing)
        raise UsageError(f"model {predictor.model.name} has sizes without a value: give them, as in --at {said}")
    inputs = []
    for type_ in predictor.types:
        shape = tuple(d if isinstance(d, int) else given[str(d)] for d in type_.shape)
        inputs.append(
            rng.standard_normal(shape).astype(type_.dtype) if type_.dtype.kind == "f" else np.zeros(shape, type_.dtype)
        )
    return inputs
