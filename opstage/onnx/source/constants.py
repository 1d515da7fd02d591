"""Constants that are too large for the source, stored in the weights file."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from ...interpreters.graph.notation import digest

MOST_INLINE = 16
"""The largest number of elements of a constant in the source."""


def is_small(array: npt.NDArray[Any]) -> bool:
    """Whether a constant is written into the source."""
    return array.size <= MOST_INLINE and (array.size > 0 or array.ndim == 1)


class LargeConstants:
    """Large constants by name, with each array stored once.

    root   the prefix of their names, which no name in `taken` has
    """

    def __init__(self, taken: Collection[str]):
        self.root = "constant_"
        while any(name.startswith(self.root) for name in taken):
            self.root = f"own_{self.root}"
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._known: dict[str, str] = {}

    def name(self, array: npt.NDArray[Any]) -> str:
        """Return the name of a constant in the file; floats that float32 represents exactly are stored as such."""
        key = digest(array)
        if key not in self._known:
            self._known[key] = f"{self.root}{len(self._known) + 1}"
            narrow = array.astype(np.float32) if array.dtype == np.float64 else array
            same = array.dtype != np.float64 or np.array_equal(narrow.astype(np.float64), array, equal_nan=True)
            self.arrays[self._known[key]] = narrow if same else array
        return self._known[key]
