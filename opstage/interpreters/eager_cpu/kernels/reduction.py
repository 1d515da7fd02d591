"""Kernels: reductions along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.primitive import Primitive
from ....ops.reduction import ARGMAX, REDUCE_MAX, REDUCE_MEAN, REDUCE_SUM, SUM
from ....ops.types import EXACT

# Reductions -----------------------------------------------------------------------------------------------------------

Array = npt.NDArray[Any]
Axes = tuple[int, ...]

_add: Callable[..., Array] = np.add.reduce
_max: Callable[..., Array] = np.maximum.reduce

_LEAST_FOR_BLAS = 1024  # elements; below, the call costs more than the loop
_BLOCK = 128  # rows added in one running sum; sums of blocks are added the same way, so rounding grows with log n
_SHORTEST_ROW = 8
_LONGEST_ROW = 4096  # above, NumPy's pairwise sum of a row is as fast and more accurate


def reduce_sum(x: Array, axes: Axes, keepdims: bool) -> Array:
    """Sum over leading or trailing axes by products with a vector of ones: 2 to 15 times as fast as NumPy's loop.

    That loop also adds all rows to one running sum, which in float32 loses digits if there are many; blocks avoid this.
    """
    kept = x.ndim - len(axes)
    if x.dtype.kind == "f" and x.size >= _LEAST_FOR_BLAS and kept and axes and x.flags.c_contiguous:
        if axes[-1] == len(axes) - 1:
            shape = x.shape[-kept:]
            total = _sum_of_rows(x.reshape(-1, math.prod(shape))).reshape(shape)
            return total.reshape((1,) * len(axes) + shape) if keepdims else total
        if axes[0] == kept:
            length = math.prod(x.shape[kept:])
            if length <= _LONGEST_ROW:
                total = np.matmul(x.reshape(-1, length), np.ones(length, x.dtype)).reshape(x.shape[:kept])
                return total.reshape(x.shape[:kept] + (1,) * len(axes)) if keepdims else total  # type: ignore[no-any-return]
    if x.dtype.kind == "f" and x.size >= _LEAST_FOR_BLAS and 0 < len(axes) < x.ndim:
        if axes == (x.ndim - 1,) and x.shape[-1] <= _SHORTEST_ROW:
            return _sum_of_columns(x, keepdims)
        return _sum_by_axes(x, axes, keepdims)
    return _add(x, axis=axes, keepdims=keepdims)


def _sum_by_axes(x: Array, axes: Axes, keepdims: bool) -> Array:
    """Sum with NumPy, which adds all rows to one running sum: so by runs of adjacent axes, and by blocks."""
    shape = tuple([1 if axis in axes else n for axis, n in enumerate(x.shape) if keepdims or axis not in axes])
    runs: list[list[int]] = []
    for axis in axes:
        if runs and runs[-1][-1] == axis - 1 and x.flags.c_contiguous:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    lengths = [math.prod(x.shape[axis] for axis in run) for run in runs]
    if max(lengths) <= 2 * _BLOCK and not (len(runs) == 1 and x.flags.c_contiguous):
        return _add(x, axis=axes, keepdims=keepdims)
    for run, length in zip(reversed(runs), reversed(lengths)):
        merged = x if len(run) == 1 else x.reshape(*x.shape[: run[0]], length, *x.shape[run[-1] + 1 :])
        x = _sum_axis(merged, run[0])
    return x.reshape(shape)


def _sum_axis(x: Array, axis: int) -> Array:
    """Sum along one axis, block by block; NumPy sums a contiguous row pairwise."""
    length = x.shape[axis]
    inner = math.prod(x.shape[axis + 1 :])
    if inner >= _SHORTEST_ROW and length * inner >= _LEAST_FOR_BLAS and x.flags.c_contiguous:
        return _sum_of_matrices(x.reshape(-1, length, inner)).reshape(x.shape[:axis] + x.shape[axis + 1 :])
    blocks = length // _BLOCK
    if blocks < 2 or x.strides[axis] == x.itemsize:
        return _add(x, axis=axis)
    whole, rest = np.split(x, [blocks * _BLOCK], axis)
    partial = _add(whole.reshape(*x.shape[:axis], blocks, _BLOCK, *x.shape[axis + 1 :]), axis=axis + 1)
    return np.add(_sum_axis(partial, axis), _add(rest, axis=axis))


def _sum_of_matrices(x: Array) -> Array:
    """Return Σⱼ x[i, j], block by block."""
    outer, rows, columns = x.shape
    blocks = rows // _BLOCK
    if blocks < 2:
        return np.matmul(np.ones(rows, x.dtype), x)  # type: ignore[no-any-return]
    whole = blocks * _BLOCK
    partial = np.matmul(np.ones(_BLOCK, x.dtype), x[:, :whole].reshape(outer, blocks, _BLOCK, columns))
    total = _sum_of_matrices(partial)
    return total if whole == rows else np.add(total, np.matmul(np.ones(rows - whole, x.dtype), x[:, whole:]))


def _sum_of_rows(x: Array) -> Array:
    """Return Σᵢ x[i] of a matrix, block by block."""
    rows, columns = x.shape
    blocks = rows // _BLOCK
    if blocks < 2:
        return np.matmul(np.ones(rows, x.dtype), x)  # type: ignore[no-any-return]
    whole = blocks * _BLOCK
    partial = np.matmul(np.ones((1, _BLOCK), x.dtype), x[:whole].reshape(blocks, _BLOCK, columns))
    total = _sum_of_rows(partial.reshape(blocks, columns))
    return total if whole == rows else np.add(total, np.matmul(np.ones(rows - whole, x.dtype), x[whole:]))


def _sum_of_columns(x: Array, keepdims: bool) -> Array:
    """Sum over a short last axis as whole arrays; NumPy would start a loop for each row."""
    total: Array = np.array(x[..., 0])
    for j in range(1, x.shape[-1]):
        total += x[..., j]
    return total[..., np.newaxis] if keepdims else total


def sum_all(x: Array) -> Array:
    return _add(x, axis=None)


def reduce_mean(x: Array, axes: Axes, keepdims: bool) -> Array:
    return np.divide(reduce_sum(x, axes, keepdims), math.prod([x.shape[axis] for axis in axes]))  # type: ignore[no-any-return]


def reduce_max(x: Array, axes: Axes, keepdims: bool) -> Array:
    return _max(x, axis=axes, keepdims=keepdims)


def argmax(x: Array, axis: int, keepdims: bool) -> Array:
    return np.argmax(x, axis=axis, keepdims=keepdims)  # type: ignore[no-any-return]


def exact_reduce_sum(x: Array, axes: Axes, keepdims: bool) -> Array:
    zero = Fraction(0) if x.dtype.kind == "O" else 0  # an empty sum of objects would be the int 0
    return _add(x, axis=axes, keepdims=keepdims, initial=zero)


# Finite operands ------------------------------------------------------------------------------------------------------


def only_numbers(*operands: npt.NDArray[Any]) -> bool:
    """Return whether the operands have neither nan nor infinity.

    Also returns False for numbers so large that their sum overflows; the caller then takes the slower path needlessly.
    """
    return all(x.dtype == EXACT or np.isfinite(np.add.reduce(x, axis=None)) for x in operands)


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Callable[..., Any]] = {
    SUM: sum_all,
    REDUCE_SUM: reduce_sum,
    REDUCE_MEAN: reduce_mean,
    REDUCE_MAX: reduce_max,
    ARGMAX: argmax,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {
    REDUCE_SUM: exact_reduce_sum,
    REDUCE_MAX: reduce_max,
    ARGMAX: argmax,
}
