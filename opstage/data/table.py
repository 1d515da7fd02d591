"""`DataTable`: columns of a file, each with numbers or names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError, nearest
from ..ops.untrusted import brief, shown
from .dataset import Dataset

Numbers: TypeAlias = "npt.NDArray[Any]"
Names: TypeAlias = "list[str]"

Named: TypeAlias = Literal["class", "category"]
Choice: TypeAlias = Callable[[Sequence[str]], "tuple[Sequence[str], Mapping[str, Named]]"]
"""Maps the names of a file's columns to (those to read, those of them that may hold names, and of what)."""

TABLES = (".csv", ".tsv", ".parquet")
PLURAL: dict[Named, str] = {"class": "classes", "category": "categories"}
_LABELS = ("y", "label", "labels", "target", "targets", "class", "classes")


@final
@dataclass(frozen=True, eq=False)
class DataTable:
    """Columns read from a file.

    path     the file, for errors
    columns  by name, in the requested order: finite numbers, or texts
    place    row -> its place in the file: `row at line 3`
    """

    path: str
    columns: dict[str, Numbers | Names]
    place: Callable[[int], str]

    def numbers(self, name: str) -> Numbers:
        """Return a column of numbers. Raises UsageError for one of names."""
        values = self.columns[name]
        if isinstance(values, list):
            raise UsageError(
                f"{self.path}: {self.place(0)}: column {name} is {brief(values[0])}; expected a finite number"
            )
        return values


def numbered(
    table: DataTable, name: str, classes: Sequence[str] | None = None, what: Named = "class"
) -> tuple[Numbers, tuple[str, ...] | None]:
    """Return a label column as (its numbers, None), or (class numbers, class names).

    Names are numbered in sorted order, or in the order of `classes`, which requires a column of names. Whole numbers
    become int64. Raises UsageError, with the row, for a name that is not in `classes`.
    """
    values = table.columns[name]
    if not isinstance(values, list):
        if classes is not None:
            values = table.numbers(name)
            raise UsageError(
                f"{table.path}: column {name} holds numbers; expected the names of {PLURAL[what]}: {shown(classes)}"
            )
        return as_labels(values), None
    found = tuple(sorted(set(values))) if classes is None else tuple(classes)
    numbers = {text: i for i, text in enumerate(found)}
    for row, text in enumerate(values):
        if text not in numbers:
            raise UsageError(
                f"{table.path}: {table.place(row)}: column {name} is {brief(text)}, which is no {what} of the data "
                f"that were trained on{nearest(text, found)}; these are {shown(found)}"
            )
    return np.array([numbers[text] for text in values], np.int64), found


def with_label(
    path: str | os.PathLike[str], read: Callable[[Choice], DataTable], label: str | int | None, header: bool = True
) -> Dataset:
    """Return x and y of a file that `read` reads: y is the column `label`, see `label_position`, and x all others."""
    chosen: list[str] = []

    def choose(names: Sequence[str]) -> tuple[Sequence[str], dict[str, Named]]:
        chosen.append(names[label_position(path, names, label, header)])
        return names, {chosen[0]: "class"}

    table = read(choose)
    (column,) = chosen
    y, classes = numbered(table, column)
    inputs = tuple(name for name in table.columns if name != column)
    x = np.column_stack([table.numbers(name) for name in inputs])
    origins = f"{path}: all columns but {column}", f"{path}: column {column}"
    return Dataset(("x", "y"), (x, y), origins, classes=classes, columns=(inputs, (column,)) if header else ())


def as_labels(values: Numbers) -> Numbers:
    """Return labels as int64 if all are whole, else unchanged."""
    if values.dtype.kind != "f":
        return values
    whole = bool((values == np.floor(values)).all() and (np.abs(values) < 2.0**53).all())
    return values.astype(np.int64) if whole else values.copy()


def label_position(path: str | os.PathLike[str], names: Sequence[str], label: str | int | None, header: bool) -> int:
    """Return the position of the label's column, 0 <= position < columns."""
    columns = len(names)
    if columns < 2:
        raise UsageError(
            f"{path}: has one column, {brief(names[0])}; expected the label's and at least one more. Cells are "
            "separated by commas, tabs or ';'"
        )
    if label is None:
        label = "y" if header and "y" in names else -1
        likely = [name for name in names[:-1] if is_label(name)]
        if label == -1 and likely and not is_label(names[-1]):
            raise UsageError(
                f"{path}: which column is the label? The last is {names[-1]}, but one is called {likely[0]}; say "
                f"--data.label {likely[0]} or --data.label {names[-1]}, in Python label={likely[0]!r}; without a say, "
                "the column called y is"
            )
    if isinstance(label, str):
        if not header:
            raise UsageError(f"{path}: label={label!r} is a name, but header=False says that columns have none")
        if names.count(label) != 1:
            raise UsageError(f"{path}: {not_one(label, names)}; the columns are {', '.join(names)}")
        return names.index(label)
    if not -columns <= label < columns:
        raise UsageError(f"{path}: label={label} is not one of its {columns} columns")
    return label % columns


def read_table(path: str | os.PathLike[str], choose: Choice, hint: str = "") -> DataTable:
    """Read columns of a .csv, .tsv or .parquet file. `hint` ends the error about a name in a column of numbers.

    Raises UsageError, naming file, row and column.
    """
    from .csv_file import read_csv

    if Path(path).suffix == ".parquet":
        from .parquet_file import read_parquet

        return read_parquet(path, choose, hint)
    return read_csv(path, choose, hint=hint)


def is_label(name: str) -> bool:
    """Whether a column has a usual name of labels."""
    return name.lower() in _LABELS


def require_columns(path: str | os.PathLike[str], names: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise UsageError unless each of `wanted` is exactly one of a file's columns."""
    for name in wanted:
        if names.count(name) != 1:
            raise UsageError(f"{path}: {not_one(name, names)}; the columns are {shown(names)}")


def not_one(name: str, names: Sequence[str]) -> str:
    """Return the words for a name of several columns, or of none, with the nearest that there is."""
    return (
        f"two columns are called {name!r}" if name in names else f"no column is called {name!r}{nearest(name, names)}"
    )
