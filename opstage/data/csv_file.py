"""Read datasets from CSV files: a line of names, then a row of numbers for each example."""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError
from ..ops.tracebacks import called_by_users
from ..ops.untrusted import brief
from ..readable import require_file
from .dataset import Dataset
from .table import PLURAL, Choice, DataTable, Named, with_label

Row: TypeAlias = "tuple[int, list[str]]"
"""The number of a row's last line in the file, counted from 1, and its cells."""

_AT_ONCE = 4096
_DELIMITERS = (",", "\t", ";")
_QUOTED = re.compile(r'"[^"]*"')
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")


@called_by_users
def from_csv(
    path: str | os.PathLike[str],
    *,
    label: str | int | None = None,
    header: bool = True,
    delimiter: str | None = None,
    limit: int | None = None,
) -> Dataset:
    """Read x: float64 (rows, columns - 1), all columns but one; y: (rows,), the column `label`, int64 if all are whole.

    `label` is a column's name or position (-1: the last). None takes the column called y if there is one, else the
    last; if the name of another one suggests a label, that is an error. A label column may hold the names of
    classes: y numbers them in their sorted order, and `classes` of the dataset are these names. Without `header` the
    first line is a row as well, and columns only have positions. Empty lines are skipped. `limit` is the maximum number
    of rows to read. The default `delimiter` is a comma, a tab or `;`, whichever is most frequent in the first line.
    Raises UsageError, naming file, line and column, for a row of another length, and for a cell that is empty, not a
    number, or not finite.

    Raises:
        UsageError: a file that is missing or no CSV; no such column; a cell that is no number.
    """

    def read(choose: Choice) -> DataTable:
        return read_csv(path, choose, header=header, delimiter=delimiter, limit=limit)

    return with_label(path, read, label, header)


def read_csv(
    path: str | os.PathLike[str],
    choose: Choice,
    *,
    header: bool = True,
    delimiter: str | None = None,
    limit: int | None = None,
    hint: str = "",
) -> DataTable:
    """Read the columns selected by `choose`; see `from_csv`. A column has names if its first cell is one."""
    require_file(path, streams=True)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter or ",", strict=True)
            try:
                if delimiter is None:
                    lines = iter(file)
                    start = list(_up_to_text(lines))
                    reader = csv.reader(chain(start, lines), delimiter=_delimiter(path, start), strict=True)
                rows = ((reader.line_num, cells) for cells in reader if cells)
                return _table(path, rows if limit is None else islice(rows, limit + header), choose, header, hint)
            except csv.Error as error:
                raise UsageError(f"{path}: row at line {reader.line_num}: not CSV: {error}") from error
            except UnicodeDecodeError as error:
                raise UsageError(f"{path}: after line {reader.line_num}: not UTF-8: {error.reason}") from error
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise UsageError(f"{path}: {reason}") from error


