"""Products of matrices, and convolutions: by centre and radius (Rump, Fast and parallel interval arithmetic, BIT 1999).

For a = ca ± ra and b = cb ± rb, with f the bilinear op, f(a, b) is within f(|ca|, rb) + f(ra, |cb| + rb) of f(ca, cb).
The error of f itself, in a run and here, is at most gamma_n times f(|a|, |b|) each, and is added to rb: so an exact
weight costs two products, and two operands that are open three.
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


def centre(ops: Any, x: Interval[Any]) -> tuple[Any, Any]:
    """A number in the middle, and how far the ends are from it, or None at a point."""
    if x.point:
        return x.lower, None
    middle = ops.add(ops.scale(x.lower, c=0.5), ops.scale(x.upper, c=0.5))
    return middle, ops.maximum(ops.sub(x.upper, middle), ops.sub(middle, x.lower))


def _product(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (a, *bias, b), ops = refs, bounds.inner
        has_bias = "has_bias" in static
        without = {**static, "has_bias": False} if has_bias else static
        terms = TERMS[primitive](a, b)
        g = 2 * gamma(a.dtype, int(terms) + len(bias)) + 4 * eps_of(a.dtype)

        def f(x: Any, *rest: Any) -> Any:
            statics = {**static, "has_bias": len(rest) == 2} if has_bias else without
            return ops.bind(primitive, (x, *rest), statics)[0]

        def widened(size: Any, radius: Any) -> Any:
            """The radius with the errors of the products in it, those of the radius's own product included."""
            error = ops.scale(size, c=g * (1 + g))
            return error if radius is None else ops.add(ops.scale(radius, c=(1 + g) * (1 + g)), error)

        (ca, ra), (cb, rb) = centre(ops, a), centre(ops, b)
        sizes = []
        middles = []
        for each in bias:
            middle, radius = centre(ops, each)
            middles.append(middle)
            sizes.append(widened(ops.abs(middle), radius))
        size_b = ops.abs(cb) if rb is None else ops.add(ops.abs(cb), rb)
        radius = f(ops.abs(ca), *sizes, widened(size_b, rb))
        if ra is not None:
            radius = ops.add(radius, f(ops.scale(ra, c=(1 + g) * (1 + g)), ops.scale(size_b, c=1 + g)))
        radius = ops.add(radius, TINY[a.dtype] * (1 + int(terms)))
        middle = f(ca, *middles, cb)
        return (bounds.between(ops.sub(middle, radius), ops.add(middle, radius)),)

    return rule


RULES: dict[Primitive, Callable[..., Refs]] = {primitive: _product(primitive) for primitive in TERMS}
