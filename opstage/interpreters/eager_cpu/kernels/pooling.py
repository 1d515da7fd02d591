"""Kernels: pools, by one strided view of x for each cell of the window.

The fast kernels are machine code, from the size on at which that pays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from ....compiler.native import KernelSequence
from ....ops.host_arrays import address_of, packed
from ....ops.index_checks import require_cells
from ....ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.primitive import Primitive
from ..loops import pooling as native
from .convolution import Sizes, reach, window_counts, zeros

Array = npt.NDArray[Any]


def _counts(spatial: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes) -> Sizes:
    return window_counts(spatial, kernel, stride, padding, (1,) * len(kernel))


def _outer_sum(per_axis: list[Array]) -> Array:
    """Return out[i, j, …] = a[i] + b[j] + …"""
    return reduce(np.add.outer, per_axis)


# Maximum ------------------------------------------------------------------------------------------------------------


def max_pool(x: Array, kernel: Sizes, stride: Sizes, padding: Sizes) -> tuple[Array, Array]:
    """Return maxima and their flat positions. Until the end, a cell is identified by its rank in the window, in 1 or 2
    bytes.

    A later cell replaces the maximum only if it is greater; its rank is then the greatest so far, so a maximum of ranks
    selects it.
    """
    spatial = x.shape[-len(kernel) :]
    counts = _counts(spatial, kernel, stride, padding)
    source = _with_padding(x, spatial, padding) if any(padding) else x
    rank_type = np.min_scalar_type(math.prod(kernel)).type
    best = np.full((*x.shape[: -len(kernel)], *counts), -math.inf, x.dtype)
    rank = np.empty(best.shape, rank_type)
    rank[...] = _first_ranks(counts, kernel, stride, padding)
    for i, offset in enumerate(np.ndindex(kernel)):
        cell = _cell(source, offset, counts, stride).copy()  # the next three steps read it with unit strides
        greater = np.greater(cell, best).astype(np.bool_, copy=False)
        np.maximum(best, cell, out=best)
        np.maximum(rank, np.multiply(greater.view(np.uint8), rank_type(i)), out=rank)
    if x.dtype.kind == "f" and best.size and np.isnan(best.max()):
        for i, offset in enumerate(np.ndindex(kernel)):  # nan wins over every number, the last one first, as in PyTorch
            is_nan = np.isnan(_cell(source, offset, counts, stride))
            np.maximum(rank, np.multiply(is_nan.view(np.uint8), rank_type(i)), out=rank)
    index = _positions(spatial, kernel).take(rank)
    index += _window_positions(spatial, counts, stride, padding)
    return best, index


def _with_padding(x: Array, spatial: Sizes, padding: Sizes) -> Array:
    """Pad x with -inf, which is never greater."""
    shape = (*x.shape[: -len(padding)], *(n + 2 * p for n, p in zip(spatial, padding)))
    padded = np.full(shape, -math.inf, x.dtype)
    inside: tuple[Any, ...] = (..., *(slice(p, p + n) for n, p in zip(spatial, padding)))
    padded[inside] = x
    return padded


def _cell(x: Array, offset: Sizes, counts: Sizes, stride: Sizes) -> Array:
    """Return the cell `offset` of every window, as a view."""
    along = (slice(o, o + (count - 1) * s + 1, s) for o, count, s in zip(offset, counts, stride))
    at: tuple[Any, ...] = (..., *along)
    cells: Array = x[at]
    return cells


def _plane_steps(spatial: Sizes) -> list[int]:
    return [math.prod(spatial[axis + 1 :]) for axis in range(len(spatial))]


def _positions(spatial: Sizes, kernel: Sizes) -> Array:
    """Return the flat position of each cell of a window relative to the first."""
    return _outer_sum([np.arange(k) * step for k, step in zip(kernel, _plane_steps(spatial))]).reshape(-1)


def _window_positions(spatial: Sizes, counts: Sizes, stride: Sizes, padding: Sizes) -> Array:
    """Return the flat position of the first cell of each window, which may be padding."""
    steps = zip(counts, stride, padding, _plane_steps(spatial))
    return _outer_sum([(np.arange(count) * s - p) * step for count, s, p, step in steps])


def _first_ranks(counts: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes) -> Array:
    """Return the rank of each window's first cell that is not padding."""
    steps = zip(counts, stride, padding, _plane_steps(kernel))
    return _outer_sum([np.maximum(p - np.arange(count) * s, 0) * step for count, s, p, step in steps])


