"""Products of matrices, and convolutions: by centre and radius (Rump, Fast and parallel interval arithmetic, BIT 1999).

For a = ca ± ra and b = cb ± rb, with f the bilinear op, f(a, b) is within f(|ca|, rb) + f(ra, |cb| + rb) of f(ca, cb).
The error of f itself, in a run and here, is at most gamma_n times f(|a|, |b|) each, and is added to rb: so an exact
weight costs two products, and two operands that are open three.

With u = eps / 2 and s = |c| + r as computed, g = 2·gamma_n + 4·eps covers all: the centre is off by u·s, the radius by
as much, and s itself may be too small by 2·u·s. A run and the product of the centres are each off by gamma_n times the
product of magnitudes. Sum: (2·gamma_n + 2·eps)·s up to factors 1 + O(gamma), which g·(1 + g) holds; radii are enlarged
by (1 + g)·(1 + 2g) for products of them, which round too. What underflow takes from a centre or a radius is less than
what a radius is never less than (`_no_less`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....ops.catalogue.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.dims import prod
from ....ops.primitive import Primitive, Static
from ..interpreter import Interval, Intervals
from ..rounding import TINY, eps_of, gamma

Refs = tuple[Interval[Any], ...]

TERMS: dict[Primitive, Callable[[Any, Any], Any]] = {
    MATMUL: lambda a, b: a.shape[-1],
    BMM: lambda a, b: a.shape[-1],
    LINEAR: lambda a, b: a.shape[1],
    CONV: lambda a, b: prod(a.shape[1:]),
    CONV_TRANSPOSE: lambda a, b: a.shape[0] * prod(a.shape[2:]),
    CONV_KERNEL_GRAD: lambda a, b: prod(b.shape),
}
"""How many products there are at most in an element of the result, by the two operands."""


def _centre(ops: Any, x: Interval[Any]) -> tuple[Any, Any]:
    """A number in the middle, and how far the ends are from one another, or None at a point."""
    if x.point:
        return x.lower, None
    return ops.scale(ops.add(x.lower, x.upper), c=0.5), ops.sub(x.upper, x.lower)


def _no_less(ops: Any, size: Any, least: float) -> Any:
    return ops.clamp(size, lo=least, hi=float("inf"))


def _product(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (a, *bias, b), ops = refs, bounds.inner
        terms = int(TERMS[primitive](a, b))
        g = 2 * gamma(a.dtype, terms + len(bias)) + 4 * eps_of(a.dtype)
        more = (1 + g) * (1 + 2 * g)
        tiny = TINY[a.dtype]
        lost = tiny * (1 + terms)

        def f(x: Any, *rest: Any) -> Any:
            statics = {**static, "has_bias": len(rest) == 2} if "has_bias" in static else static
            return ops.bind(primitive, (x, *rest), statics)[0]

        def widened(size: Any, width: Any) -> Any:
            """The radius with the errors of the products in it, those of its own product included."""
            error = ops.scale(size, c=g * (1 + g))
            return _no_less(ops, error if width is None else ops.add(ops.scale(width, c=0.5 * more), error), tiny)

        (ca, da), (cb, db) = _centre(ops, a), _centre(ops, b)
        added = [_centre(ops, each) for each in bias]
        sizes = []
        for c, d in added:  # and with what underflow takes from the products: as much as the error, or less than that
            error = ops.scale(ops.abs(c), c=2 * g * (1 + g))
            if d is not None:
                error = ops.add(ops.scale(d, c=0.5 * more), error)
            sizes.append(_no_less(ops, error, 2 * lost) if d is None else ops.add(error, lost))
        size_a, size_b = ops.abs(ca), ops.abs(cb)
        if db is None:
            radius = f(widened(size_a, da), *sizes, size_b)
        else:
            radius = f(size_a, *sizes, widened(size_b, db))
            if da is not None:
                reach = ops.add(size_b, ops.scale(db, c=0.5 * more))
                radius = ops.add(radius, f(_no_less(ops, ops.scale(da, c=0.5 * more), tiny), reach))
        if not bias:
            radius = ops.add(radius, lost)
        middle = f(ca, *[c for c, _ in added], cb)
        return (bounds.between(ops.sub(middle, radius), ops.add(middle, radius)),)

    return rule


RULES: dict[Primitive, Callable[..., Refs]] = {primitive: _product(primitive) for primitive in TERMS}
