"""Arithmetic of one element: sums and products of intervals, powers, and functions with one extremum."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from ....ops.catalogue.elementwise import ABS, ADD, DIV, INV, MAXIMUM, MINIMUM, MUL, POW, POWER, SUB
from ....ops.catalogue.rounding import FLOOR_DIVIDE, MOD
from ....ops.catalogue.transcendental import COSH
from ....ops.enclosures import corners, is_even, magnitudes, power_operands
from ....ops.primitive import Primitive, Static
from ..interpreter import Interval, Intervals
from ..rounding import down, ends, up

Refs = tuple[Interval[Any], ...]


def filled(ops: Any, like: Any, value: float) -> Any:
    """A tensor like another, filled with a number."""
    return ops.full(shape=like.shape, value=value, dtype=like.dtype)


def least(ops: Any, *xs: Any) -> Any:
    """The smallest of several tensors, element by element."""
    found = xs[0]
    for x in xs[1:]:
        found = ops.minimum(found, x)
    return found


def greatest(ops: Any, *xs: Any) -> Any:
    """The largest, likewise."""
    found = xs[0]
    for x in xs[1:]:
        found = ops.maximum(found, x)
    return found


def extreme(ops: Any, found: list[Any]) -> tuple[Any, Any]:
    """The smallest and the largest of several tensors; a nan among them is one in both."""
    return least(ops, *found), greatest(ops, *found)


def _add(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    return (_sum(bounds, ops.add(x.lower, y.lower), ops.add(x.upper, y.upper)),)


def _sum(bounds: Intervals[Any], lower: Any, upper: Any) -> Interval[Any]:
    ops = bounds.inner
    return bounds.between(*ends(ops, down(ops, lower, underflows=False), up(ops, upper, underflows=False)))


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
    """The greatest and the least magnitude."""
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
    return (bounds.between(*ends(ops, down(ops, lower), up(ops, upper))),)


def _nonzero(ops: Any, y: Interval[Any]) -> Any:
    """The mask of elements whose interval does not hold 0."""
    zero = filled(ops, y.lower, 0.0)
    return ops.logical_or(ops.less(zero, y.lower), ops.less(y.upper, zero))


def _known_where(ops: Any, mask: Any, x: Any) -> Any:
    """x where the mask holds, else nan: nothing is known."""
    return ops.select(mask, x, filled(ops, x, float("nan")))


def _div(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x, y), ops = refs, bounds.inner
    allowed = _nonzero(ops, y)
    one = filled(ops, y.lower, 1.0)
    divisor = bounds.between(ops.select(allowed, y.lower, one), ops.select(allowed, y.upper, one))
    lower, upper = extreme(ops, _corners(ops.div, x, divisor))
    return (bounds.between(_known_where(ops, allowed, down(ops, lower)), _known_where(ops, allowed, up(ops, upper))),)


def _inv(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    one = bounds.wrap(filled(bounds.inner, refs[0].lower, 1.0))
    return _div(bounds, (one, refs[0]), static)


def _ends(op: str) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x, y), choose = refs, getattr(bounds.inner, op)
        return (bounds.between(choose(x.lower, y.lower), choose(x.upper, y.upper)),)

    return rule


def _abs(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    size, nearest = _sizes(bounds.inner, refs[0])
    return (bounds.between(nearest, size),)


def _even(name: str, ulps: float, floor: float) -> Callable[..., Refs]:
    """An even function that rises with the magnitude."""

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
        return (bounds.wrap(filled(ops, x.lower, 1.0)),)
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
    """x^y for x >= 0: it rises or falls in either operand all along, so its ends are at corners; else unknown."""
    (x, y), ops = refs, bounds.inner
    zero = filled(ops, x.lower, 0.0)
    allowed = ops.logical_or(
        ops.less(zero, x.lower), ops.logical_and(ops.less_equal(zero, x.lower), ops.less(zero, y.lower))
    )
    lower, upper = extreme(ops, _corners(ops.power, x, y))
    size = greatest(ops, ops.abs(y.lower), ops.abs(y.upper))
    lower, upper = down(ops, lower, 32), up(ops, upper, 32)
    known = ops.logical_and(allowed, ops.less(size, filled(ops, size, float("inf"))))
    return (bounds.between(_known_where(ops, known, ops.maximum(lower, 0.0)), _known_where(ops, known, upper)),)


def _floor_divide(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (quotient,), ops = _div(bounds, refs, static), bounds.inner
    return (bounds.between(ops.floor(quotient.lower), ops.floor(quotient.upper)),)


def _mod(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Between 0 and the divisor; unknown where that may be 0 or x infinite."""
    (x, y), ops = refs, bounds.inner
    nothing = ops.sub(ops.sub(x.lower, x.lower), ops.sub(x.upper, x.upper))
    lower = ops.add(ops.minimum(y.lower, 0.0), nothing)
    upper = ops.add(ops.maximum(y.upper, 0.0), nothing)
    allowed = _nonzero(ops, y)
    return (bounds.between(_known_where(ops, allowed, lower), _known_where(ops, allowed, upper)),)


RULES: dict[Primitive, Callable[..., Refs]] = {
    ADD: _add,
    SUB: _sub,
    MUL: _mul,
    DIV: _div,
    INV: _inv,
    MAXIMUM: _ends("maximum"),
    MINIMUM: _ends("minimum"),
    ABS: _abs,
    COSH: _even("cosh", 16, 1.0),
    POW: _pow,
    POWER: _power,
    FLOOR_DIVIDE: _floor_divide,
    MOD: _mod,
}
EXACT = frozenset({ABS, MAXIMUM, MINIMUM})
