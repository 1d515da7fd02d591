"""Datasets: named arrays with one row per example, and stratified splitting."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..ops.array_conversion import NotAnArrayError, column_names, is_table
from ..ops.errors import UsageError, brief, nearest
from ..ops.splitmix import draw_site, permutation, require_seed, stream_key
from ..ops.static_arguments import plain
from ..ops.tracebacks import called_by_users, constructed_by_users
from .memory_map import RowView, as_rows, is_mapped, pieces, row_view, watch

Array: TypeAlias = "npt.NDArray[Any]"

_SPLIT_SITE = draw_site((("opstage.split", 0),), 0)


@constructed_by_users
@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Arrays of equal length; row i of each belongs to example i. They are checked here and not copied.

    Lists, data frames and arrays of other libraries become arrays, by position: labels of an index have no meaning.
    Rows of memory-mapped files are read when they are used, and from 64 MiB on those of h5py and zarr as well.

    `origins` are the sources of the arrays, for error messages. Raises `UsageError`, with the origin, for an empty
    array, another length than the first, or a dtype other than float, integer or boolean. For a non-finite number the
    error names its row.

    `ordered` says whether the order of the arrays was requested. If it is a file's own, arrays are identified by name
    only: a training loop binds them to the arguments of its loss, and batches by position are an error.

    `classes` are the names of the classes that the labels number; None if labels are plain numbers.

    `columns` are, for each array, the names of its columns, if one of them was built from a table or is a data frame;
    else (). A run trained on them matches new data by these names.

    Raises:
        UsageError: no arrays; different numbers of rows; values that are not finite numbers.
    """

    names: tuple[str, ...]
    arrays: tuple[Array, ...]
    origins: tuple[str, ...] = ()
    ordered: bool = True
    classes: tuple[str, ...] | None = None
    columns: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.origins:
            object.__setattr__(self, "origins", self.names)
        if not len(self.names) == len(self.arrays) == len(self.origins) > 0:
            raise UsageError(
                f"a dataset needs at least one array, and a name and an origin for each, but has {len(self.arrays)} "
                f"arrays, {len(self.names)} names and {len(self.origins)} origins"
            )
        if self.columns and len(self.columns) != len(self.names):
            raise UsageError(f"a dataset has columns for {len(self.columns)} arrays, but {len(self.names)} arrays")
        if len(set(self.names)) != len(self.names):
            raise UsageError(f"the names of a dataset's arrays must differ, and these do not: {', '.join(self.names)}")
        given = self.arrays
        if not self.columns and any(map(is_table, given)):
            object.__setattr__(self, "columns", tuple(map(_column_names, self.names, given)))
        object.__setattr__(self, "arrays", tuple(map(_as_array, given, self.origins)))
        for value, array, origin in zip(given, self.arrays, self.origins):
            watch(array)
            self._check(array, origin, checked=isinstance(value, RowView))

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, name: str) -> Array:
        """Return the array called `name`. Raises UsageError, with the nearest name, if there is none."""
        if name not in self.names:
            raise UsageError(
                f"array {name!r} is missing{nearest(name, self.names)}; the dataset has {', '.join(self.names)}"
            )
        return self.arrays[self.names.index(name)]

    def take(self, rows: npt.NDArray[np.int64]) -> Dataset:
        """Return the dataset of these rows, in this order; rows of a memory-mapped array are read when used."""
        arrays: list[Any] = [row_view(array).take(rows) if is_mapped(array) else array[rows] for array in self.arrays]
        return replace(self, arrays=tuple(arrays))

    def only(self, *names: str) -> Dataset:
        """Return the dataset of the arrays in `names`, in that order."""
        if names == self.names and self.ordered:
            return self
        arrays = tuple(self[name] for name in names)
        origins = tuple(self.origins[self.names.index(name)] for name in names)
        columns = tuple(self.columns[self.names.index(name)] for name in names) if self.columns else ()
        return Dataset(names, arrays, origins, classes=self.classes, columns=columns)

    def _check(self, array: Array, origin: str, *, checked: bool) -> None:
        """`checked` says that the rows are a view of an array that was checked."""
        if array.dtype.kind not in "fiub":
            first = plain(array.flat[0]) if array.dtype.kind in "UOT" and array.size else None
            holds = f", not {brief(first)}" if first is not None else ""
            cure = "; names of classes are numbered in data frames and tables" if isinstance(first, str) else ""
            raise UsageError(
                f"{origin}: holds {array.dtype} values; expected floats, integers or booleans{holds}{cure}"
            )
        if array.ndim == 0:
            raise UsageError(f"{origin}: is a single number; expected an array with one row per example")
        if len(array) == 0:
            raise UsageError(f"{origin}: the dataset is empty (shape {array.shape})")
        if len(array) != len(self):
            raise UsageError(f"{origin}: has {len(array)} rows but {self.origins[0]} has {len(self)}")
        if array.dtype.kind != "f" or checked:
            return
        for start, rows in pieces(array) if is_mapped(array) else [(0, array)]:
            finite = np.isfinite(rows)
            if not finite.all():
                place = np.argwhere(~finite)[0]
                row, value = start + place[0], rows[tuple(place)]
                raise UsageError(f"{origin}: row {row} holds {value} (rows are counted from 0); fix or drop the row")


