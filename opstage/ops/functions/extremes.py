"""Cumulative maxima and minima, and those of segments: programs over other ops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dims import Dim
from ..protocol import Ops, R
from ..types import BOOL, INT64
from .arrange import moveaxis
from .ordering import bincount, segment_count, segment_sum
from .places import take_along_axis
from .tools import axis_of, dtype_error, whole, zeros


def cummax(ops: Ops[R], x: R, /, *, axis: int) -> tuple[R, R]:
    """The cumulative maximum along an axis, and its index; the last of equal elements, and nan from the first nan on.

    Values in x's shape and dtype, and int64 indices. Gradients go to the selected elements. PyTorch: torch.cummax.
    NumPy: np.maximum.accumulate.

    Raises:
        DtypeError: x a mask.
        ShapeError: no such axis.
    """
    return _so_far(ops, "cummax", x, axis, greatest=True)


def cummin(ops: Ops[R], x: R, /, *, axis: int) -> tuple[R, R]:
    """The cumulative minimum along an axis, and its index, as in `cummax`. PyTorch: torch.cummin.

    Raises:
        DtypeError: x a mask.
        ShapeError: no such axis.
    """
    return _so_far(ops, "cummin", x, axis, greatest=False)


def segment_max(ops: Ops[R], x: R, segments: R, /, *, count: Dim, fill: float = 0) -> R:
    """The maximum of x[i] over the rows i with segments[i] = s, for s in 0 … count - 1: x (n, *d), segments (n).

    (count, *d), `fill` for empty segments; nan if an element is. Equal maxima share the gradient. A segment
    outside of [0, count) is a RangeError. PyTorch: torch.scatter_reduce(…, "amax"). JAX: jax.ops.segment_max.

    Raises:
        DtypeError: x a mask; x not an integer tensor.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape; segments of another shape; operands that do not fit each
            other.
    """
    return _of_segments(ops, "segment_max", x, segments, count, fill, greatest=True)


def segment_min(ops: Ops[R], x: R, segments: R, /, *, count: Dim, fill: float = 0) -> R:
    """The minimum of x[i] in each segment, as in `segment_max`. PyTorch: torch.scatter_reduce(…, "amin").

    Raises:
        DtypeError: x a mask; x not an integer tensor.
        RangeError: an index out of range, when it runs.
        ShapeError: an invalid argument; no such shape; segments of another shape; operands that do not fit each
            other.
    """
    return _of_segments(ops, "segment_min", x, segments, count, fill, greatest=False)


def _numbers(ops: Ops[R], op: str, x: R) -> None:
    if x.dtype == BOOL:
        raise dtype_error(ops, op, "x must be a tensor of numbers but is bool; cast it with ops.cast(…, dtype=…)")


def _so_far(ops: Ops[R], op: str, x: R, axis: int, *, greatest: bool) -> tuple[R, R]:
    _numbers(ops, op, x)
    axis = axis_of(ops, op, axis, len(x.shape))
    floats = x.dtype.kind == "f"
    if floats:
        first: Any = -math.inf if greatest else math.inf
    else:
        bounds = np.iinfo(np.dtype(str(x.dtype)))
        first = int(bounds.min if greatest else bounds.max)
    rows = moveaxis(ops, ops.detach(x), source=axis, target=0)
    shape = rows.shape[1:]

    def body(ops: Ops[Any], carry: Any, entry: Any) -> tuple[Any, Any]:
        best, at = carry
        row, step = entry
        better = ops.less_equal(best, row) if greatest else ops.less_equal(row, best)
        if floats:  # nan compares false, so it is selected here, and kept afterwards
            better = ops.logical_or(better, ops.isnan(row))
        at = ops.select(better, ops.broadcast_to(step, shape=shape), at)
        return (ops.select(better, row, best), at), at

    start = ops.full(shape=shape, value=first, dtype=x.dtype), whole(ops, shape, 0)
    _, places = ops.scan(body, start, (rows, ops.iota(shape=(rows.shape[0],))))
    places = moveaxis(ops, places, source=0, target=axis)
    return take_along_axis(ops, x, places, axis=axis), places


def _of_segments(ops: Ops[R], op: str, x: R, segments: R, count: Dim, fill: float, *, greatest: bool) -> R:
    _numbers(ops, op, x)
    count = segment_count(ops, op, x, segments, count)
    sizes = bincount(ops, segments, size=count)
    extreme, empty = _extreme(ops, ops.detach(x), segments, sizes, greatest)
    if x.dtype.kind == "f":
        extreme = _shared(ops, x, segments, extreme, count)
    return ops.select(empty, ops.full(shape=extreme.shape, value=fill, dtype=x.dtype), extreme)


def _extreme(ops: Ops[R], x: R, segments: R, sizes: R, greatest: bool) -> tuple[R, R]:
    """Return the extreme of each segment (0 if empty), and a mask of empty segments. Rows are sorted by segment and
    value."""
    by_value = ops.argsort(x, axis=0)
    order = ops.argsort(ops.gather_vec(ops.cast(segments, dtype=INT64), by_value), axis=0)  # stable
    ordered = take_along_axis(ops, x, take_along_axis(ops, by_value, order, axis=0), axis=0)
    none, one = zeros(ops, sizes), whole(ops, sizes.shape, 1)
    nothing, ends = ops.equal(sizes, none), ops.cumsum(sizes)
    outside = ops.neg(one)  # gathers zeros
    last = ops.gather_rows(ordered, ops.select(nothing, outside, ops.sub(ends, one)), mode="zero")
    empty = ops.reshape(nothing, shape=(*nothing.shape, *[1] * (len(x.shape) - 1)))
    empty = ops.broadcast_to(empty, shape=last.shape)
    if greatest:
        return last, empty
    first = ops.gather_rows(ordered, ops.select(nothing, outside, ops.sub(ends, sizes)), mode="zero")
    # nan sorts after all numbers, and dominates wherever it occurs
    return (ops.select(ops.isnan(last), last, first) if x.dtype.kind == "f" else first), empty


def _shared(ops: Ops[R], x: R, segments: R, extreme: R, count: Dim) -> R:
    """Return `extreme` with the gradient of the mean of all elements equal to it."""
    tied = ops.equal(x, ops.gather_rows(extreme, segments))
    many = segment_sum(ops, ops.cast(tied, dtype=x.dtype), segments, count=count)
    many = ops.maximum(many, ops.full(shape=many.shape, value=1, dtype=x.dtype))
    parts = ops.div(ops.select(tied, x, zeros(ops, x)), ops.gather_rows(many, segments))
    mean = segment_sum(ops, parts, segments, count=count)
    # The rounding error of the mean. An infinite mean is exact, and inf - inf is not 0.
    off = ops.select(ops.isinf(extreme), zeros(ops, extreme), ops.sub(extreme, mean))
    return ops.add(mean, ops.detach(off))
