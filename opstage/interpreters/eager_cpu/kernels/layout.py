"""NumPy kernels: shapes and the order of axes. Results are views."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.layout import (
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
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = dict(KERNELS)
