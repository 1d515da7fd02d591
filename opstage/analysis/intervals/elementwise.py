"""Rules of elements: sums and products of intervals, powers, monotone functions, valleys, waves."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import reduce
from typing import Any, NamedTuple

from ...ops.activation import GELU, HARDSWISH, MISH, RELU_GRAD, SILU
from ...ops.elementwise import ABS, ADD, COS, DIV, INV, MAXIMUM, MINIMUM, MUL, POW, POWER, SCALE, SIN, SUB
from ...ops.primitive import Primitive, Static
from ...ops.rounding import FLOOR_DIVIDE, MOD
from ...ops.transcendental import COSH
from ..monotone_functions import MONOTONE, Monotone, corners, is_even, magnitudes, power_operands
from .interpreter import Interval, Intervals, down, epsilon, rising, rounded_ends, up

Refs = tuple[Interval[Any], ...]


def full_like(ops: Any, like: Any, value: float) -> Any:
    """Return a tensor with the shape and dtype of another one, filled with a number."""
    return ops.full(shape=like.shape, value=value, dtype=like.dtype)


def least(ops: Any, *xs: Any) -> Any:
    """Return the elementwise minimum of several tensors."""
    return reduce(ops.minimum, xs)


def greatest(ops: Any, *xs: Any) -> Any:
    """Return the elementwise maximum of several tensors."""
    return reduce(ops.maximum, xs)


def extreme(ops: Any, found: list[Any]) -> tuple[Any, Any]:
    """Return the elementwise minimum and maximum of several tensors; a nan among them is one in both."""
    return least(ops, *found), greatest(ops, *found)


def _add(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    return (_sum(bounds, ops.add(x.lower, y.lower), ops.add(x.upper, y.upper)),)


def _sum(bounds: Intervals[Any], lower: Any, upper: Any) -> Interval[Any]:
    ops = bounds.inner
    return bounds.between(*rounded_ends(ops, down(ops, lower, underflows=False), up(ops, upper, underflows=False)))


def _sub(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    if x is y:  # one value, less itself; nan and inf give nan
        gone = ops.add(ops.sub(x.lower, x.lower), ops.sub(x.upper, x.upper))
        return (bounds.wrap(gone),)
    return (_sum(bounds, ops.sub(x.lower, y.upper), ops.sub(x.upper, y.lower)),)


def _square(bounds: Intervals[Any], x: Interval[Any]) -> Interval[Any]:
    ops = bounds.inner
    size, nearest = _sizes(ops, x)
    lower = ops.maximum(down(ops, ops.mul(nearest, nearest)), 0.0)
    return bounds.between(lower, up(ops, ops.mul(size, size)))


def _sizes(ops: Any, x: Interval[Any]) -> tuple[Any, Any]:
    """Return the greatest and the least magnitude."""
    return magnitudes(ops.neg, ops.maximum, x.lower, x.upper, 0.0)


def _corners(f: Callable[..., Any], x: Interval[Any], y: Interval[Any]) -> list[Any]:
    xs = [x.lower] if x.point else [x.lower, x.upper]
    ys = [y.lower] if y.point else [y.lower, y.upper]
    return corners(f, xs, ys)


def _mul(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    if x is y:
        return (_square(bounds, x),)
    lower, upper = extreme(ops, _corners(ops.mul, x, y))
    return (bounds.between(*rounded_ends(ops, down(ops, lower), up(ops, upper))),)


def _nonzero(ops: Any, y: Interval[Any]) -> Any:
    """Return the mask of elements whose interval excludes 0."""
    zero = full_like(ops, y.lower, 0.0)
    return ops.logical_or(ops.less(zero, y.lower), ops.less(y.upper, zero))


def _mask_unknown(ops: Any, mask: Any, x: Any) -> Any:
    """Return x where the mask holds, else nan: nothing is known."""
    return ops.select(mask, x, full_like(ops, x, float("nan")))


def _div(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    allowed = _nonzero(ops, y)
    one = full_like(ops, y.lower, 1.0)
    divisor = bounds.between(ops.select(allowed, y.lower, one), ops.select(allowed, y.upper, one))
    lower, upper = extreme(ops, _corners(ops.div, x, divisor))
    return (bounds.between(_mask_unknown(ops, allowed, down(ops, lower)), _mask_unknown(ops, allowed, up(ops, upper))),)


def _inv(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    one = bounds.wrap(full_like(bounds.inner, refs[0].lower, 1.0))
    return _div(bounds, (one, refs[0]), static)


def _abs(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    size, nearest = _sizes(bounds.inner, refs[0])
    return (bounds.between(nearest, size),)


def _even(name: str, ulps: float, floor: float) -> Callable[..., Refs]:
    """Return the rule of an even function that rises with the magnitude."""

    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        ops = bounds.inner
        f = getattr(ops, name)
        size, nearest = _sizes(ops, refs[0])
        lower = ops.maximum(down(ops, f(nearest), ulps), floor)
        return (bounds.between(lower, up(ops, f(size), ulps)),)

    return rule


def _pow(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops, exponent = refs, bounds.inner, Fraction(static["exponent"])
    if exponent == 0:
        return (bounds.wrap(full_like(ops, x.lower, 1.0)),)
    ulps = 16 + min(abs(float(exponent)), 1e4)
    if exponent < 0:
        positive = _pow(bounds, refs, {"exponent": -static["exponent"]})
        (found,) = _inv(bounds, positive, {})
        return (bounds.between(down(ops, found.lower, ulps), up(ops, found.upper, ulps)),)
    if exponent == 2:
        return (_square(bounds, x),)
    low, high = power_operands(exponent, x.lower, x.upper, lambda: _sizes(ops, x))
    lower, upper = ops.pow(low, exponent=static["exponent"]), ops.pow(high, exponent=static["exponent"])
    lower, upper = down(ops, lower, ulps), up(ops, upper, ulps)
    if is_even(exponent) or exponent.denominator != 1:
        lower = ops.maximum(lower, 0.0)
    return (bounds.between(lower, upper),)


def _power(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Bound x^y for x >= 0: it is monotone in either operand, so its extremes are at corners; otherwise unknown."""
    (x, y), ops = refs, bounds.inner
    zero = full_like(ops, x.lower, 0.0)
    allowed = ops.logical_or(
        ops.less(zero, x.lower), ops.logical_and(ops.less_equal(zero, x.lower), ops.less(zero, y.lower))
    )
    lower, upper = extreme(ops, _corners(ops.power, x, y))
    size = greatest(ops, ops.abs(y.lower), ops.abs(y.upper))
    lower, upper = down(ops, lower, 32), up(ops, upper, 32)
    known = ops.logical_and(allowed, ops.less(size, full_like(ops, size, float("inf"))))
    return (bounds.between(_mask_unknown(ops, known, ops.maximum(lower, 0.0)), _mask_unknown(ops, known, upper)),)


