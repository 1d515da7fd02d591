"""Kernels: layout, slices, and reading or adding to entries at indices."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.host_arrays import number, packed
from ....ops.index_checks import require_in_range
from ....ops.indexing import (
    GATHER_ROW,
    GATHER_ROWS,
    GATHER_SCALAR,
    GATHER_VEC,
    SCATTER_ADD_ROW,
    SCATTER_ADD_ROWS,
    SCATTER_ADD_SCALAR,
    SCATTER_ADD_VEC,
)
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
from ..loops import arrays as loops
from ..loops.arrays import integers

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


# Indexing -------------------------------------------------------------------------------------------------------------


def gather(op: str) -> Callable[..., Array]:
    def kernel(x: Array, idx: Array, mode: str) -> Array:
        if mode == "raise":
            require_in_range(op, x.shape, idx)
            out: Array = np.take(x, idx, axis=0)
            return out
        valid = (idx >= 0) & (idx < len(x))
        if not len(x):
            return np.full((*idx.shape, *x.shape[1:]), number(0, x.dtype), dtype=x.dtype)
        rows = np.take(x, np.where(valid, idx, 0), axis=0)
        zero = np.full((), number(0, x.dtype), dtype=x.dtype)
        return np.where(np.reshape(valid, idx.shape + (1,) * (x.ndim - 1)), rows, zero)

    return kernel


def scatter_add(op: str) -> Callable[..., Array]:
    def kernel(x: Array, v: Array, idx: Array, mode: str) -> Array:
        if mode == "raise":
            require_in_range(op, x.shape, idx)
        else:
            valid = (idx >= 0) & (idx < len(x))
            idx, v = idx[valid], v[valid]
        out = np.array(x, order="C")
        width = out[:1].size
        # NumPy adds at the indices of a vector, one by one, far faster than at those of a matrix.
        cells = idx.astype(np.intp).reshape(-1, 1) * width + np.arange(width)
        np.add.at(out.reshape(-1), cells.reshape(-1), v.reshape(-1))
        return out

    return kernel


def gather_row(x: Array, index: int, mode: str) -> Array:
    if 0 <= index < len(x):
        row: Array = x[index]
        return row
    return np.full(x.shape[1:], number(0, x.dtype), dtype=x.dtype)


def scatter_add_row(x: Array, v: Array, index: int, mode: str) -> Array:
    out = np.array(x, order="C")
    if 0 <= index < len(x):
        out[index] += v
    return out


# Entries of a packed array along another axis than its first come as rows of a view. Reading and writing them where
# they lie spares a copy with other strides here, and another one to whoever reads the result as it was. Indices of more
# axes than one give it other axes, so there the rows are copied.


def _first_to(axis: int, rank: int) -> list[int]:
    """Return the permutation that moves the first axis behind `axis` others."""
    return [*range(1, 1 + axis), 0, *range(1 + axis, rank)]


def _first_from(axis: int, rank: int) -> list[int]:
    """Return the permutation that moves an axis before all others: the inverse of `_first_to`."""
    return [axis, *range(axis), *range(axis + 1, rank)]


def _axis_of_rows(x: Array) -> int:
    """Return which axis of a packed array the rows of x are entries along; 0 too if x is a view of any other kind."""
    if x.flags.c_contiguous or x.dtype.char not in "fd":
        return 0
    return next((k for k in range(1, x.ndim) if x.transpose(_first_to(k, x.ndim)).flags.c_contiguous), 0)


_gather_rows = gather("gather_rows")


def fast_gather_rows(x: Array, idx: Array, mode: str) -> Array:
    axis = _axis_of_rows(x) if mode == "raise" and idx.ndim == 1 else 0
    if not axis:
        return _gather_rows(x, idx, mode)
    require_in_range("gather_rows", x.shape, idx)
    whole = x.transpose(_first_to(axis, x.ndim))
    before, after = whole.shape[:axis], whole.shape[axis + 1 :]
    out = np.empty((*before, idx.size, *after), x.dtype)
    sizes = math.prod(before), len(x), math.prod(after)
    if sizes[2] == 1:
        loops.gather_numbers(whole.reshape(sizes[:2]), integers(idx), out.reshape(sizes[0], idx.size))
    else:
        loops.gather_axis(whole.reshape(sizes), integers(idx), out.reshape(sizes[0], idx.size, sizes[2]))
    return out.transpose(_first_from(axis, x.ndim))


def fast_scatter_add_rows(x: Array, v: Array, idx: Array, mode: str) -> Array:
    if mode == "raise":
        require_in_range("scatter_add_row", x.shape, idx)
    axis = sum([stride > v.strides[0] for stride in v.strides[1:]]) if idx.ndim == 1 else 0
    order = _first_to(axis, x.ndim)
    out = np.array(x.transpose(order), order="C")
    if out.size:
        sizes = math.prod(out.shape[:axis]), math.prod(out.shape[axis + 1 :])
        if axis:
            cells = packed(v.transpose(order)).reshape(sizes[0], idx.size, sizes[1])
            loops.scatter_add_axis(cells, integers(idx), out.reshape(sizes[0], len(x), sizes[1]))
        else:
            loops.scatter_add_rows(packed(v).reshape(idx.size, sizes[1]), integers(idx), out.reshape(len(x), sizes[1]))
    return out.transpose(_first_from(axis, x.ndim))


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
    GATHER_ROWS: gather("gather_rows"),
    GATHER_VEC: gather("gather_vec"),
    GATHER_ROW: gather_row,
    GATHER_SCALAR: gather_row,
    SCATTER_ADD_ROWS: scatter_add("scatter_add_row"),
    SCATTER_ADD_VEC: scatter_add("scatter_add_vec"),
    SCATTER_ADD_ROW: scatter_add_row,
    SCATTER_ADD_SCALAR: scatter_add_row,
}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    GATHER_ROWS: fast_gather_rows,
    SCATTER_ADD_ROWS: fast_scatter_add_rows,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
