"""Arrays in files whose rows are read when used, for data larger than memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError

Array: TypeAlias = "npt.NDArray[Any]"

MAPPED_FROM = 64 * 2**20
"""From this many bytes on, a .npy file is memory-mapped."""

_PIECE = 16 * 2**20


@final
class RowView:
    """A lazy view of rows of an array, read and transformed when indexed: `view[3:5]`, `view[indices]` are arrays.

    `change` maps an array of rows to one with as many rows; `np.asarray(view)` reads all.
    """

    __slots__ = ("_base", "_change", "_rows", "dtype", "shape")

    def __init__(
        self, base: Array, rows: npt.NDArray[np.int64] | None = None, change: Callable[[Array], Array] | None = None
    ):
        self._base = base
        self._rows = rows
        self._change = change
        sample = np.asarray(base[:1]) if change is None else change(np.asarray(base[:1]))
        self.dtype = sample.dtype
        self.shape: tuple[int, ...] = (len(base) if rows is None else len(rows), *sample.shape[1:])

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
        found = np.asarray(self._base[key if self._rows is None else self._rows[key]])
        return found if self._change is None else self._change(found)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self[:], dtype)

    def take(self, rows: npt.NDArray[np.int64]) -> RowView:
        """Return a view of these rows; nothing is read."""
        return RowView(self._base, rows if self._rows is None else self._rows[rows], self._change)

    def then(self, change: Callable[[Array], Array]) -> RowView:
        """Return a view of the same rows with another transformation applied."""
        before = self._change
        return RowView(self._base, self._rows, change if before is None else lambda rows: change(before(rows)))


def is_mapped(array: Any) -> bool:
    """Whether an array is in a file and read when used."""
    return isinstance(array, (RowView, np.memmap))


def row_view(array: Any) -> RowView:
    """Return a view of an array in a file."""
    return array if isinstance(array, RowView) else RowView(array)


def pieces(array: Any) -> Iterator[tuple[int, Array]]:
    """Yield (first row, rows) of an array, a few megabytes at a time."""
    row = max(1, array.nbytes // max(1, len(array)))
    step = max(1, _PIECE // row)
    for start in range(0, len(array), step):
        yield start, np.asarray(array[start : start + step])


def map_npy(path: str | os.PathLike[str]) -> Array:
    """Return the array of a .npy file, read if small, else memory-mapped. Raises UsageError, naming the file."""
    from .numpy_file import npy_layout, read_npy

    if not os.path.isfile(path) or os.path.getsize(path) < MAPPED_FROM:
        return read_npy(path)
    (shape, dtype), fortran, start = npy_layout(path)
    try:
        return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be mapped: {error}") from error
