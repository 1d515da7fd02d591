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

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...ops.attention import BIASED_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION, allowed_of, scores_of
from ...ops.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ...ops.dims import prod
from ...ops.indexing import (
    GATHER_ROW,
    GATHER_ROWS,
    GATHER_SCALAR,
    GATHER_VEC,
    SCATTER_ADD_ROW,
    SCATTER_ADD_ROWS,
    SCATTER_ADD_SCALAR,
    SCATTER_ADD_VEC,
)
from ...ops.matmul import BMM, LINEAR, MATMUL
from ...ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ...ops.primitive import Primitive, Static
from ...ops.reduction import REDUCE_SUM
from ...ops.sequence import CUMSUM
from ...ops.types import TensorType, is_float
from .interpreter import TINY, Interval, Intervals, by_one_kernel, eps_of, gamma, overflow, rising

Refs = tuple[Interval[Any], ...]

PRODUCT_TERMS: dict[Primitive, Callable[[Any, Any], Any]] = {
    MATMUL: lambda a, b: a.shape[-1],
    BMM: lambda a, b: a.shape[-1],
    LINEAR: lambda a, b: a.shape[1],
    CONV: lambda a, b: prod(a.shape[1:]),
    CONV_TRANSPOSE: lambda a, b: a.shape[0] * prod(a.shape[2:]),
    CONV_KERNEL_GRAD: lambda a, b: prod(b.shape),
}
"""How many products there are at most in an element of the result, by the two operands."""


class _Errors(NamedTuple):
    """g and `more`, the factor of radii, as above; `tiny` and `lost`: what underflow takes of an operand, a result."""

    g: float
    more: float
    tiny: float
    lost: float

    def of(self, ops: Any, size: Any) -> Any:
        """The error of the products and of their operand's own rounding."""
        return ops.scale(size, c=self.g * (1 + self.g))

    def radius(self, ops: Any, low: Any, high: Any) -> Any:
        """Half of the way from one end to the other, enlarged."""
        return ops.scale(ops.sub(high, low), c=0.5 * self.more)


def _no_less(ops: Any, size: Any, least: float) -> Any:
    return ops.clamp(size, lo=least, hi=float("inf"))


def _middle(ops: Any, low: Any, high: Any) -> Any:
    return ops.scale(ops.add(low, high), c=0.5)


# Parts of the rule between products, each computed by one kernel where there is one: (ops, errors, *refs) -> refs


def _size(ops: Any, errors: _Errors, x: Any) -> Sequence[Any]:
    """|x|."""
    return (ops.abs(x),)


def _error(ops: Any, errors: _Errors, x: Any) -> Sequence[Any]:
    """The error of a product, in place of the radius of a point."""
    return (_no_less(ops, errors.of(ops, ops.abs(x)), errors.tiny),)


def _centred(ops: Any, errors: _Errors, low: Any, high: Any) -> Sequence[Any]:
    """c, and r with the error of the product."""
    c = _middle(ops, low, high)
    return c, _no_less(ops, ops.add(errors.radius(ops, low, high), errors.of(ops, ops.abs(c))), errors.tiny)


def _centred_alone(ops: Any, errors: _Errors, low: Any, high: Any) -> Sequence[Any]:
    """c, |c| and r."""
    c = _middle(ops, low, high)
    return c, ops.abs(c), _no_less(ops, errors.radius(ops, low, high), errors.tiny)


def _centred_with_reach(ops: Any, errors: _Errors, low: Any, high: Any) -> Sequence[Any]:
    """c, r with the error of the product, and |c| + r."""
    c = _middle(ops, low, high)
    size, radius = ops.abs(c), errors.radius(ops, low, high)
    return c, _no_less(ops, ops.add(radius, errors.of(ops, size)), errors.tiny), ops.add(size, radius)


