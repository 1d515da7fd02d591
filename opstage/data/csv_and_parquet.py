"""Read tables from files: CSV, with a line of names and a row for each example, and Parquet."""

from __future__ import annotations

import csv
import gzip
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..files import require_file, suffix_of
from ..ops.array_conversion import get_columns, index_columns
from ..ops.errors import UsageError, brief, require_extra
from ..ops.tracebacks import called_by_users
from .dataset import Dataset
from .table import PLURAL, Choice, DataTable, Named, columns_table, require_columns, with_label

Row: TypeAlias = "tuple[int, list[str]]"
"""The number of a row's last line in the file, counted from 1, and its cells."""

_AT_ONCE = 4096
_EXACT = 2**53
_NO_HEADER = "header=False takes it for a row, in Python; else write a line of names above it"
_TWICE = f"so is the first line, which is a row, or its names stand there twice: {_NO_HEADER}"
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
        UsageError: a missing file or one that is not CSV; an unknown column; a cell that is not a number.
    """
    read = partial(read_csv, path, header=header, delimiter=delimiter, limit=limit)
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
    if delimiter is not None and not (isinstance(delimiter, str) and len(delimiter) == 1 and delimiter not in '"\r\n'):
        raise UsageError(f"delimiter={brief(delimiter)}; expected one character, such as ';'")
    if limit is not None and not (isinstance(limit, int) and limit > 0):
        raise UsageError(f"limit={brief(limit)}; expected a number of rows, at least 1")
    try:
        opened = gzip.open if os.fsdecode(path).lower().endswith(".gz") else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
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
                raise UsageError(
                    f"{path}: after line {reader.line_num}: not UTF-8: {error.reason}; save it as UTF-8"
                ) from error
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        reason = "no such file" if isinstance(error, FileNotFoundError) else f"cannot be read: {why}"
        raise UsageError(f"{path}: {reason}") from error


def _table(path: str | os.PathLike[str], rows: Iterator[Row], choose: Choice, header: bool, hint: str) -> DataTable:
    first = next(rows, None)
    if first is None:
        raise UsageError(f"{path}: the dataset is empty: the file has nothing but empty lines")
    line, cells = first
    if header and any(_DECIMAL_COMMA.fullmatch(cell.strip()) for cell in cells):
        cell = next(cell for cell in cells if _DECIMAL_COMMA.fullmatch(cell.strip()))
        raise UsageError(f"{path}: line {line} holds {brief(cell.strip())} where the columns' names are expected")
    if header and _holds_numbers(cells):
        raise UsageError(f"{path}: line {line} holds numbers where the columns' names are expected; {_NO_HEADER}")
    names = [cell.strip() for cell in cells] if header else [str(n) for n in range(len(cells))]
    wanted, may_name = choose(names)
    if "" in wanted:
        raise UsageError(
            f"{path}: line {line}: column {names.index('') + 1} lacks a name; name it, or leave it out: pandas writes "
            "its index like this, unless to_csv gets index=False"
        )
    require_columns(path, names, wanted)
    places = {name: i for i, name in enumerate(names)}
    columns = [_Column(path, name, may_name.get(name), header, hint) for name in wanted]
    lines: list[int] = []
    unread = rows if header else chain([first], rows)
    while block := list(islice(unread, _AT_ONCE)):
        for line, cells in block:
            if len(cells) != len(names):
                said = _other_separator(cells)
                raise UsageError(f"{path}: row at line {line} has {len(cells)} cells; expected {len(names)}{said}")
        numbers = [line for line, _ in block]
        for column in columns:
            at = places[column.name]
            column.add(numbers, [cells[at].strip() for _, cells in block])
        lines += numbers
    if not lines:
        raise UsageError(f"{path}: the dataset is empty: expected a row after the names")
    return DataTable(
        str(path), {column.name: column.values for column in columns}, lambda row: f"row at line {lines[row]}"
    )


@final
class _Column:
    """A column, read block by block: of names if it may hold these and its first cell is one, else of numbers.

    what     what its names are those of; None: it holds numbers
    hint     the end of the error about a name in a column of numbers
    """

    def __init__(self, path: str | os.PathLike[str], name: str, what: Named | None, header: bool, hint: str):
        self.name = name
        self._path, self._what, self._header, self._hint = path, what, header, hint
        self._names: list[str] = []
        self._numbers: list[npt.NDArray[np.float64]] = []
        self._spellings: dict[Decimal, str] = {}

    @property
    def values(self) -> npt.NDArray[np.float64] | list[str]:
        """Return all cells, as names or numbers."""
        return self._names or np.concatenate(self._numbers)

    def add(self, lines: Sequence[int], cells: list[str]) -> None:
        """Add the cells of a block, without spaces around them. Raises UsageError, with the line, for an invalid
        one."""
        require = partial(self._require, lines, cells)
        if self._names or (self._what is not None and not self._numbers and _is_name(cells[0])):
            require(_is_name, lambda _: f"expected the name of a {self._what}, as in the rows before")
            if self._header:
                require(lambda cell: cell != self.name, lambda _: _TWICE)
            self._names += cells
            return
        numbers = _converted(cells)
        if numbers is None:
            require(
                _is_finite,
                lambda cell: _TWICE if cell == self.name else f"expected a finite number{self._cell_hint(cell)}",
            )
        else:
            if (np.abs(numbers) >= _EXACT).any():
                require(_is_exact, lambda _: "expected an integer that a float holds exactly, none beyond 2**53")
            self._numbers.append(numbers)
        if self._what == "class":  # 1 and 01 would be one class
            require(lambda cell: not cell.isdecimal() or self._spelling(cell) == cell, self._same_number)

    def _require(
        self, lines: Sequence[int], cells: Sequence[str], is_good: Callable[[str], bool], problem: Callable[[str], str]
    ) -> None:
        for line, cell in zip(lines, cells):
            if not is_good(cell):
                is_ = f"is {brief(cell)}" if cell else "is empty"
                raise UsageError(f"{self._path}: row at line {line}: column {self.name} {is_}; {problem(cell)}")

    def _spelling(self, cell: str) -> str:
        """Return how the number was written first."""
        return self._spellings.setdefault(Decimal(cell), cell)

    def _same_number(self, cell: str) -> str:
        same = f"another row has {brief(self._spelling(cell))}, the same number: is it the same class?"
        return f"{same} Write one number in one way, or use names that are not numbers"

    def _cell_hint(self, cell: str) -> str:
        """Return the end of the error about a cell that is not a number."""
        if _DECIMAL_COMMA.fullmatch(cell):
            return ", with a decimal point instead of the comma"
        if self._what is not None and _is_name(cell):
            return f", as in the rows before: a column of {PLURAL[self._what]} holds names in every row, or in none"
        return _other_separator([cell]) or (self._hint if _is_name(cell) else "")


def _up_to_text(lines: Iterator[str]) -> Iterator[str]:
    """Yield the first lines of a file, up to the first that is not empty."""
    for line in lines:
        yield line
        if line.strip("\r\n"):
            return


def _delimiter(path: str | os.PathLike[str], lines: Sequence[str]) -> str:
    """Return the delimiter of a file from its first lines, of which the last has cells."""
    if suffix_of(path) == ".tsv":
        return "\t"
    bare = _QUOTED.sub("", lines[-1]) if lines else ""
    return max(_DELIMITERS, key=bare.count)


def _other_separator(cells: Sequence[str]) -> str:
    """Return the end of an error about cells that contain another delimiter."""
    mark = next((mark for mark in (";", "\t") if any(mark in cell for cell in cells)), None)
    return "" if mark is None else f"; does {'a tab' if mark != ';' else repr(mark)} separate the cells of this file?"


def _is_name(cell: str) -> bool:
    return bool(cell.strip()) and _number(cell) is None


def _holds_numbers(cells: Sequence[str]) -> bool:
    """Return whether the first cells of a file are a row, and not names: they hold numbers other than 0, 1, 2 … or
    years."""
    numbers = [cell.strip() for cell in cells if _number(cell) is not None]
    whole = [int(number) for number in numbers if number.isdecimal()]
    counted = bool(whole) and whole == list(range(whole[0], whole[0] + len(numbers)))
    return bool(numbers) and (len(numbers) == len(cells) or not counted)


def _converted(cells: Sequence[str]) -> npt.NDArray[np.float64] | None:
    """Return cells as numbers; None if one of them is not a finite number."""
    if "_" in "".join(cells):  # Python accepts 1_000 as a number
        return None
    try:
        numbers = np.array(cells, np.float64)
    except ValueError:
        return None
    return numbers if np.isfinite(numbers).all() else None


def _number(cell: str) -> float | None:
    if "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def _is_finite(cell: str) -> bool:
    return _converted([cell]) is not None


def _is_exact(cell: str) -> bool:
    """Return whether a cell is not an integer that rounding may change: of two such numbers it may make one."""
    return not cell.lstrip("+-").isdecimal() or -_EXACT <= Decimal(cell) <= _EXACT


# Parquet --------------------------------------------------------------------------------------------------------------


@called_by_users
def from_parquet(path: str | os.PathLike[str], *, label: str | int | None = None) -> Dataset:
    """Read x: float64 (rows, columns - 1), all columns but one; y: (rows,), the column `label`; see `from_csv`.

    Raises UsageError as `read_parquet` does, and if no column, or more than one, can be the label.

    Raises:
        UsageError: a missing or damaged file, or one that is not Parquet; an unknown column; pyarrow is not installed.
    """
    return with_label(path, partial(read_parquet, path), label)


def read_parquet(path: str | os.PathLike[str], choose: Choice, hint: str = "") -> DataTable:
    """Read the columns selected by `choose`: numbers, or texts if the choice allows them.

    Raises UsageError without pyarrow; for a missing or damaged file; for a column of other types; and, with the row
    counted from 0, for an empty cell or a number that is not finite.
    """
    require_extra("pyarrow", "parquet", f"{path}: Parquet")
    import pyarrow
    import pyarrow.parquet

    require_file(path)
    if not Path(path).exists():
        raise UsageError(f"{path}: no such file")
    try:
        with pyarrow.parquet.ParquetFile(Path(path), page_checksum_verification=True) as file:
            index = index_columns(file.schema_arrow)
            names = [name for name in file.schema_arrow.names if name not in index]
            wanted, may_name = choose(names)
            require_columns(path, names, wanted)
            if file.metadata.num_rows == 0:
                raise UsageError(f"{path}: the dataset is empty: expected a row")
            read = file.read(columns=list(wanted), use_threads=False)
            if read.num_columns != len(wanted):
                raise UsageError(f"{path}: a column of several values each is not a column of numbers")
            if read.num_rows != file.metadata.num_rows:
                raise UsageError(f"{path}: has {read.num_rows} rows, but says that it has {file.metadata.num_rows}")
            return columns_table(path, get_columns(read), lambda _: (wanted, may_name), hint)
    except UsageError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0][:300]
        raise UsageError(f"{path}: cannot be read as Parquet: {first or type(error).__name__}") from error


def read_table(path: str | os.PathLike[str], choose: Choice, hint: str = "") -> DataTable:
    """Read columns of a .csv, .tsv or .parquet file. `hint` ends the error about a name in a column of numbers.

    Raises UsageError, naming file, row and column.
    """
    if suffix_of(path) == ".parquet":
        return read_parquet(path, choose, hint)
    return read_csv(path, choose, hint=hint)