def _floor_divide(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (quotient,), ops = _div(bounds, refs, static), bounds.inner
    return (bounds.between(ops.floor(quotient.lower), ops.floor(quotient.upper)),)


def _mod(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Bound a remainder between 0 and the divisor; unknown if that may be 0 or x infinite."""
    (x, y), ops = refs, bounds.inner
    nothing = ops.sub(ops.sub(x.lower, x.lower), ops.sub(x.upper, x.upper))
    lower = ops.add(ops.minimum(y.lower, 0.0), nothing)
    upper = ops.add(ops.maximum(y.upper, 0.0), nothing)
    allowed = _nonzero(ops, y)
    return (bounds.between(_mask_unknown(ops, allowed, lower), _mask_unknown(ops, allowed, upper)),)


# Activations that fall and then rise, and products of a cotangent with the derivative of one --------------------------


class Valley(NamedTuple):
    """The place, to 1e-6, where a function that falls and then rises is least, and a number just below its value
    there.
    """

    at: float
    value: float


VALLEYS: dict[Primitive, Callable[[Static], Valley]] = {
    SILU: lambda static: Valley(-1.2784645427610738, -0.2784645427610739),
    MISH: lambda static: Valley(-1.1924312145154952, -0.3088434130172505),
    HARDSWISH: lambda static: Valley(-1.5, -0.375),
    GELU: lambda static: (
        Valley(-0.7517915246935645, -0.1699712074799037)
        if static["approximate"] == "none"
        else Valley(-0.7524614220710163, -0.1700407505712541)
    ),
}
FACTOR_ERRORS: dict[Primitive, float] = {GELU: 4, SILU: 4, MISH: 8, HARDSWISH: 8}
"""The error of a kernel in ulps of the operand: each is x times a factor of at most about 1.

The factor of gelu is ½·(1 + t). The error of t = tanh(u), or erf(u), is 4 ulps of itself, and t'(u)·u times the 2.5
roundings of u: together at most 4.4, at u = 1.5. The sum rounds by 1, and the products by 1 of x: 3.7 in all. The
factor of silu is a sigmoid, off by s·(1 + 4·(1 - s)) <= 1.6, and a product follows. The factor of mish is a tanh of a
softplus, off by 8 ulps of itself.
"""


def _valley(primitive: Primitive, find: Callable[[Static], Valley]) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x,), ops, valley = refs, bounds.inner, find(static)
        first = ops.bind(primitive, (x.lower,), static)[0]
        last = first if x.point else ops.bind(primitive, (x.upper,), static)[0]
        size, error = ops.maximum(ops.abs(x.lower), ops.abs(x.upper)), FACTOR_ERRORS[primitive]
        upper = up(ops, ops.maximum(first, last), error, of=size)
        falls = ops.less(x.upper, full_like(ops, x.upper, valley.at - 1e-4))
        rises = ops.less(full_like(ops, x.lower, valley.at + 1e-4), x.lower)
        bottom = full_like(ops, first, valley.value)
        lower = ops.select(rises, first, ops.select(falls, last, bottom))
        unknown = ops.sub(upper, upper)  # 0, or nan where that is nan or infinite
        lower = down(ops, lower, error, of=ops.maximum(size, 1.0))
        return (bounds.between(ops.select(ops.equal(upper, upper), lower, unknown), upper),)

    return rule


def _relu_grad(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Bound g where y > 0, else 0."""
    (y, g), ops = refs, bounds.inner
    zero = full_like(ops, g.lower, 0.0)
    dead = ops.less_equal(y.upper, zero)
    alive = ops.less(zero, y.lower)
    lower = ops.select(alive, g.lower, ops.minimum(g.lower, zero))
    upper = ops.select(alive, g.upper, ops.maximum(g.upper, zero))
    unknown = _mask_unknown(ops, ops.less_equal(y.lower, y.upper), zero)  # 0, or nan where an end is nan
    lower, upper = ops.add(ops.select(dead, zero, lower), unknown), ops.add(ops.select(dead, zero, upper), unknown)
    return (bounds.between(lower, upper),)


# Sine and cosine: ends of the operand, or 1 and -1 if a crest or a trough lies between them ---------------------------

WAVE_ERROR = 4
"""The error of a kernel, in ulps of 1."""


def _holds(ops: Any, x: Interval[Any], place: float) -> Any:
    """Return the mask of elements whose interval may contain place + 2πk for a whole k; True if nothing is known."""
    size = ops.maximum(ops.abs(x.lower), ops.abs(x.upper))
    margin = ops.scale(ops.add(size, 8.0), c=2 * epsilon(x.dtype))

    def turns(end: Any) -> Any:
        return ops.scale(ops.sub(end, full_like(ops, end, place)), c=1 / (2 * math.pi))

    before, after = ops.floor(ops.sub(turns(x.lower), margin)), ops.floor(ops.add(turns(x.upper), margin))
    return ops.logical_not(ops.equal(before, after))


def _wave(primitive: Primitive, crest: float) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x,), ops = refs, bounds.inner
        first = ops.bind(primitive, (x.lower,), {})[0]
        last = first if x.point else ops.bind(primitive, (x.upper,), {})[0]
        one = full_like(ops, first, 1.0)
        lower, upper = (
            down(ops, ops.minimum(first, last), WAVE_ERROR, of=one),
            up(ops, ops.maximum(first, last), WAVE_ERROR, of=one),
        )
        # inf has a sine of nan, which the sum keeps
        unknown = ops.sub(ops.add(first, last), ops.add(first, last))
        lower = ops.select(_holds(ops, x, crest + math.pi), ops.neg(one), ops.maximum(lower, -1.0))
        upper = ops.select(_holds(ops, x, crest), one, ops.minimum(upper, 1.0))
        return (bounds.between(ops.add(lower, unknown), ops.add(upper, unknown)),)

    return rule


# Monotone functions: the ends of the result are those of the operand, rounded -----------------------------------------


def _bounded(primitive: Primitive, kind: Monotone) -> Callable[..., tuple[Interval[Any]]]:
    def rule(bounds: Intervals[Any], refs: tuple[Interval[Any], ...], static: Static) -> tuple[Interval[Any]]:
        (x,), ops = refs, bounds.inner
        rises = kind.rises(static)
        if rises is None:
            return bounds.decompose(primitive, (x,), static)  # type: ignore[return-value]
        first, last = (x.lower, x.upper) if rises else (x.upper, x.lower)
        lower = ops.bind(primitive, (first,), static)[0]
        upper = lower if x.point else ops.bind(primitive, (last,), static)[0]
        if kind.ulps == 0:
            return (bounds.between(lower, upper),)
        lower, upper = _rounded(ops, kind, x, lower, upper)
        if primitive is SCALE:  # a product of nonnegative numbers is nonnegative, however small
            lower, upper = _of_one_sign(ops, first, last, lower, upper, static["c"])
        return (bounds.between(lower, upper),)

    return rule


def _rounded(ops: Any, kind: Monotone, x: Interval[Any], lower: Any, upper: Any) -> tuple[Any, Any]:
    size = None
    if kind.absolute:
        size = ops.maximum(ops.maximum(ops.abs(x.lower), ops.abs(x.upper)), 1.0)
        size = ops.maximum(size, ops.maximum(ops.abs(lower), ops.abs(upper)))
    lower, upper = down(ops, lower, kind.ulps, of=size), up(ops, upper, kind.ulps, of=size)
    # limits that the dtype does not represent, such as those of atan, may be rounded inward
    if kind.least.is_integer():
        lower = ops.maximum(lower, kind.least)
    if kind.greatest.is_integer():
        upper = ops.minimum(upper, kind.greatest)
    return lower, upper


def _of_one_sign(ops: Any, first: Any, last: Any, lower: Any, upper: Any, c: Any) -> tuple[Any, Any]:
    zero = full_like(ops, lower, 0.0)
    above = ops.less_equal(zero, first) if c >= 0 else ops.less_equal(first, zero)
    below = ops.less_equal(last, zero) if c >= 0 else ops.less_equal(zero, last)
    return (ops.select(above, ops.maximum(lower, zero), lower), ops.select(below, ops.minimum(upper, zero), upper))


RULES: dict[Primitive, Callable[..., Refs]] = {
    ADD: _add,
    SUB: _sub,
    MUL: _mul,
    DIV: _div,
    INV: _inv,
    MAXIMUM: rising(MAXIMUM),
    MINIMUM: rising(MINIMUM),
    ABS: _abs,
    COSH: _even("cosh", 16, 1.0),
    POW: _pow,
    POWER: _power,
    FLOOR_DIVIDE: _floor_divide,
    MOD: _mod,
    **{primitive: _valley(primitive, find) for primitive, find in VALLEYS.items()},
    RELU_GRAD: _relu_grad,
    SIN: _wave(SIN, math.pi / 2),
    COS: _wave(COS, 0.0),
    **{primitive: _bounded(primitive, kind) for primitive, kind in MONOTONE.items()},
}
EXACT = frozenset(
    {ABS, MAXIMUM, MINIMUM, RELU_GRAD, *[primitive for primitive, kind in MONOTONE.items() if kind.ulps == 0]}
)
