"""`OwnRows`: a batch array of which a process holds only its own rows; other processes hold the others."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError

Array = npt.NDArray[Any]


@final
class OwnRows:
    """An array of `shape`, of which only some rows along the first axis are stored.

    rows    their indices, ascending
    held    the stored rows, in that order

    Accessing another row, or converting the whole to an array, raises UsageError.
    """

    __slots__ = ("shape", "dtype", "rows", "held")

    def __init__(self, count: int, rows: npt.NDArray[np.int64], held: Array):
        assert len(rows) == len(held)
        self.shape: tuple[int, ...] = (count, *held.shape[1:])
        self.dtype = held.dtype
        self.rows = rows
        self.held = held

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def part(self, start: int, stop: int) -> Array:
        """Return rows `start` to `stop` (exclusive). Raises UsageError if one of them is not stored."""
        first = int(np.searchsorted(self.rows, start))
        found = self.rows[first : first + stop - start]
        if len(found) != stop - start or (len(found) and int(found[-1]) != stop - 1):
            raise self._missing(f"rows {start} to {stop - 1}")
        return self.held[first : first + stop - start]

    def whole_index(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in the whole array of the element at `index` of `held`."""
        return (int(self.rows[index[0]]), *index[1:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise self._missing("the whole")

    def _missing(self, what: str) -> UsageError:
        return UsageError(
            f"of a batch of {len(self)} rows this process has {len(self.rows)}, those of its ranks, and {what} was "
            "asked for; the other processes have the others"
        )
