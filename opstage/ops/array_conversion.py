"""Arrays from users: everything like an array or a table becomes a NumPy array here, and only here."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .errors import OpstageError, UsageError, a_type, brief, require_extra

Array: TypeAlias = "npt.NDArray[Any]"

_NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating, Fraction)
_EXACT = 2**53
_MISSING = "row {} is missing (rows are counted from 0); fill or drop such rows"
_TABLE_PROTOCOLS = ("__dataframe__", "__arrow_c_stream__", "__arrow_c_array__")
_READERS = ("toarray", "todense", "collect", "compute")
"""Methods by which other libraries turn what is no array in memory into one."""


class NotAnArrayError(UsageError):
    """A value that NumPy cannot convert to an array, such as ragged lists, with the reason."""

    def __init__(self, message: str, reason: str = ""):
        super().__init__(message)
        self.reason = reason


def as_numpy(value: Any) -> Array:
    """Return a value as a plain NumPy array in the machine's byte order, without a copy if it is one.

    Accepts arrays of any library with `__array__`, `__dlpack__` or the Arrow C stream, and numbers in lists. Rows are
    taken by position: the labels of a pandas index have no meaning here. A table becomes (rows, columns). An array of
    Python objects that are all numbers, or all arrays of one shape, becomes an array of numbers.

    Raises:
        UsageError: entries that are masked or missing; sparse matrices, generators and other values that are not
            arrays; a tensor that requires a gradient, which would be lost; a table with a column of anything but
            numbers.
        NotAnArrayError: ragged lists.
    """
    if type(value) is np.ndarray and value.dtype.isnative and value.dtype.kind in "fiub":
        return value
    if is_table(value):
        return _stacked(get_columns(value))
    array = _plain(value)
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return _of_objects(array, value) if array.dtype.kind == "O" else array


def is_table(value: Any) -> bool:
    """Return whether a value has named columns: a data frame, an Arrow table or a structured array."""
    if isinstance(value, np.ndarray):
        return value.dtype.names is not None
    kind = type(value)
    shared = any(hasattr(kind, name) for name in _TABLE_PROTOCOLS)
    return shared and (hasattr(kind, "columns") or hasattr(kind, "column_names") or not hasattr(kind, "__array__"))


def get_columns(table: Any) -> dict[str, Any]:
    """Return the columns of a table by name, as they are. Raises UsageError if two have one name."""
    table = _with_columns(table)
    return {name: table[key] for name, key in _keys(table).items()}


def column_names(table: Any) -> tuple[str, ...]:
    """Return the names of `get_columns`."""
    return tuple(_keys(_with_columns(table)))


def _with_columns(table: Any) -> Any:
    """Return a table whose columns are `table[key]`: other things with the Arrow C stream become Arrow tables."""
    if hasattr(type(table), "__array__"):
        return table
    require_extra("pyarrow", "parquet", a_type(table))
    import pyarrow

    return pyarrow.table(table)


def _keys(table: Any) -> dict[str, Any]:
    keys = table.dtype.names if isinstance(table, np.ndarray) else getattr(table, "column_names", None) or table.columns
    index = index_columns(getattr(table, "schema", None))
    found: dict[str, Any] = {}
    for key in keys:
        if str(key) in found:
            raise UsageError(f"two columns are called {str(key)!r}; rename one")
        if key not in index:
            found[str(key)] = key
    return found


def index_columns(schema: Any) -> set[Any]:
    """Return the columns of an Arrow table that hold the index of a pandas frame, such as `__index_level_0__`, and so
    are none of the frame's own."""
    about = getattr(schema, "pandas_metadata", None)
    index = about.get("index_columns", ()) if isinstance(about, dict) else ()
    return {name for name in index if isinstance(name, str)}


