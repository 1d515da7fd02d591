"""Activations that fall and then rise, and products of a cotangent with the derivative of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ....ops.catalogue.activation import GELU, HARDSWISH, MISH, RELU_GRAD, SILU
from ....ops.primitive import Primitive, Static
from ..interpreter import Interval, Intervals
from ..rounding import down, up
from .elementwise import filled

Refs = tuple[Interval[Any], ...]


class Valley(NamedTuple):
    """Where a function that falls and then rises is least, to 1e-6, and a number just below that value."""

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
"""How far a kernel may be off, in ulps of the operand: each is x times a factor of at most about 1.

That of gelu is ½·(1 + t). t = tanh(u), or erf(u), is off by 4 ulps of itself, and by t'(u)·u times the 2.5 roundings
of u: together by at most 4.4, which is at u = 1.5; the sum rounds by 1, and the products by 1 of x: 3.7 in all. Silu's
is a sigmoid, off by s·(1 + 4·(1 - s)) <= 1.6, and a product. Mish's is a tanh of a softplus, off by 8 ulps of itself.
"""


def _valley(primitive: Primitive, find: Callable[[Static], Valley]) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x,), ops, valley = refs, bounds.inner, find(static)
        first = ops.bind(primitive, (x.lower,), static)[0]
        last = first if x.point else ops.bind(primitive, (x.upper,), static)[0]
        size, error = ops.maximum(ops.abs(x.lower), ops.abs(x.upper)), FACTOR_ERRORS[primitive]
        upper = up(ops, ops.maximum(first, last), error, of=size)
        falls = ops.less(x.upper, filled(ops, x.upper, valley.at - 1e-4))
        rises = ops.less(filled(ops, x.lower, valley.at + 1e-4), x.lower)
        bottom = filled(ops, first, valley.value)
        lower = ops.select(rises, first, ops.select(falls, last, bottom))
        unknown = ops.sub(upper, upper)  # 0, or nan where that is nan or infinite
        lower = down(ops, lower, error, of=ops.maximum(size, 1.0))
        return (bounds.between(ops.select(ops.equal(upper, upper), lower, unknown), upper),)

    return rule


def _relu_grad(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """g where y > 0, else 0."""
    (y, g), ops = refs, bounds.inner
    zero = filled(ops, g.lower, 0.0)
    dead = ops.less_equal(y.upper, zero)
    alive = ops.less(zero, y.lower)
    lower = ops.select(alive, g.lower, ops.minimum(g.lower, zero))
    upper = ops.select(alive, g.upper, ops.maximum(g.upper, zero))
    unknown = _either_nan(ops, y)
    lower, upper = ops.add(ops.select(dead, zero, lower), unknown), ops.add(ops.select(dead, zero, upper), unknown)
    return (bounds.between(lower, upper),)


def _either_nan(ops: Any, y: Interval[Any]) -> Any:
    """0, or nan where an end is nan."""
    known = ops.less_equal(y.lower, y.upper)
    return ops.select(known, filled(ops, y.lower, 0.0), filled(ops, y.lower, float("nan")))


RULES: dict[Primitive, Callable[..., Refs]] = {
    **{primitive: _valley(primitive, find) for primitive, find in VALLEYS.items()},
    RELU_GRAD: _relu_grad,
}
EXACT = frozenset({RELU_GRAD})