def _flat(op: Primitive, index: Array, spatial: Sizes) -> Array:
    """Return positions in the concatenation of all planes. Raises RangeError for a position outside its plane."""
    require_cells(op.name, spatial, index)
    planes = index.shape[: -len(spatial)]
    first = np.arange(math.prod(planes)) * math.prod(spatial)
    out: Array = index + first.reshape(*planes, *(1,) * len(spatial))
    return out


def max_pool_scatter(g: Array, index: Array, shape: Sizes, **window: Sizes) -> Array:
    planes = g.shape[: -len(shape)]
    out = zeros((math.prod(planes) * math.prod(shape),), g.dtype)
    np.add.at(out, _flat(MAX_POOL_SCATTER, index, shape).reshape(-1), g.reshape(-1))
    return out.reshape(*planes, *shape)


def max_pool_gather(x: Array, index: Array, kernel: Sizes, **window: Sizes) -> Array:
    return x.reshape(-1).take(_flat(MAX_POOL_GATHER, index, x.shape[-len(kernel) :]))


# Mean ---------------------------------------------------------------------------------------------------------------


def _divisor(
    spatial: Sizes, counts: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, count_include_pad: bool, like: Array
) -> Any:
    """Return the number of cells in each window's mean."""
    if count_include_pad or not any(padding):
        return math.prod(kernel)
    inside = []
    for n, count, k, s, p in zip(spatial, counts, kernel, stride, padding):
        start = np.arange(count) * s - p
        inside.append(np.minimum(start + k, n) - np.maximum(start, 0))
    return reduce(np.multiply.outer, inside).astype(like.dtype)


def _axis_slice(rank: int, axis: int, part: slice) -> tuple[Any, ...]:
    """Return an index with `part` for one of the last `rank` axes."""
    return (..., part, *(slice(None),) * (rank - 1 - axis))


def avg_pool(x: Array, kernel: Sizes, stride: Sizes, padding: Sizes, count_include_pad: bool) -> Array:
    """Sum along one axis after another: k + k additions for a window of k · k."""
    rank = len(kernel)
    spatial = x.shape[-rank:]
    counts = _counts(spatial, kernel, stride, padding)
    total = x
    for axis, (n, count, k, s, p) in enumerate(zip(spatial, counts, kernel, stride, padding)):
        shape = (*total.shape[: total.ndim - rank + axis], count, *total.shape[total.ndim - rank + axis + 1 :])
        sums = zeros(shape, x.dtype)
        for offset in range(k):
            windows, cells = reach(offset, n, count, s, p)
            part = sums[_axis_slice(rank, axis, windows)]
            np.add(part, total[_axis_slice(rank, axis, cells)], out=part)
        total = sums
    np.divide(total, _divisor(spatial, counts, kernel, stride, padding, count_include_pad, x), out=total)
    return total


def avg_pool_grad(
    g: Array, shape: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, count_include_pad: bool
) -> Array:
    """Run the steps of avg_pool backwards: the last axis first, while the others are still short."""
    rank = len(kernel)
    counts = g.shape[-rank:]
    share: Array = np.divide(g, _divisor(shape, counts, kernel, stride, padding, count_include_pad, g))
    for axis in reversed(range(rank)):
        n, count, s, p = shape[axis], counts[axis], stride[axis], padding[axis]
        spread = zeros(
            (*share.shape[: share.ndim - rank + axis], n, *share.shape[share.ndim - rank + axis + 1 :]), g.dtype
        )
        for offset in range(kernel[axis]):
            windows, cells = reach(offset, n, count, s, p)
            part = spread[_axis_slice(rank, axis, cells)]
            np.add(part, share[_axis_slice(rank, axis, windows)], out=part)
        share = spread
    return share


KERNELS: dict[Primitive, Callable[..., Any]] = {
    MAX_POOL: max_pool,
    MAX_POOL_SCATTER: max_pool_scatter,
    MAX_POOL_GATHER: max_pool_gather,
    AVG_POOL: avg_pool,
    AVG_POOL_GRAD: avg_pool_grad,
}


# In machine code ------------------------------------------------------------------------------------------------------

