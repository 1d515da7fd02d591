"""Arrays in files whose rows are read when used, for data larger than memory."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..ops.array_conversion import as_numpy
from ..ops.errors import UsageError

Array: TypeAlias = "npt.NDArray[Any]"

MAPPED_FROM = 64 * 2**20
"""From this many bytes on, a .npy file is memory-mapped."""

_PIECE = 16 * 2**20

_WATCH = "_opstage_watch"


@final
class FileWatch:
    """The file of a mapped array, which must not change while it is used.

    Rows are read at any time of a run: of a file that is written to meanwhile some would be old and some new, and to
    read behind the end of one that became shorter ends the process. A file that is deleted, or replaced by renaming
    another, keeps its content for processes that have mapped it.
    """

    def __init__(self, path: str):
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)  # as long as the array is mapped
        self._began = self._look()

    def _look(self) -> tuple[int, int]:
        now = os.fstat(self._file)
        return now.st_size, now.st_mtime_ns

    def require_unchanged(self) -> None:
        """Raise UsageError if the file was written to since it was mapped."""
        if self._look() != self._began:
            raise UsageError(
                f"{self.path}: has changed while it was used, and its rows are read when they are used; write another "
                "file, or rename it over this one, and start again"
            )


def watch(array: Any) -> FileWatch | None:
    """Return the watch of the file that an array is mapped from, or None if it is in memory.

    It is made by the first call, and kept with the mapping: so what is checked then is what is read later.
    """
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    if array is None:
        return None
    inner: Any = array
    while isinstance(inner.base, np.memmap):
        inner = inner.base
    found: FileWatch | None = getattr(inner, _WATCH, None)
    if found is None and inner.filename is not None:
        try:
            found = FileWatch(str(inner.filename))
        except OSError:  # it was deleted, and so stays what it was
            return None
        setattr(inner, _WATCH, found)
    return found


def as_rows(value: Any) -> Any:
    """Return a value as an array, or as a view whose rows are read when used: of a memory-mapped file, or of a large
    array in a file or store of another library, such as h5py's and zarr's.

    Raises UsageError as `as_numpy` does.
    """
    if isinstance(value, RowView) or (isinstance(value, np.memmap) and value.dtype.isnative):
        return value
    return RowView(value) if isinstance(value, np.memmap) or _is_stored(value) else as_numpy(value)


def _is_stored(value: Any) -> bool:
    """Return whether a value is a large array of numbers that another library reads in chunks."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", ())
    if not (hasattr(value, "chunks") and isinstance(dtype, np.dtype) and dtype.kind in "fiub" and shape):
        return False
    return bool(math.prod(shape) * dtype.itemsize >= MAPPED_FROM)


def read_rows(array: Any, rows: slice | npt.NDArray[Any]) -> Array:
    """Return rows of an array: those of a file in memory, others as NumPy gives them.

    Raises UsageError if the file has changed since it was mapped.
    """
    if isinstance(array, RowView):
        return array[rows]
    watched = watch(array)
    return np.asarray(array[rows]) if watched is None else _read(array, rows, watched)


def _read(array: Array, rows: slice | npt.NDArray[Any], watched: FileWatch) -> Array:
    watched.require_unchanged()
    found = np.array(as_numpy(array[rows]))
    watched.require_unchanged()  # or some are rows of another file
    return found


def _read_stored(base: Any, rows: Any) -> Array:
    """Return rows of another library's array. h5py reads rising indices alone, and blocks much faster than those."""
    each, place = np.unique(rows, return_inverse=True)
    if len(each) and each[-1] - each[0] + 1 == len(each):
        return as_numpy(base[int(each[0]) : int(each[-1]) + 1])[place]
    return as_numpy(base[each])[place]


@final
class RowView:
    """A lazy view of rows of an array, read and transformed when indexed: `view[3:5]`, `view[indices]` are arrays.

    `change` maps an array of rows to one with as many rows; `np.asarray(view)` reads all. Raises UsageError where the
    file of the array has changed since the view was made.
    """

    __slots__ = ("_base", "_change", "_rows", "_watch", "dtype", "shape")

    def __init__(
        self,
        base: Array,
        rows: npt.NDArray[np.int64] | None = None,
        change: Callable[[Array], Array] | None = None,
        watched: FileWatch | None = None,
    ):
        self._base = base
        self._rows = rows if rows is not None or isinstance(base, np.ndarray) else np.arange(base.shape[0])
        self._change = change
        self._watch = watch(base) if watched is None else watched
        sample = self._read(slice(0, 1)) if change is None else change(self._read(slice(0, 1)))
        self.dtype = sample.dtype
        self.shape: tuple[int, ...] = (base.shape[0] if rows is None else len(rows), *sample.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def __getitem__(self, key: SupportsIndex | slice | npt.NDArray[Any]) -> Array:
        if not isinstance(key, (slice, np.ndarray)):
            at = range(len(self))[key]
            row: Array = self[at : at + 1][0]
            return row
        found = self._read(key)
        return found if self._change is None else self._change(found)

    def _read(self, key: slice | npt.NDArray[Any]) -> Array:
        """Return rows of the base, those of a file in memory."""
        rows = key if self._rows is None else self._rows[key]
        if not isinstance(self._base, np.ndarray):
            return _read_stored(self._base, rows)
        return as_numpy(self._base[rows]) if self._watch is None else _read(self._base, rows, self._watch)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)

    def take(self, rows: npt.NDArray[np.int64]) -> RowView:
        """Return a view of these rows; nothing is read."""
        return RowView(self._base, rows if self._rows is None else self._rows[rows], self._change, self._watch)

    def then(self, change: Callable[[Array], Array]) -> RowView:
        """Return a view of the same rows with another transformation applied."""
        before = self._change
        both = change if before is None else lambda rows: change(before(rows))
        return RowView(self._base, self._rows, both, self._watch)


def is_mapped(array: Any) -> bool:
    """Return whether an array is in a file and read when used."""
    return isinstance(array, (RowView, np.memmap))


def row_view(array: Any) -> RowView:
    """Return a view of an array in a file."""
    return array if isinstance(array, RowView) else RowView(array)


def pieces(array: Any) -> Iterator[tuple[int, Array]]:
    """Yield (first row, rows) of an array, a few megabytes at a time."""
    row = max(1, array.nbytes // max(1, len(array)))
    step = max(1, _PIECE // row)
    for start in range(0, len(array), step):
        yield start, read_rows(array, slice(start, start + step))


def map_npy(path: str | os.PathLike[str]) -> Array:
    """Return the array of a .npy file, read if small, else memory-mapped. Raises UsageError, naming the file."""
    from .array_files import npy_layout, read_npy

    if not os.path.isfile(path) or os.path.getsize(path) < MAPPED_FROM:
        return read_npy(path)
    (shape, dtype), fortran, start = npy_layout(path)
    try:
        array = np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be mapped: {error}") from error
    watch(array)
    return array
