"""Read tables from Parquet files, with pyarrow (extra `parquet`)."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from ..ops.arrays import columns_of, index_columns
from ..ops.errors import UsageError, require_extra
from ..ops.tracebacks import called_by_users
from ..readable import require_file
from .dataset import Dataset
from .table import Choice, DataTable, require_columns, table_of, with_label


@called_by_users
def from_parquet(path: str | os.PathLike[str], *, label: str | int | None = None) -> Dataset:
    """Read x: float64 (rows, columns - 1), all columns but one; y: (rows,), the column `label`; see `from_csv`.

    Raises UsageError as `read_parquet` does, and if no column, or more than one, can be the label.

    Raises:
        UsageError: a file that is missing, damaged or no Parquet; no such column; no pyarrow.
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
                raise UsageError(f"{path}: the dataset is empty: it has no row")
            read = file.read(columns=list(wanted), use_threads=False)
            if read.num_columns != len(wanted):
                raise UsageError(f"{path}: a column of several values each is not a column of numbers")
            if read.num_rows != file.metadata.num_rows:
                raise UsageError(f"{path}: has {read.num_rows} rows, but says that it has {file.metadata.num_rows}")
            return table_of(path, columns_of(read), lambda _: (wanted, may_name), hint)
    except UsageError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, KeyError, OverflowError, MemoryError, RuntimeError) as error:
        first = (str(error).splitlines() or [""])[0][:300]
        raise UsageError(f"{path}: cannot be read as Parquet: {first or type(error).__name__}") from error
