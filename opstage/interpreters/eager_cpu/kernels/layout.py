"""Kernels: layout and slices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.host_arrays import number
from ....ops.layout import (
    BROADCAST_TO,
    FLATTEN,
    PERMUTE,
    RESHAPE,
    SQUEEZE,
    SWAP_ADJACENT_AT_DEPTH,
    TRANSPOSE2D,
    TRANSPOSE3D_FIRST_TO_LAST,
    TRANSPOSE3D_LAST_TO_FIRST,
    TRANSPOSE3D_LAST_TWO,
    UNSQUEEZE,
)
from ....ops.primitive import Primitive
from ....ops.slicing import CONCAT, PAD, SLICE, STACK

# Views and copies -----------------------------------------------------------------------------------------------------

Array = npt.NDArray[Any]


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    return np.broadcast_to(x, shape)


def reshape(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(shape)


def flatten(x: Array, start: int, end: int) -> Array:
    merged = math.prod(x.shape[start : end + 1])
    return x.reshape((*x.shape[:start], merged, *x.shape[end + 1 :]))


def squeeze(x: Array, axes: tuple[int, ...]) -> Array:
    return x.reshape([d for axis, d in enumerate(x.shape) if axis not in axes])


def unsqueeze(x: Array, axis: int) -> Array:
    return x.reshape((*x.shape[:axis], 1, *x.shape[axis:]))


def permute(x: Array, axes: tuple[int, ...]) -> Array:
    return x.transpose(axes)


def swap_adjacent(x: Array, depth: int) -> Array:
    return x.swapaxes(depth, depth + 1)


# Slices ---------------------------------------------------------------------------------------------------------------


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


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Callable[..., Any]] = {
    BROADCAST_TO: broadcast_to,
    RESHAPE: reshape,
    FLATTEN: flatten,
    SQUEEZE: squeeze,
    UNSQUEEZE: unsqueeze,
    PERMUTE: permute,
    TRANSPOSE2D: lambda x: x.T,
    TRANSPOSE3D_FIRST_TO_LAST: lambda x: x.transpose(1, 2, 0),
    TRANSPOSE3D_LAST_TO_FIRST: lambda x: x.transpose(2, 0, 1),
    TRANSPOSE3D_LAST_TWO: lambda x: x.transpose(0, 2, 1),
    SWAP_ADJACENT_AT_DEPTH: swap_adjacent,
    CONCAT: concat,
    STACK: stack,
    SLICE: take_slice,
    PAD: pad,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
