"""Windows of convolutions and pools: zero padding, and the cells that the windows along an axis cover."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Sizes = tuple[int, ...]
Reach = tuple[slice, slice]


def zeros(shape: Sizes, dtype: np.dtype[Any]) -> Array:
    """Return zeros to accumulate into: fractions if the dtype is exact."""
    return np.full(shape, Fraction(0), dtype=dtype) if dtype.kind == "O" else np.zeros(shape, dtype)


def window_counts(spatial: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """Return the number of windows along each axis."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in zip(spatial, kernel, stride, padding, dilation)
    )


def reach(offset: int, cells: int, windows: int, stride: int, padding: int) -> Reach:
    """Return the windows along an axis whose cell `offset` is not padding, and those cells."""
    first = max(0, -((offset - padding) // stride))
    last = min(windows - 1, (cells - 1 + padding - offset) // stride)
    if last < first:
        return slice(0, 0), slice(0, 0)
    start = first * stride + offset - padding
    return slice(first, last + 1), slice(start, start + (last - first) * stride + 1, stride)


def reaches(
    spatial: Sizes, counts: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
    """Yield for each cell of the kernel, in row-major order, the windows in which it is not padding, and those
    cells."""
    along = [
        [reach(j * d, n, count, s, p) for j in range(k)]
        for n, count, k, s, p, d in zip(spatial, counts, kernel, stride, padding, dilation)
    ]
    for axes in product(*along):
        yield (..., *(windows for windows, _ in axes)), (..., *(cells for _, cells in axes))