def _table(path: str | os.PathLike[str], rows: Iterator[Row], choose: Choice, header: bool, hint: str) -> DataTable:
    first = next(rows, None)
    if first is None:
        raise UsageError(f"{path}: the dataset is empty: the file has nothing but empty lines")
    line, cells = first
    if header and any(_DECIMAL_COMMA.fullmatch(cell.strip()) for cell in cells):
        cell = next(cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell.strip()))
        raise UsageError(f"{path}: line {line} holds {brief(cell.strip())} where the columns' names are expected")
    if header and all(_number(cell) is not None for cell in cells):
        raise UsageError(
            f"{path}: line {line} holds numbers where the columns' names are expected; header=False takes it for a row"
        )
    names = [cell.strip() for cell in cells] if header else [str(n) for n in range(len(cells))]
    wanted, may_name = choose(names)
    if "" in wanted:
        raise UsageError(
            f"{path}: line {line}: column {names.index('') + 1} has no name; name it, or leave it out: pandas writes "
            "its index so, and not with to_csv(…, index=False)"
        )
    at = {name: names.index(name) for name in wanted}
    twice = next((name for name in wanted if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"{path}: two columns are called {twice!r}; the columns are {', '.join(names)}")
    lines: list[npt.NDArray[np.int64]] = []
    blocks: list[npt.NDArray[np.float64]] = []
    texts: dict[str, list[str]] | None = None
    spellings: dict[tuple[str, int], str] = {}
    unread = rows if header else _with_first(first, rows)
    while block := list(islice(unread, _AT_ONCE)):
        for line, cells in block:
            if len(cells) != len(names):
                said = _other_separator(cells)
                raise UsageError(f"{path}: row at line {line} has {len(cells)} cells; expected {len(names)}{said}")
        if texts is None:
            texts = {name: [] for name in wanted if name in may_name and _is_name(block[0][1][at[name]])}
        for name, column in texts.items():
            column += _names(path, name, at[name], block, may_name[name])
        numeric = {name: i for name, i in at.items() if name not in texts}
        blocks.append(_numbers(path, numeric, block, hint, may_name))
        for name in (name for name in numeric if may_name.get(name) == "class"):
            _require_one_spelling(path, name, at[name], block, spellings)
        lines.append(np.array([line for line, _ in block]))
    if texts is None:
        raise UsageError(f"{path}: the dataset is empty: there is no row after the names")
    numbers, line_of = np.concatenate(blocks), np.concatenate(lines)
    order = iter(range(numbers.shape[1]))
    columns: dict[str, Any] = {name: texts[name] if name in texts else numbers[:, next(order)] for name in wanted}
    return DataTable(str(path), columns, lambda row: f"row at line {line_of[row]}")


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    """Yield the first lines of a file, up to the first that is not empty."""
    for line in lines:
        yield line
        if line.strip("\r\n"):
            return


def _delimiter(path: str | os.PathLike[str], lines: Sequence[str]) -> str:
    """Return the delimiter of a file from its first lines, of which the last has cells."""
    if Path(path).suffix == ".tsv":
        return "\t"
    bare = _QUOTED.sub("", lines[-1]) if lines else ""
    return max(_DELIMITERS, key=bare.count)


def _other_separator(cells: Sequence[str]) -> str:
    """Return the end of an error about cells that contain another delimiter."""
    mark = next((mark for mark in (";", "\t") if any(mark in cell for cell in cells)), None)
    return "" if mark is None else f"; does {'a tab' if mark != ';' else repr(mark)} separate the cells of this file?"


def _is_name(cell: str) -> bool:
    return bool(cell.strip()) and _number(cell) is None


def _names(path: str | os.PathLike[str], name: str, at: int, block: Sequence[Row], what: Named) -> list[str]:
    for line, cells in block:
        if not _is_name(cells[at]):
            holds = "is empty" if not cells[at].strip() else f"is {brief(cells[at].strip())}"
            raise UsageError(
                f"{path}: row at line {line}: column {name} {holds}; expected the name of a {what}, as in the rows "
                "before"
            )
    return [cells[at].strip() for _, cells in block]


def _with_first(first: Row, rows: Iterator[Row]) -> Iterator[Row]:
    yield first
    yield from rows


def _require_one_spelling(
    path: str | os.PathLike[str], name: str, at: int, block: Sequence[Row], spellings: dict[tuple[str, int], str]
) -> None:
    """Raise UsageError if a column of classes holds 1 and 01, which as numbers would be one class.

    `spellings` holds the spelling of each number so far, and is extended.
    """
    for cell in sorted({cells[at].strip() for _, cells in block}):
        if cell.isdecimal() and spellings.setdefault((name, int(cell)), cell) != cell:
            line = next(line for line, cells in block if cells[at].strip() == cell)
            raise UsageError(
                f"{path}: row at line {line}: column {name} is {brief(cell)}, and another row has "
                f"{brief(spellings[name, int(cell)])}, the same number: is it the same class? Write one number in one "
                "way, or names that are no numbers"
            )


def _numbers(
    path: str | os.PathLike[str],
    at: dict[str, int],
    block: Sequence[Row],
    hint: str,
    may_name: Mapping[str, Named],
) -> npt.NDArray[np.float64]:
    """Convert the block's cells in these columns, quickly, or on failure cell by cell to report the invalid one."""
    as_they_are = list(at.values()) == list(range(len(block[0][1])))
    chosen = [cells if as_they_are else [cells[i] for i in at.values()] for _, cells in block]
    if not any("_" in cell for cells in chosen for cell in cells):  # Python accepts 1_000 as a number
        try:
            table = np.array(chosen, np.float64).reshape(len(block), len(at))
        except ValueError:
            pass
        else:
            if np.isfinite(table).all():
                return table
    line, name, cell = next(
        (line, name, cells[i])
        for line, cells in block
        for name, i in at.items()
        if _number(cells[i]) is None or not math.isfinite(float(cells[i]))
    )
    what = "is empty" if not cell.strip() else f"is {brief(cell.strip())}; expected a finite number"
    if _DECIMAL_COMMA.fullmatch(cell.strip()):
        hint = ", with a decimal point: the comma is none here"
    elif name in may_name and _is_name(cell):
        hint = f", as in the rows before: a column of {PLURAL[may_name[name]]} holds names in every row, or in none"
    else:
        hint = _other_separator([cell]) or (hint if _is_name(cell) else "")
    raise UsageError(f"{path}: row at line {line}: column {name} {what}{hint}")


def _number(cell: str) -> float | None:
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