@called_by_users
def from_arrays(**arrays: npt.ArrayLike) -> Dataset:
    """Return a dataset of the given arrays and names: `from_arrays(x=images, y=labels)`.

    Raises:
        UsageError: different numbers of rows; a value that is not an array of numbers.
    """
    given: tuple[Any, ...] = tuple(arrays.values())
    return Dataset(tuple(arrays), given)


@called_by_users
def train_test_split(
    dataset: Dataset, *, test: float = 0.2, seed: int = 0, stratify: str | None = "y"
) -> tuple[Dataset, Dataset]:
    """(train, test): round(test * n) rows, drawn by `seed`, are held out; both parts keep the order of the rows.

    Each value of the integer array `stratify` has its proportional share of the held-out rows, rounded by the largest
    remainders; with None the rows are drawn from all. Raises `UsageError` where a part would be empty.

    Raises:
        UsageError: a part without rows; labels that cannot be stratified by.
    """
    require_seed(seed)
    rows = len(dataset)
    held_out = round(test * rows) if 0 < test < 1 else 0
    if not 0 < held_out < rows:
        raise UsageError(f"test={test} of {rows} rows leaves one part empty; expected a fraction between 0 and 1")
    order = permutation(stream_key(seed, 0, _SPLIT_SITE), rows)
    is_test = np.zeros(rows, np.bool_)
    if stratify is None:
        is_test[order[:held_out]] = True
    else:
        labels = dataset[stratify]
        if labels.ndim != 1 or labels.dtype.kind not in "iub":
            origin = dataset.origins[dataset.names.index(stratify)]
            raise UsageError(
                f"{origin}: cannot stratify by {stratify}: expected integer labels of shape ({rows},), "
                f"not {labels.dtype} of shape {labels.shape}"
            )
        classes, counts = np.unique(labels, return_counts=True)
        drawn = labels[order]
        for label, share in zip(classes, _shares(counts, held_out), strict=True):
            is_test[order[drawn == label][:share]] = True
    return dataset.take(np.flatnonzero(~is_test)), dataset.take(np.flatnonzero(is_test))


def _column_names(name: str, value: Any) -> tuple[str, ...]:
    """Return the names of a table's columns, or that of a column alone."""
    if is_table(value):
        return column_names(value)
    own = getattr(value, "name", None)
    return (own if isinstance(own, str) and own else name,)


def _as_array(value: Any, origin: str) -> Array:
    """Convert to an array or a view of rows. Raises UsageError, with the row, if rows of a list differ in shape."""
    try:
        found: Array = as_rows(value)
        return found
    except NotAnArrayError as error:
        shapes = []
        for row, each in enumerate(value if isinstance(value, (list, tuple)) else ()):
            try:
                shapes.append(np.shape(each))
            except ValueError:
                raise UsageError(f"{origin}: row {row} (counted from 0): its parts differ in shape") from None
            if shapes[row] != shapes[0]:
                raise UsageError(
                    f"{origin}: row {row} is of shape {shapes[row]}, but row 0 of {shapes[0]} (rows are counted from "
                    "0); all rows must have one shape"
                ) from None
        raise UsageError(f"{origin}: is not an array: {error.reason}") from None
    except UsageError as error:
        raise UsageError(f"{origin}: {error}") from None


def _shares(counts: npt.NDArray[np.int64], total: int) -> npt.NDArray[np.int64]:
    """Divide `total` in proportion to `counts`: floors, plus one for the largest remainders (the first on a tie)."""
    shares: npt.NDArray[np.int64]
    shares, remainders = np.divmod(counts * total, counts.sum())
    shares[np.argsort(-remainders, kind="stable")[: total - shares.sum()]] += 1
    return shares
