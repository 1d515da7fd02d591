"""Datasets from CSV files: a line of names, then a row of numbers for each example."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError, nearest
from ..ops.untrusted import brief
from ..readable import require_file
from .dataset import Dataset

Row: TypeAlias = "tuple[int, list[str]]"
"""A row's last line in the file, counted from 1, and its cells."""

_AT_ONCE = 4096
_LABELS = ("y", "label", "labels", "target", "targets", "class", "classes")


def from_csv(
    path: str | os.PathLike[str],
    *,
    label: str | int | None = None,
    header: bool = True,
    delimiter: str = ",",
    limit: int | None = None,
) -> Dataset:
    """x: float64 (rows, columns - 1), all columns but one; y: (rows,), the column `label`, int64 if all are whole.

    `label` is a column's name or position (-1: the last). None takes the column called y if there is one, else the
    last; where another one looks like the label by its name, that is an error. Without `header` the first line is a row
    as well, and columns have positions alone. Empty lines are passed over. With `limit` no more than so many rows are
    read. Raises UsageError, naming file, line and column, for a row of another length, and for a cell that is empty, no
    number, or not finite.
    """
    require_file(path, streams=True)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter, strict=True)
            try:
                rows = ((reader.line_num, cells) for cells in reader if cells)
                return _dataset(path, rows if limit is None else islice(rows, limit + header), label, header)
            except csv.Error as error:
                raise UsageError(f"{path}: row at line {reader.line_num}: not CSV: {error}") from error
            except UnicodeDecodeError as error:
                raise UsageError(f"{path}: after line {reader.line_num}: not UTF-8: {error.reason}") from error
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise UsageError(f"{path}: {reason}") from error


def _dataset(path: str | os.PathLike[str], rows: Iterator[Row], label: str | int | None, header: bool) -> Dataset:
    first = next(rows, None)
    if first is None:
        raise UsageError(f"{path}: the dataset is empty: the file has no line that is not")
    line, cells = first
    if header and all(_number(cell) is not None for cell in cells):
        raise UsageError(
            f"{path}: line {line} holds numbers where the columns' names are expected; header=False takes it for a row"
        )
    names = [cell.strip() for cell in cells] if header else [str(n) for n in range(len(cells))]
    position = _position(path, names, label, header)
    blocks = []
    unread = rows if header else _with_first(first, rows)
    while block := list(islice(unread, _AT_ONCE)):
        blocks.append(_numbers(path, names, block))
    if not blocks:
        raise UsageError(f"{path}: the dataset is empty: there is no row after the names")
    table = np.concatenate(blocks)
    labels = table[:, position]
    whole = bool((labels == np.floor(labels)).all() and (np.abs(labels) < 2.0**53).all())
    return Dataset(
        ("x", "y"),
        (np.delete(table, position, axis=1), labels.astype(np.int64) if whole else labels.copy()),
        (f"{path}: all columns but {names[position]}", f"{path}: column {names[position]}"),
    )


def _with_first(first: Row, rows: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from rows


def _position(path: str | os.PathLike[str], names: Sequence[str], label: str | int | None, header: bool) -> int:
    """Where the label's column is; 0 <= position < columns."""
    columns = len(names)
    if columns < 2:
        raise UsageError(f"{path}: has one column; expected the label's and at least one more")
    if label is None:
        label = "y" if header and "y" in names else -1
        likely = [name for name in names[:-1] if name.lower() in _LABELS]
        if label == -1 and likely and names[-1].lower() not in _LABELS:
            raise UsageError(
                f"{path}: which column is the label? The last is {names[-1]}, but one is called {likely[0]}; say "
                f"label={likely[0]!r}, or label=-1 for the last; without a say, the column called y is"
            )
    if isinstance(label, str):
        if not header:
            raise UsageError(f"{path}: label={label!r} is a name, but header=False says that columns have none")
        if names.count(label) != 1:
            found = "two columns are called" if label in names else "no column is called"
            raise UsageError(f"{path}: {found} {label!r}{nearest(label, names)}; the columns are {', '.join(names)}")
        return names.index(label)
    if not -columns <= label < columns:
        raise UsageError(f"{path}: label={label} is not one of its {columns} columns")
    return label % columns


def _numbers(path: str | os.PathLike[str], names: Sequence[str], block: Sequence[Row]) -> npt.NDArray[np.float64]:
    """The block's cells; the fast way, and cell by cell to name the one at fault."""
    for line, cells in block:
        if len(cells) != len(names):
            raise UsageError(f"{path}: row at line {line} has {len(cells)} cells; expected {len(names)}")
    if not any("_" in cell for _, cells in block for cell in cells):  # Python takes 1_000 for a number
        try:
            table = np.array([cells for _, cells in block], np.float64)
        except ValueError:
            pass
        else:
            if np.isfinite(table).all():
                return table
    line, name, cell = next(
        (line, name, cell)
        for line, cells in block
        for name, cell in zip(names, cells, strict=True)
        if _number(cell) is None or not math.isfinite(float(cell))
    )
    what = "is empty" if not cell.strip() else f"is {brief(cell.strip())}; expected a finite number"
    raise UsageError(f"{path}: row at line {line}: column {name} {what}")


def _number(cell: str) -> float | None:
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
