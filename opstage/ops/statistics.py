"""Statistics along axes: variance, deviation, norms, quantiles, cumulative extremes. Programs over other ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from .advanced_indexing import take_along_axis
from .arrangement import moveaxis
from .dims import Dim, is_zero, prod, ratio
from .primitive import R
from .rule_helpers import (
    at_most,
    corrected_mean,
    dtype_error,
    error,
    full_like,
    placed,
    read_axes,
    read_axis,
    read_int,
    type_of,
    whole,
    zeros,
)
from .sequence import bincount, segment_count, segment_sum, sort
from .static_arguments import Axes
from .types import BOOL, INT64, require_float, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


def var(ops: Ops[R], x: R, /, *, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> R:
    """Return Σ (x - mean)² / (n - correction) over axes with n elements, or all for None.

    correction=1 is the sample variance, 0 the population variance. ShapeError unless n > correction, where PyTorch
    returns nan or inf. PyTorch: torch.var. NumPy: np.var, with ddof=correction.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    return _variance(ops, "var", x, axis, correction, keepdims)


def std(ops: Ops[R], x: R, /, *, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> R:
    """Return √var, with the same arguments; 0 with gradient 0 where all elements are equal. PyTorch: torch.std.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    return _root(ops, _variance(ops, "std", x, axis, correction, keepdims))


def norm(ops: Ops[R], x: R, /, *, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> R:
    """Return the vector norm over axes, or all for None: ord 1 (Σ |x|), 2 (√Σ x²), inf (max |x|), -inf (min |x|).

    Correct even if squares overflow or underflow. At 0 the gradient of the 2-norm is 0. Over an axis of size 0 the
    norm is 0, but ±inf raise ShapeError. PyTorch: torch.linalg.vector_norm. ONNX: ReduceL1, ReduceL2.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an invalid argument.
    """
    _require_float(ops, "norm", x)
    axes = read_axes(ops, "norm", axis, len(x.shape))
    if ord == 1:
        return ops.reduce_sum(ops.abs(x), axis=axes, keepdims=keepdims)
    if ord == math.inf:
        return ops.reduce_max(ops.abs(x), axis=axes, keepdims=keepdims)
    if ord == -math.inf:
        return ops.reduce_min(ops.abs(x), axis=axes, keepdims=keepdims)
    if ord != 2:
        raise error(ops, "norm", f"ord must be 1, 2, inf or -inf but is {ord!r}")
    if is_zero(prod(x.shape[a] for a in axes)):
        return ops.reduce_sum(x, axis=axes, keepdims=keepdims)
    # The norm does not depend on the scale, so neither does the gradient.
    size = ops.detach(ops.reduce_max(ops.abs(x), axis=axes, keepdims=True))
    zero, one = full_like(ops, size, 0.0), full_like(ops, size, 1.0)
    usable = ops.logical_and(ops.less(zero, size), ops.less(size, full_like(ops, size, math.inf)))
    size = ops.select(usable, size, one)
    parts = ops.div(x, ops.broadcast_to(size, shape=x.shape))
    out = ops.mul(size, _root(ops, ops.reduce_sum(ops.mul(parts, parts), axis=axes, keepdims=True)))
    return out if keepdims else ops.squeeze(out, axis=axes)


def quantile(
    ops: Ops[R],
    x: R,
    /,
    *,
    q: float | Fraction,
    axis: int | None = None,
    keepdims: bool = False,
    interpolation: str = "linear",
) -> R:
    """Return the element at position q·(n - 1) of n sorted elements along an axis, or of the whole tensor for None.

    Between two positions, "linear" interpolates; "lower", "higher", "midpoint" and "nearest", which is the even one if
    both are as near, use one or both. q is from 0 to 1, taken as the decimal number in its notation. nan if an element
    is. PyTorch: torch.quantile. NumPy: np.quantile.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an invalid argument; an axis is empty.
    """
    op = "quantile"
    _require_float(ops, op, x)
    try:
        exact = Fraction(str(q))
    except ValueError:
        exact = Fraction(-1)
    if not 0 <= exact <= 1:
        raise error(ops, op, f"q must be a number from 0 to 1 but is {q!r}")
    if interpolation not in ("linear", "lower", "higher", "midpoint", "nearest"):
        known = '"linear", "lower", "higher", "midpoint" or "nearest"'
        raise error(ops, op, f"interpolation must be {known} but is {interpolation!r}")
    whole, rank = x.shape, len(x.shape)
    if axis is None:
        x, place = ops.reshape(x, shape=(prod(whole),)), 0
    else:
        (place,) = read_axes(ops, op, axis, rank)
    length = x.shape[place]
    at_most(
        ops,
        op,
        1,
        length,
        lambda: f"x is {show_shape(whole)}: a quantile needs at least one element; leave such a tensor out",
    )
    below = exact.numerator * (length - 1)
    low, high = below // exact.denominator, (below + exact.denominator - 1) // exact.denominator
    if interpolation == "nearest":  # ⌈p/2 - 1/4⌉ + ⌊p/2 + 1/4⌋ is p rounded, halves to even
        quarter = 4 * exact.denominator
        low = (2 * below + 3 * exact.denominator - 1) // quarter + (2 * below + exact.denominator) // quarter
    ordered = sort(ops, x, axis=place)[0]
    out = _interpolate(
        ops, ordered, place, low, high, ratio(below % exact.denominator, exact.denominator), interpolation
    )
    unordered = ops.reduce_any(ops.logical_not(ops.equal(x, x)), axis=place, keepdims=True)
    out = ops.select(unordered, full_like(ops, out, math.nan), out)
    if axis is None:
        return ops.reshape(out, shape=(1,) * rank if keepdims else ())
    return out if keepdims else ops.squeeze(out, axis=place)


def median(ops: Ops[R], x: R, /, *, axis: int | None = None, keepdims: bool = False) -> R:
    """Return the middle element along an axis, or of the whole tensor for None; for even sizes the mean of two.

    nan if an element is. NumPy: np.median. PyTorch's torch.median is the lower of the two: quantile(q=0.5,
    interpolation="lower").

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an axis is empty.
    """
    return quantile(ops, x, q=Fraction(1, 2), axis=axis, keepdims=keepdims, interpolation="midpoint")


def _interpolate(ops: Ops[R], ordered: R, axis: int, low: Dim, high: Dim, weight: Any, interpolation: str) -> R:
    """Return the element between two positions of sorted elements; between equal ones, even infinite, that element."""
    lower = ops.slice(ordered, axis=axis, start=low, length=1)
    if interpolation in ("lower", "nearest"):
        return lower
    upper = ops.slice(ordered, axis=axis, start=high, length=1)
    if interpolation == "higher":
        return upper
    weight = Fraction(1, 2) if interpolation == "midpoint" else weight
    step = ops.scale(ops.sub(upper, lower), c=weight)
    mixed = ops.add(ops.scale(lower, c=1 - weight), ops.scale(upper, c=weight))  # where the difference overflows
    between = ops.select(ops.equal(step, full_like(ops, step, math.inf)), mixed, ops.add(lower, step))
    return ops.select(ops.equal(lower, upper), lower, between)


def _variance(ops: Ops[R], op: str, x: R, axis: Axes, correction: int, keepdims: bool) -> R:
    _require_float(ops, op, x)
    axes = read_axes(ops, op, axis, len(x.shape))
    correction = read_int(ops, op, "correction", correction, 0)
    count = prod(x.shape[a] for a in axes)
    at_most(
        ops,
        op,
        correction + 1,
        count,
        lambda: (
            f"x is {show_shape(x.shape)}: over {_axes_text(axes)} there are {count} elements, and with "
            f"correction={correction} the variance is that of at least {correction + 1}"
        ),
    )
    off = ops.sub(x, ops.broadcast_to(corrected_mean(ops, x, axes), shape=x.shape))
    return ops.scale(ops.reduce_sum(ops.mul(off, off), axis=axes, keepdims=keepdims), c=ratio(1, count - correction))


def _axes_text(axes: Sequence[int]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {tuple(axes)}"


def _root(ops: Ops[R], square: R) -> R:
    """Return the square root with gradient 0 at 0, where its derivative is infinite."""
    zero = full_like(ops, square, 0.0)
    nothing = ops.equal(square, zero)
    return ops.select(nothing, zero, ops.sqrt(ops.select(nothing, full_like(ops, square, 1.0), square)))


def _require_float(ops: Ops[R], op: str, x: R) -> None:
    placed(ops, op, lambda: require_float(type_of(x), "x"))


# Cumulative maxima and minima, and those of segments ------------------------------------------------------------------


def cummax(ops: Ops[R], x: R, /, *, axis: int) -> tuple[R, R]:
    """Return the cumulative maximum along an axis, and its index; the last of equal elements, and nan from the first
    nan on.

    Values in x's shape and dtype, and int64 indices. Gradients go to the selected elements. PyTorch: torch.cummax.
    NumPy: np.maximum.accumulate.

    Raises:
        DtypeError: x a mask.
        ShapeError: no such axis.
    """
    return _so_far(ops, "cummax", x, axis, greatest=True)


def cummin(ops: Ops[R], x: R, /, *, axis: int) -> tuple[R, R]:
    """Return the cumulative minimum along an axis, and its index, as in `cummax`. PyTorch: torch.cummin.

    Raises:
        DtypeError: x a mask.
        ShapeError: no such axis.
    """
    return _so_far(ops, "cummin", x, axis, greatest=False)


def segment_max(ops: Ops[R], x: R, segments: R, /, *, count: Dim, fill: float = 0) -> R:
    """Return the maximum of x[i] over the rows i with segments[i] = s, for s in 0 … count - 1: x (n, *d), segments (n).

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
    """Return the minimum of x[i] in each segment, as in `segment_max`. PyTorch: torch.scatter_reduce(…, "amin").

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
    axis = read_axis(ops, op, axis, len(x.shape))
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
