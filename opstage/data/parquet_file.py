"""Read tables from Parquet files, with pyarrow (extra `parquet`)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..ops.errors import UsageError
from ..ops.tracebacks import called_by_users
from ..ops.untrusted import brief
from ..readable import require_file
from .dataset import Dataset
from .table import Choice, DataTable, Named, require_columns, with_label


@called_by_users
def from_parquet(path: str | os.PathLike[str], *, label: str | int | None = None) -> Dataset:
    """Read x: float64 (rows, columns - 1), all columns but one; y: (rows,), the column `label`; see `from_csv`.

    Raises UsageError as `read_parquet` does, and if no column, or more than one, can be the label.

    Raises:
        UsageError: a file that is missing, damaged or no Parquet; no such column; no pyarrow.
    """
    return with_label(path, lambda choose: read_parquet(path, choose), label)


def read_parquet(path: str | os.PathLike[str], choose: Choice, hint: str = "") -> DataTable:
    """Read the columns selected by `choose`: numbers, or texts if the choice allows them.

    Raises UsageError without pyarrow; for a missing or damaged file; for a column of other types; and, with the row
    counted from 0, for an empty cell or a number that is not finite.
    """
    if find_spec("pyarrow") is None:
        raise UsageError(f"{path}: Parquet needs pyarrow, which is not installed; pip install 'opstage[parquet]'")
    import pyarrow
    import pyarrow.parquet

    require_file(path)
    if not Path(path).exists():
        raise UsageError(f"{path}: no such file")
    try:
        with pyarrow.parquet.ParquetFile(Path(path), page_checksum_verification=True) as file:
            names = list(file.schema_arrow.names)
            wanted, may_name = choose(names)
            require_columns(path, names, wanted)
            if file.metadata.num_rows == 0:
                raise UsageError(f"{path}: the dataset is empty: it has no row")
            read = file.read(columns=list(wanted), use_threads=False)
            if read.num_columns != len(wanted):
                raise UsageError(f"{path}: a column of several values each is not a column of numbers")
            if read.num_rows != file.metadata.num_rows:
                raise UsageError(f"{path}: has {read.num_rows} rows, but says that it has {file.metadata.num_rows}")
            columns = {name: _column(path, name, read.column(name), may_name.get(name), hint) for name in wanted}
    except UsageError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0][:300]
        raise UsageError(f"{path}: cannot be read as Parquet: {first or type(error).__name__}") from error
    return DataTable(str(path), columns, lambda row: f"row {row}")


def _column(path: str | os.PathLike[str], name: str, column: Any, what: Named | None, hint: str) -> Any:
    from pyarrow import compute, types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UsageError(f"{path}: row {row}: column {name} is empty")
    if types.is_string(kind) or types.is_large_string(kind):
        texts = [text.strip() for text in column.to_pylist()]
        if what is None:
            raise UsageError(f"{path}: row 0: column {name} is {brief(texts[0])}; expected a finite number{hint}")
        if "" in texts:
            raise UsageError(f"{path}: row {texts.index('')}: column {name} is empty; expected the name of a {what}")
        return texts
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        raise UsageError(f"{path}: column {name} holds {brief(str(column.type))}; expected numbers")
    if types.is_integer(kind):
        limits = compute.min_max(column.cast(kind)).as_py()
        if limits["min"] is None:
            raise UsageError(f"{path}: column {name} has no number")
        if max(abs(limits["min"]), abs(limits["max"])) > 2**53:
            raise UsageError(f"{path}: column {name} holds integers beyond 2**53, which no float holds exactly")
    values = column.cast(kind).to_numpy().astype(np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise UsageError(f"{path}: row {row}: column {name} is {values[row]}; expected a finite number")
    return values
