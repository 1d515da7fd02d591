"""Statistics along axes: variance, deviation, norms, quantiles. Programs over other ops, for float tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from ..arguments import Axes
from ..dims import Dim, is_zero, prod, ratio
from ..protocol import Ops, R
from ..rules import shifted_mean
from ..types import require_float, show_shape
from .ordering import sort
from .tools import at_most, axes_of, error, int_of, placed, type_of


def var(ops: Ops[R], x: R, /, *, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> R:
    """Σ (x - mean)² / (n - correction) over axes with n elements, or all for None.

    correction=1 is the sample variance, 0 the population variance. ShapeError unless n > correction, where PyTorch
    returns nan or inf. PyTorch: torch.var. NumPy: np.var, with ddof=correction.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    return _variance(ops, "var", x, axis, correction, keepdims)


def std(ops: Ops[R], x: R, /, *, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> R:
    """√var, with the same arguments; 0 with gradient 0 where all elements are equal. PyTorch: torch.std.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an invalid argument; operands that do not fit each other.
    """
    return _root(ops, _variance(ops, "std", x, axis, correction, keepdims))


def norm(ops: Ops[R], x: R, /, *, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> R:
    """The vector norm over axes, or all for None: ord 1 (Σ |x|), 2 (√Σ x²), inf (max |x|), -inf (min |x|).

    Correct even if squares overflow or underflow. At 0 the gradient of the 2-norm is 0. Over an axis of size 0 the
    norm is 0, but ±inf raise ShapeError. PyTorch: torch.linalg.vector_norm. ONNX: ReduceL1, ReduceL2.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an invalid argument.
    """
    _require_float(ops, "norm", x)
    axes = axes_of(ops, "norm", axis, len(x.shape))
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
    zero, one = _all(ops, size, 0.0), _all(ops, size, 1.0)
    usable = ops.logical_and(ops.less(zero, size), ops.less(size, _all(ops, size, math.inf)))
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
    """The element at position q·(n - 1) of n sorted elements along an axis, or of the whole tensor for None.

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
        (place,) = axes_of(ops, op, axis, rank)
    length = x.shape[place]
    at_most(ops, op, 1, length, lambda: f"x is {show_shape(whole)}: of no elements there is no quantile; leave it out")
    below = exact.numerator * (length - 1)
    low, high = below // exact.denominator, (below + exact.denominator - 1) // exact.denominator
    if interpolation == "nearest":  # ⌈p/2 - 1/4⌉ + ⌊p/2 + 1/4⌋ is p rounded, halves to even
        quarter = 4 * exact.denominator
        low = (2 * below + 3 * exact.denominator - 1) // quarter + (2 * below + exact.denominator) // quarter
    ordered = sort(ops, x, axis=place)[0]
    out = _between(ops, ordered, place, low, high, ratio(below % exact.denominator, exact.denominator), interpolation)
    unordered = ops.reduce_any(ops.logical_not(ops.equal(x, x)), axis=place, keepdims=True)
    out = ops.select(unordered, _all(ops, out, math.nan), out)
    if axis is None:
        return ops.reshape(out, shape=(1,) * rank if keepdims else ())
    return out if keepdims else ops.squeeze(out, axis=place)


def median(ops: Ops[R], x: R, /, *, axis: int | None = None, keepdims: bool = False) -> R:
    """The middle element along an axis, or of the whole tensor for None; for even sizes the mean of two.

    nan if an element is. NumPy: np.median. PyTorch's torch.median is the lower of the two: quantile(q=0.5,
    interpolation="lower").

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: no such axis; an axis is empty.
    """
    return quantile(ops, x, q=Fraction(1, 2), axis=axis, keepdims=keepdims, interpolation="midpoint")


def _between(ops: Ops[R], ordered: R, axis: int, low: Dim, high: Dim, weight: Any, interpolation: str) -> R:
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
    between = ops.select(ops.equal(step, _all(ops, step, math.inf)), mixed, ops.add(lower, step))
    return ops.select(ops.equal(lower, upper), lower, between)


def _variance(ops: Ops[R], op: str, x: R, axis: Axes, correction: int, keepdims: bool) -> R:
    _require_float(ops, op, x)
    axes = axes_of(ops, op, axis, len(x.shape))
    correction = int_of(ops, op, "correction", correction, 0)
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
    off = ops.sub(x, ops.broadcast_to(shifted_mean(ops, x, axes), shape=x.shape))
    return ops.scale(ops.reduce_sum(ops.mul(off, off), axis=axes, keepdims=keepdims), c=ratio(1, count - correction))


def _axes_text(axes: Sequence[int]) -> str:
    return f"axis {axes[0]}" if len(axes) == 1 else f"axes {tuple(axes)}"


def _root(ops: Ops[R], square: R) -> R:
    """Return the square root with gradient 0 at 0, where its derivative is infinite."""
    zero = _all(ops, square, 0.0)
    nothing = ops.equal(square, zero)
    return ops.select(nothing, zero, ops.sqrt(ops.select(nothing, _all(ops, square, 1.0), square)))


def _all(ops: Ops[R], x: R, value: float) -> R:
    """Return a constant with x's shape and dtype."""
    return ops.full(shape=x.shape, value=value, dtype=x.dtype)


def _require_float(ops: Ops[R], op: str, x: R) -> None:
    placed(ops, op, lambda: require_float(type_of(x), "x"))
