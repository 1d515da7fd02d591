"""`OwnRows`: an array of a batch of which a process has its own rows alone; other processes have the others."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..ops.errors import UsageError

Array = npt.NDArray[Any]


@final
class OwnRows:
    """An array of `shape` along whose first axis only some rows are here.

    rows    the numbers of those, ascending
    held    they themselves, in that order

    Nothing stands for the others: whoever asks for one, or for the whole as an array, gets a UsageError.
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
        """The rows from `start` on, before `stop`. Raises UsageError where one of them is not here."""
        first = int(np.searchsorted(self.rows, start))
        found = self.rows[first : first + stop - start]
        if len(found) != stop - start or (len(found) and int(found[-1]) != stop - 1):
            raise self._missing(f"rows {start} to {stop - 1}")
        return self.held[first : first + stop - start]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        raise self._missing("the whole")

    def _missing(self, what: str) -> UsageError:
        return UsageError(
            f"of a batch of {len(self)} rows this process has {len(self.rows)}, those of its ranks, and {what} was "
            "asked for; the other processes have the others"
        )