# Cells above which the thread pool is faster than NumPy.
_WORTH_A_CALL = {MAX_POOL: 1 << 8, MAX_POOL_SCATTER: 1 << 14, MAX_POOL_GATHER: 1 << 14, AVG_POOL: 1 << 12}


def _worth(primitive: Primitive, x: Array, rank: int, cells: int) -> bool:
    return cells >= _WORTH_A_CALL[primitive] and native.supported(x.dtype.name, rank)


def _run(primitive: Primitive, x: Array, out: Array, index: Array | None, geometry: native.PoolGeometry) -> bool:
    """Run the pool; return whether every position of `index` was in its plane. All arrays must be packed."""
    outside = np.zeros(1, np.int64)
    planes = math.prod(x.shape[: x.ndim - len(geometry.kernel)])
    at = address_of(x), address_of(out), 0 if index is None else address_of(index), address_of(outside)
    KernelSequence((native.pool_step(primitive, x.dtype.name, planes, *at, geometry),)).run()
    return not outside[0]


def fast_max_pool(x: Array, kernel: Sizes, stride: Sizes, padding: Sizes) -> tuple[Array, Array]:
    rank = len(kernel)
    if not _worth(MAX_POOL, x, rank, x.size):
        return max_pool(x, kernel, stride, padding)
    x, cells = packed(x), x.shape[-rank:]
    counts = _counts(cells, kernel, stride, padding)
    best = np.empty((*x.shape[:-rank], *counts), x.dtype)
    index = np.empty(best.shape, np.int64)
    _run(MAX_POOL, x, best, index, native.PoolGeometry(cells, kernel, counts, stride, padding))
    return best, index


def fast_max_pool_scatter(g: Array, index: Array, shape: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes) -> Array:
    rank = len(shape)
    out = np.empty((*g.shape[:-rank], *shape), g.dtype)
    if _worth(MAX_POOL_SCATTER, g, rank, out.size):
        g, index = packed(g), packed(index.astype(np.int64, copy=False))
        geometry = native.PoolGeometry(shape, kernel, g.shape[-rank:], stride, padding)
        if _run(MAX_POOL_SCATTER, g, out, index, geometry):
            return out
    return max_pool_scatter(g, index, shape)


def fast_max_pool_gather(x: Array, index: Array, kernel: Sizes, stride: Sizes, padding: Sizes) -> Array:
    rank = len(kernel)
    if _worth(MAX_POOL_GATHER, x, rank, x.size):
        x, index = packed(x), packed(index.astype(np.int64, copy=False))
        out = np.empty(index.shape, x.dtype)
        geometry = native.PoolGeometry(x.shape[-rank:], kernel, index.shape[-rank:], stride, padding)
        if _run(MAX_POOL_GATHER, x, out, index, geometry):
            return out
    return max_pool_gather(x, index, kernel)


def fast_avg_pool(x: Array, kernel: Sizes, stride: Sizes, padding: Sizes, count_include_pad: bool) -> Array:
    rank = len(kernel)
    if not _worth(AVG_POOL, x, rank, x.size):
        return avg_pool(x, kernel, stride, padding, count_include_pad)
    x, cells = packed(x), x.shape[-rank:]
    counts = _counts(cells, kernel, stride, padding)
    out = np.empty((*x.shape[:-rank], *counts), x.dtype)
    _run(AVG_POOL, x, out, None, native.PoolGeometry(cells, kernel, counts, stride, padding, count_include_pad))
    return out


def fast_avg_pool_grad(
    g: Array, shape: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, count_include_pad: bool
) -> Array:
    rank = len(kernel)
    out = np.empty((*g.shape[:-rank], *shape), g.dtype)
    if not _worth(AVG_POOL, g, rank, out.size):
        return avg_pool_grad(g, shape, kernel, stride, padding, count_include_pad)
    geometry = native.PoolGeometry(shape, kernel, g.shape[-rank:], stride, padding, count_include_pad)
    _run(AVG_POOL_GRAD, packed(g), out, None, geometry)
    return out


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    MAX_POOL: fast_max_pool,
    MAX_POOL_SCATTER: fast_max_pool_scatter,
    MAX_POOL_GATHER: fast_max_pool_gather,
    AVG_POOL: fast_avg_pool,
    AVG_POOL_GRAD: fast_avg_pool_grad,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = KERNELS