def _stacked(columns: Mapping[str, Any]) -> Array:
    """Return columns of numbers side by side, (rows, columns), in a dtype that holds all of them exactly."""
    if not columns:
        raise UsageError("expected a table with columns, got one without")
    arrays = {}
    for name, column in columns.items():
        try:
            array = arrays[name] = as_numpy(column)
        except UsageError as error:
            raise UsageError(f"column {name}: {error}") from None
        if array.ndim != 1 or array.dtype.kind not in "fiub":
            holds = brief(array[0]) if array.dtype.kind in "UO" and array.size else f"{array.dtype} of {array.shape}"
            raise UsageError(f"column {name} holds {holds}; expected a number in each row")
    dtype = np.result_type(*arrays.values())
    for name, array in arrays.items():
        if dtype.kind == "f" and array.dtype.kind in "iu" and ((array > _EXACT) | (array < -_EXACT)).any():
            raise UsageError(f"column {name} holds integers beyond 2**53, which no float holds exactly")
    return np.column_stack([array.astype(dtype, copy=False) for array in arrays.values()])


def _plain(value: Any) -> Array:
    """Return `np.asarray(value)` of a value that is not a table; what NumPy would drop or misread is an error."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise UsageError("a masked array has entries that are masked; fill them first: x.filled(…)")
    if isinstance(value, (list, tuple)):
        value = _entries(value)
    elif not isinstance(value, np.ndarray):
        _require_whole(value)
    try:
        if hasattr(type(value), "__dlpack__") and not hasattr(type(value), "__array__"):
            return np.from_dlpack(value)
        return np.asarray(value)
    except OpstageError:
        raise
    except (RuntimeError, TypeError) as error:
        if not hasattr(value, "__array__"):
            raise
        kind = f"{type(value).__module__.partition('.')[0]}'s {type(value).__name__}"
        raise UsageError(f"{kind} gives no NumPy array: {error}") from None
    except ValueError as error:
        raise NotAnArrayError(f"{brief(value)} is not an array: {error}", str(error)) from None


def _entries(value: Any, depth: int = 64) -> Any:
    """Return a list with arrays in it, in lists in it too, as one of NumPy arrays; `depth` is the most of NumPy."""
    if not depth or not any(
        issubclass(kind, (list, tuple)) or hasattr(kind, "__array__") for kind in set(map(type, value))
    ):
        return value

    def entry(each: Any) -> Any:
        if isinstance(each, (list, tuple)):
            return _entries(each, depth - 1)
        return as_numpy(each) if hasattr(each, "__array__") else each

    return [entry(each) for each in value]


def _require_whole(value: Any) -> None:
    """Raise UsageError, with the row, if an array of another library has missing entries: NumPy would make them nan,
    and floats of integers. nan itself is a number here."""
    name = next((name for name in ("isna", "is_null") if hasattr(type(value), name)), None)
    if name is None or isinstance(getattr(value, "dtype", None), np.dtype):
        return
    rows = np.flatnonzero(np.asarray(getattr(value, name)()))
    if rows.size:
        raise UsageError(_MISSING.format(rows[0]))


def _of_objects(array: Array, value: Any) -> Array:
    """Return an array of Python objects as one of numbers, if that is what they are."""
    if not array.ndim:
        method = next((f"x.{name}()" for name in _READERS if hasattr(value, name)), None)
        if method or (hasattr(value, "__iter__") and value is not array):
            cure = method or "list(x)"
            raise UsageError(f"a tensor must hold numbers; got an array of {type(value).__name__}; give {cure}")
        return array
    kinds = set(map(type, array.flat))
    nested = bool(kinds) and kinds <= {np.ndarray, list}
    if nested or all(issubclass(kind, _NUMBERS) for kind in kinds):
        try:
            return np.array(array.tolist())
        except ValueError as error:
            raise NotAnArrayError(f"{brief(value)} is not an array: {error}", str(error)) from None
    row = next((i for i, each in enumerate(array) if each is None or type(each).__name__ == "NAType"), None)
    if row is not None:
        raise UsageError(_MISSING.format(row))
    return array