def _around(ops: Any, errors: _Errors, middle: Any, *radii: Any) -> Sequence[Any]:
    """The ends of a result; `lost` is added where no bias has it in its radius.

    The radius is at least g times the sum of the products' magnitudes, which may not overflow.
    """
    radius = radii[0]
    for each in radii[1:]:
        radius = ops.add(radius, each)
    if errors.lost:
        radius = ops.add(radius, errors.lost)
    radius = ops.add(radius, overflow(ops, radius, 2 / errors.g))
    return ops.sub(middle, radius), ops.add(middle, radius)


def _part(ops: Any, part: Callable[..., Sequence[Any]], errors: _Errors, *refs: Any) -> Sequence[Any]:
    def program(ops: Any, refs: Any) -> tuple[Sequence[Any], None]:
        return part(ops, errors, *refs), None

    done = by_one_kernel(ops, (part, errors), f"product{part.__name__}", program, refs)
    return part(ops, errors, *refs) if done is None else done[0]


def _bias(ops: Any, errors: _Errors, x: Interval[Any]) -> tuple[Any, Any]:
    """The centre of a bias, and its radius with what underflow takes from the products: no more than the error."""
    c = x.lower if x.point else _middle(ops, x.lower, x.upper)
    error = ops.scale(ops.abs(c), c=2 * errors.g * (1 + errors.g))
    if x.point:
        return c, _no_less(ops, error, 2 * errors.lost)
    return c, ops.add(ops.add(errors.radius(ops, x.lower, x.upper), error), errors.lost)


