"""Arrays that a program holds: numbers that fill all but a band or a block of them, as masks do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .fact import Value
from .regions import NONE, NOWHERE, Difference, Region, region

_MOST_ELEMENTS = 1 << 24
_MOST_AXES = 4


def known_numbers(array: npt.NDArray[Any], first: int) -> tuple[tuple[Value, Region], ...]:
    """Outside of which regions an array is which number; its axes are the indices from `first` on."""
    if array.dtype.kind not in "fib" or not 0 < array.size <= _MOST_ELEMENTS or array.ndim > _MOST_AXES:
        return ()
    candidates: list[Value] = [False, True] if array.dtype.kind == "b" else [0, 1, -np.inf]
    corner = array.flat[0].item()
    if corner == corner and corner not in candidates:
        candidates.append(corner)
    found: list[tuple[Value, Region]] = []
    for value in candidates:
        rest = array != value
        if not rest.any():
            found.append((value, NOWHERE))
        elif array.ndim and not rest.all():
            where = _around(rest, first)
            if where is not None:
                found.append((value, where))
    return tuple(found)


def _around(mask: npt.NDArray[np.bool_], first: int) -> Region | None:
    """Differences of indices, and bounds of each, that hold wherever the mask does; None if there are none."""
    places = np.nonzero(mask)
    differences: list[Difference] = []
    for a, (i, size) in enumerate(zip(places, mask.shape)):
        low, high = int(i.min()), int(i.max())
        if high < size - 1:
            differences.append(Difference(first + a, NONE, high))
        if low > 0:
            differences.append(Difference(NONE, first + a, -low))
    for a, i in enumerate(places):
        for b, j in enumerate(places[:a]):
            gap = i - j
            low, high = int(gap.min()), int(gap.max())
            if high < mask.shape[a] - 1:
                differences.append(Difference(first + a, first + b, high))
            if low > 1 - mask.shape[b]:
                differences.append(Difference(first + b, first + a, -low))
    return region(*differences) if differences else None
