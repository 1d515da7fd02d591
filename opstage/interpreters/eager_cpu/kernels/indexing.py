"""Kernels: reading entries at indices, and adding to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.indexing import (
    GATHER_ROW,
    GATHER_ROWS,
    GATHER_SCALAR,
    GATHER_VEC,
    SCATTER_ADD_ROW,
    SCATTER_ADD_ROWS,
    SCATTER_ADD_SCALAR,
    SCATTER_ADD_VEC,
)
from ....ops.errors import RangeError
from ....ops.primitive import Primitive
from ....ops.types import show_shape
from ..loops import indexing as loops
from ..loops.jit import integers, packed
from .numbers import number

Array = npt.NDArray[Any]


def first_out_of_range(idx: Array, count: int) -> tuple[int, tuple[int, ...]] | None:
    """The first entry of `idx`, in row-major order, that is not in [0, count), and its position; None when all are."""
    if not idx.size or (idx.min() >= 0 and idx.max() < count):
        return None
    position = np.unravel_index(np.argmax((idx < 0) | (idx >= count)), idx.shape)
    return int(idx[position]), tuple(int(p) for p in position)


def require_in_range(op: str, x: Array, idx: Array) -> None:
    """Mode "raise": every index must name a row of x."""
    found = first_out_of_range(idx, len(x))
    if found is not None:
        index, position = found
        place = f" at position {show_shape(position)}" if position else ""
        allowed = f"so indices are 0 … {len(x) - 1}, and negative ones are out of range" if len(x) else "without a row"
        raise RangeError(
            f"index {index}{place} is out of range: x is {show_shape(x.shape)}, {allowed}; "
            'pass mode="zero" where an index out of range is meant to stand for zeros',
            op=op,
        )


def gather(op: str) -> Callable[..., Array]:
    def kernel(x: Array, idx: Array, mode: str) -> Array:
        if mode == "raise":
            require_in_range(op, x, idx)
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
            require_in_range(op, x, idx)
        else:
            valid = (idx >= 0) & (idx < len(x))
            idx, v = idx[valid], v[valid]
        out = np.array(x, order="C")
        width = out[:1].size
        # NumPy adds at the indices of a vector, one after another, far faster than at those of a matrix.
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


KERNELS: dict[Primitive, Callable[..., Any]] = {
    GATHER_ROWS: gather("gather_rows"),
    GATHER_VEC: gather("gather_vec"),
    GATHER_ROW: gather_row,
    GATHER_SCALAR: gather_row,
    SCATTER_ADD_ROWS: scatter_add("scatter_add_row"),
    SCATTER_ADD_VEC: scatter_add("scatter_add_vec"),
    SCATTER_ADD_ROW: scatter_add_row,
    SCATTER_ADD_SCALAR: scatter_add_row,
}


def fast_scatter_add_rows(x: Array, v: Array, idx: Array, mode: str) -> Array:
    if mode == "raise":
        require_in_range("scatter_add_row", x, idx)
    out = np.array(x, order="C")
    if out.size:
        matrix = out.reshape(len(out), out[0].size)
        loops.scatter_add_rows(packed(v).reshape(idx.size, matrix.shape[1]), integers(idx), matrix)
    return out


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {SCATTER_ADD_ROWS: fast_scatter_add_rows}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