def _product(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (a, *bias, b), ops = refs, bounds.inner
        terms = int(PRODUCT_TERMS[primitive](a, b))
        g = 2 * gamma(a.dtype, terms + len(bias)) + 4 * eps_of(a.dtype)
        tiny = TINY[a.dtype]
        errors = _Errors(g, (1 + g) * (1 + 2 * g), tiny, tiny * (1 + terms))

        def f(x: Any, *rest: Any) -> Any:
            statics = {**static, "has_bias": len(rest) == 2} if "has_bias" in static else static
            return ops.bind(primitive, (x, *rest), statics)[0]

        def part(of: Callable[..., Sequence[Any]], x: Interval[Any]) -> Sequence[Any]:
            return _part(ops, of, errors, *([x.lower] if x.point else [x.lower, x.upper]))

        added = [_bias(ops, errors, each) for each in bias]
        middles, sizes = [c for c, _ in added], [size for _, size in added]
        if b.point:
            ca, radius_a = (a.lower, *part(_error, a)) if a.point else part(_centred, a)
            cb, (size_b,) = b.lower, part(_size, b)
            radii = [f(radius_a, *sizes, size_b)]
        elif a.point:
            ca, (size_a,) = a.lower, part(_size, a)
            cb, radius_b = part(_centred, b)
            radii = [f(size_a, *sizes, radius_b)]
        else:
            ca, size_a, radius_a = part(_centred_alone, a)
            cb, radius_b, reach_b = part(_centred_with_reach, b)
            radii = [f(size_a, *sizes, radius_b), f(radius_a, reach_b)]
        ends = errors._replace(lost=0.0) if bias else errors
        return (bounds.between(*_part(ops, _around, ends, f(ca, *middles, cb), *radii)),)

    return rule


# Attention: by the rule of softmax, since its parts would forget that scores share a peak -----------------------------


def weighted(ops: Any, scores: Any, v: Any, mask: tuple[Any, ...], causal: bool) -> Any:
    """softmax(scores)·v on any interpreter of bounds; a row that may attend to nothing gives zeros."""
    if not mask and not causal:
        return ops.bmm(ops.softmax(scores, axis=-1), v)
    allowed = allowed_of(ops, scores.shape, mask, causal)
    zero = ops.full(shape=scores.shape, value=0.0, dtype=scores.dtype)
    floor = ops.full(shape=scores.shape, value=-math.inf, dtype=scores.dtype)
    blank = ops.logical_not(ops.reduce_any(allowed, axis=-1, keepdims=True))
    # scores of -inf alone have no softmax, so such a row gets zeros
    seen = ops.select(ops.broadcast_to(blank, shape=scores.shape), zero, ops.select(allowed, scores, floor))
    return ops.bmm(ops.select(allowed, ops.softmax(seen, axis=-1), zero), v)


def attended_by(ops: Any, q: Any, k: Any, v: Any, mask: tuple[Any, ...], causal: bool) -> Any:
    """Attention on any interpreter of bounds."""
    return weighted(ops, scores_of(ops, q, k), v, mask, causal)


def _with_residuals(bounds: Intervals[Any], out: Interval[Any], q: Interval[Any], v: Interval[Any]) -> Refs:
    """A run divides last: it sums v by weights of up to 1 each, and not of 1 in all."""
    ops = bounds.inner
    total = ops.reduce_sum(ops.maximum(ops.abs(v.lower), ops.abs(v.upper)), axis=-2, keepdims=True)
    nothing = ops.broadcast_to(overflow(ops, total, 1 + 2 * gamma(v.dtype, int(v.shape[-2]))), shape=out.shape)
    out = bounds.between(ops.add(out.lower, nothing), ops.add(out.upper, nothing))
    row = TensorType((*q.shape[:-1], 1), q.dtype)
    return out, bounds.unknown(row), bounds.unknown(row)


def _attention(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    q, k, v, *mask = refs
    return _with_residuals(bounds, attended_by(bounds, q, k, v, tuple(mask), static["causal"]), q, v)


def _biased(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    q, k, v, bias, *mask = refs
    scores = scores_of(bounds, q, k)
    scores = bounds.add(scores, bounds.broadcast_to(bias, shape=scores.shape))
    return _with_residuals(bounds, weighted(bounds, scores, v, tuple(mask), static["causal"]), q, v)


# Sums of elements, with factors that are not negative: each end is the sum of ends, less its rounding -----------------


SUM_TERMS: dict[Primitive, Callable[[Refs, Static], Any]] = {
    REDUCE_SUM: lambda refs, static: prod([refs[0].shape[axis] for axis in static["axes"]]),
    CUMSUM: lambda refs, static: refs[0].shape[static["axis"]],
    AVG_POOL: lambda refs, static: prod(static["kernel"]) + 2,
    AVG_POOL_GRAD: lambda refs, static: prod(static["kernel"]) + 2,
    MAX_POOL_SCATTER: lambda refs, static: prod(static["kernel"]) + 1,
    SCATTER_ADD_ROW: lambda refs, static: 2,
    SCATTER_ADD_SCALAR: lambda refs, static: 2,
    SCATTER_ADD_ROWS: lambda refs, static: prod(refs[2].shape) + 1,
    SCATTER_ADD_VEC: lambda refs, static: prod(refs[2].shape) + 1,
}
"""How many terms there are at most in an element of the result."""

GATHERS = (GATHER_ROW, GATHER_ROWS, GATHER_SCALAR, GATHER_VEC, MAX_POOL_GATHER)


def _sum(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        ops, dtype = bounds.inner, refs[0].dtype
        terms = int(SUM_TERMS[primitive](refs, static))
        g = 2 * gamma(dtype, terms) + 2 * eps_of(dtype)
        divisor = terms if primitive is AVG_POOL else 1

        def f(ends: list[Any]) -> Any:
            return ops.bind(primitive, tuple(ends), static)[0]

        def end(values: list[Any]) -> tuple[Any, Any]:
            sizes = [ops.abs(x) if is_float(x.dtype) else x for x in values]
            size = f(sizes)
            return f(values), ops.add(ops.scale(size, c=g * (1 + g)), overflow(ops, size, divisor * (1 + 2 * g)))

        total, error = end([x.lower for x in refs])
        lower = ops.sub(total, error)
        if not all(x.point for x in refs):
            total, error = end([x.upper for x in refs])
        return (bounds.between(lower, ops.add(total, error)),)

    return rule


RULES: dict[Primitive, Callable[..., Refs]] = {
    **{primitive: _product(primitive) for primitive in PRODUCT_TERMS},
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
    BIASED_ATTENTION: _biased,
    **{primitive: _sum(primitive) for primitive in SUM_TERMS},
    **{primitive: rising(primitive) for primitive in GATHERS},
}
EXACT = frozenset({*GATHERS})
