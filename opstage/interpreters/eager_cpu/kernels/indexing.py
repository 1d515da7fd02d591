"""Kernels: read entries at indices, and add to them."""

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
from ....ops.primitive import Primitive
from ...host import number, packed
from ...indices import require_in_range
from ..loops import indexing as loops
from ..loops.jit import integers

Array = npt.NDArray[Any]


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
        require_in_range("scatter_add_row", x.shape, idx)
    out = np.array(x, order="C")
    if out.size:
        matrix = out.reshape(len(out), out[0].size)
        loops.scatter_add_rows(packed(v).reshape(idx.size, matrix.shape[1]), integers(idx), matrix)
    return out


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {SCATTER_ADD_ROWS: fast_scatter_add_rows}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
