"""Write predictions to a file: .csv for numbers and classes, .npz for arrays of any shape."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..atomic import write_file
from ..ops.errors import UsageError
from ..ops.trees import flatten, structure_paths

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
                f"{path}: row {row} is of class {arrays[CLASS][row]}, and the data trained on had {len(classes)} "
                "classes"
            )
    rows = {len(array) if array.ndim else -1 for array in arrays.values()}
    if len(rows) != 1 or -1 in rows:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise UsageError(f"{path}: the outputs do not have a row for each prediction: {shapes}")
    if files is not None:
        if PATH in arrays:
            raise UsageError(f"{path}: the model has an output called {PATH}, as is the column of the files' names")
        if len(files) not in rows:
            raise UsageError(f"{path}: there are {len(files)} files now, and predictions for {rows.pop()}: try again")
        arrays = {PATH: np.asarray(files), **arrays}
    if path.suffix == ".npz":
        buffer = io.BytesIO()
        named = {CLASS: np.asarray(classes)[arrays[CLASS]]} if classes is not None and CLASS in arrays else {}
        if "file" in arrays:
            raise UsageError(f"{path}: NumPy writes no array called file; give that output of the model another name")
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
                f"{path}: output {name} is {array.shape}, which no table holds; write it as {path.with_suffix('.npz')}"
            )
        if array.ndim == 1:
            known = classes if name == CLASS else None
            columns.append((name, [known[int(value)] if known is not None else _shown(value) for value in array]))
            continue
        named = classes if classes is not None and len(classes) == array.shape[1] else range(array.shape[1])
        columns += [(f"{name}.{label}", list(map(_shown, array[:, i]))) for i, label in enumerate(named)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([name for name, _ in columns])
    writer.writerows(zip(*[column for _, column in columns]))
    return text.getvalue()


def _shown(value: Any) -> str:
    """Return the shortest text that reads back as the same number."""
    return str(value)
