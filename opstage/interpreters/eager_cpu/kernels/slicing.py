"""NumPy kernels: tensors joined, cut and padded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.slicing import CONCAT, PAD, SLICE, STACK
from ....ops.primitive import Primitive
from ...host import number

Array = npt.NDArray[Any]


def concat(*xs: Array, axis: int) -> Array:
    return np.concatenate(xs, axis=axis)


def stack(*xs: Array, axis: int) -> Array:
    return np.stack(xs, axis=axis)


def _cells(axis: int, start: int, count: int, step: int) -> tuple[slice, ...]:
    """Return the index of `count` cells from `start` along `axis`, with a step."""
    stop = start + (count - 1) * step + 1 if count else start
    return (slice(None),) * axis + (slice(start, stop, step),)


def take_slice(x: Array, axis: int, start: int, length: int, step: int) -> Array:
    return x[_cells(axis, start, length, step)]


def pad(x: Array, padding: tuple[tuple[int, int], ...], value: Any, interior: tuple[int, ...]) -> Array:
    sizes = [
        before + size + max(size - 1, 0) * between + after
        for size, (before, after), between in zip(x.shape, padding, interior)
    ]
    out = np.full(sizes, number(value, x.dtype), dtype=x.dtype)
    hole = out
    for axis, (size, (before, _), between) in enumerate(zip(x.shape, padding, interior)):
        hole = hole[_cells(axis, before, size, between + 1)]
    hole[...] = x
    return out


KERNELS: dict[Primitive, Callable[..., Any]] = {CONCAT: concat, STACK: stack, SLICE: take_slice, PAD: pad}

EXACT_KERNELS = KERNELS
