"""Rules of ops that read several elements: maxima, normalised exponentials, products of matrices, attention, sums.

Products of matrices and convolutions go by centre and radius (Rump, Fast and parallel interval arithmetic, BIT 1999).

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

from ...ops.attention import BIASED_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION, attention_mask, attention_scores
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
from ...ops.loss import CROSS_ENTROPY, class_axis, is_label
from ...ops.matmul import BMM, LINEAR, MATMUL
from ...ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER, SMOOTH_MAX_POOL
from ...ops.primitive import Primitive, Static
from ...ops.reduction import (
    ARGMAX,
    ARGMIN,
    LOG_SOFTMAX,
    REDUCE_ALL,
    REDUCE_ANY,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_SUM,
    SOFTMAX,
)
from ...ops.sequence import ARGSORT, CUMSUM
from ...ops.types import BOOL, INT64, TensorType, is_float
from .control import cast
from .elementwise import full_like
from .interpreter import TINY, Interval, Intervals, by_one_kernel, down, epsilon, gamma, overflow, rising, slack, up

Refs = tuple[Interval[Any], ...]


def any_index(bounds: Intervals[Any], shape: Any, count: Any) -> Interval[Any]:
    """Return an index about which only the number of entries is known."""
    ends = [bounds.inner.full(shape=shape, value=value, dtype=INT64) for value in (0, max(int(count) - 1, 0))]
    return bounds.between(*ends)


def _arg(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (type_,) = primitive.infer((TensorType(refs[0].shape, refs[0].dtype),), static)
        return (any_index(bounds, type_.shape, refs[0].shape[static["axis"]]),)

    return rule


def _whether(name: str) -> Callable[..., Refs]:
    """Return the rule of `any` or `all`: over masks that of each end; numbers are first compared with 0."""

    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x,), ops = refs, bounds.inner
        mask = x if x.dtype == BOOL else cast(bounds, refs, {"dtype": BOOL})[0]
        f = getattr(ops, name)
        ends = [f(end, axis=static["axes"], keepdims=static["keepdims"]) for end in (mask.lower, mask.upper)]
        return (bounds.between(*ends),)

    return rule


def _max_pool(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    greatest, index = bounds.at_ends(MAX_POOL, refs, static)
    cells = prod(refs[0].shape[-len(static["kernel"]) :])
    return greatest, any_index(bounds, index.shape, cells)


def _smooth_max_pool(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """Bound a pool that rises in every cell, for either sign of beta; its error is that of a sum of exponentials, over
    |beta|.
    """
    (found,), ops = bounds.at_ends(SMOOTH_MAX_POOL, refs, static), bounds.inner
    lower, upper = found.lower, found.upper
    beta, cells = abs(float(static["beta"])), int(prod(static["kernel"]))
    size = ops.maximum(ops.maximum(ops.abs(lower), ops.abs(upper)), (cells + 32) / beta)
    return (bounds.between(down(ops, lower, 8, of=size), up(ops, upper, 8, of=size)),)


# Normalised exponentials: element i rises in x_i and falls in every other -------------------------------------------

_DEEPEST = 800
"""More than the exponent at which exp underflows in float64: the argument is off by at most that many ulps of 1."""


class _Exponentials(NamedTuple):
    """Exponentials of the ends of a row.

    low, high      both ends less the largest of the upper ones
    at_low         the exponentials of both ends; `at_high` likewise
    beside_low     an upper bound of the sum of the other exponentials of the row when this one is at its lower end
    beside_high    a lower bound of that sum when this one is at its upper end
    error          the relative error of a sum of exponentials
    """

    low: Any
    high: Any
    at_low: Any
    at_high: Any
    beside_low: Any
    beside_high: Any
    error: float


def _exponentials(ops: Any, x: Interval[Any], axis: int) -> _Exponentials:
    """Return the exponentials of a row's ends, and of the sums of the others.

    If all elements are -inf, the shift is not a number and makes everything nan.
    """
    peak = ops.broadcast_to(ops.reduce_max(x.upper, axis=axis, keepdims=True), shape=x.shape)
    low, high = ops.sub(x.lower, peak), ops.sub(x.upper, peak)
    terms = int(x.shape[axis])
    error = 2 * gamma(x.dtype, terms + 32) + 2 * _DEEPEST * epsilon(x.dtype)
    at_low, at_high = ops.exp(low), ops.exp(high)
    sums = [ops.broadcast_to(ops.reduce_sum(e, axis=axis, keepdims=True), shape=e.shape) for e in (at_low, at_high)]
    least, most = ops.sub(sums[0], at_low), ops.sub(sums[1], at_high)
    slack = ops.scale(sums[1], c=error)
    beside_low, beside_high = ops.add(ops.maximum(most, 0.0), slack), ops.maximum(ops.sub(least, slack), 0.0)
    return _Exponentials(low, high, at_low, at_high, beside_low, beside_high, error)


def _softmax(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops, axis = refs, bounds.inner, static["axis"]
    if 0 in x.shape:
        return bounds.at_ends(SOFTMAX, refs, static)
    e = _exponentials(ops, x, axis)
    lower = ops.div(e.at_low, ops.add(e.at_low, e.beside_low))
    above = ops.add(e.at_high, e.beside_high)
    # 0 / 0 of a wide box, where all other exponentials may underflow: the result is any share of the row
    one, vanishes = full_like(ops, above, 1.0), ops.equal(above, full_like(ops, above, 0.0))
    upper = ops.select(vanishes, one, ops.div(e.at_high, ops.select(vanishes, one, above)))
    ulps = e.error / epsilon(x.dtype)
    lower, upper = down(ops, lower, ulps), up(ops, upper, ulps)
    return (bounds.between(ops.maximum(lower, 0.0), ops.minimum(upper, 1.0 + 4 * epsilon(x.dtype))),)


def _log_softmax(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops, axis = refs, bounds.inner, static["axis"]
    if 0 in x.shape:
        return bounds.at_ends(LOG_SOFTMAX, refs, static)
    e = _exponentials(ops, x, axis)
    below, above = ops.log(ops.add(e.at_low, e.beside_low)), ops.log(ops.add(e.at_high, e.beside_high))
    lower, upper = ops.sub(e.low, below), ops.sub(e.high, above)

    def size(end: Any, log: Any) -> Any:
        return ops.add(ops.add(ops.abs(end), ops.abs(log)), e.error / epsilon(x.dtype))

    return (
        bounds.between(
            down(ops, lower, 4, of=size(e.low, below)), ops.minimum(up(ops, upper, 4, of=size(e.high, above)), 0.0)
        ),
    )


# Cross-entropy: it falls in the logit of the label and rises in every other -------------------------------------------


def _cross_entropy(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (logits, labels), ops = refs, bounds.inner
    if static["label_smoothing"] != 0:
        return bounds.decompose(CROSS_ENTROPY, refs, static)
    own = is_label(ops, logits.lower, labels.lower)
    worst, best = ops.select(own, logits.lower, logits.upper), ops.select(own, logits.upper, logits.lower)
    axis = class_axis(len(logits.shape))
    terms = int(logits.shape[axis]) + int(prod(labels.shape))
    losses = [ops.bind(CROSS_ENTROPY, (chosen, labels.lower), static)[0] for chosen in (best, worst)]
    count = 1 if static["reduction"] == "mean" else int(prod(labels.shape))
    sizes = [ops.add(ops.abs(loss), full_like(ops, loss, float(count))) for loss in losses]
    lower = ops.maximum(ops.sub(losses[0], slack(ops, sizes[0], terms + 32)), 0.0)
    upper = ops.add(losses[1], slack(ops, sizes[1], terms + 32))
    peak = [ops.reduce_max(end, axis=axis, keepdims=True) for end in (logits.lower, logits.upper)]
    one = full_like(ops, peak[0], 1.0)
    most = ops.scale(one, c=int(logits.shape[axis]) * (1 + 2 * terms * epsilon(logits.dtype)))
    return bounds.between(lower, upper), bounds.between(*peak), bounds.between(one, most)


# Products of matrices, and convolutions -------------------------------------------------------------------------------

PRODUCT_TERMS: dict[Primitive, Callable[[Any, Any], Any]] = {
    MATMUL: lambda a, b: a.shape[-1],
    BMM: lambda a, b: a.shape[-1],
    LINEAR: lambda a, b: a.shape[1],
    CONV: lambda a, b: prod(a.shape[1:]),
    CONV_TRANSPOSE: lambda a, b: a.shape[0] * prod(a.shape[2:]),
    CONV_KERNEL_GRAD: lambda a, b: prod(b.shape),
}
"""The largest number of products in an element of the result, by the two operands."""


class _Errors(NamedTuple):
    """The error `g`, the factor `more` of radii, and what underflow removes from an operand, `tiny`, and a result,
    `lost`.
    """

    g: float
    more: float
    tiny: float
    lost: float

    def of(self, ops: Any, size: Any) -> Any:
        """Return the error of the products and of their operand's own rounding."""
        return ops.scale(size, c=self.g * (1 + self.g))

    def radius(self, ops: Any, low: Any, high: Any) -> Any:
        """Return half of the distance between the ends, enlarged."""
        return ops.scale(ops.sub(high, low), c=0.5 * self.more)


def _no_less(ops: Any, size: Any, least: float) -> Any:
    return ops.clamp(size, lo=least, hi=float("inf"))


def _middle(ops: Any, low: Any, high: Any) -> Any:
    return ops.scale(ops.add(low, high), c=0.5)


# Parts of the rule between products, each by one kernel if possible: (ops, errors, *refs) -> refs


def _size(ops: Any, errors: _Errors, x: Any) -> Sequence[Any]:
    """Compute |x|."""
    return (ops.abs(x),)


def _error(ops: Any, errors: _Errors, x: Any) -> Sequence[Any]:
    """Compute the error of a product, in place of the radius of a point."""
    return (_no_less(ops, errors.of(ops, ops.abs(x)), errors.tiny),)


def _centred(ops: Any, errors: _Errors, low: Any, high: Any) -> Sequence[Any]:
    """Compute c, and r with the error of the product."""
    c = _middle(ops, low, high)
    return c, _no_less(ops, ops.add(errors.radius(ops, low, high), errors.of(ops, ops.abs(c))), errors.tiny)


def _centred_alone(ops: Any, errors: _Errors, low: Any, high: Any) -> Sequence[Any]:
    """Compute c, |c| and r."""
    c = _middle(ops, low, high)
    return c, ops.abs(c), _no_less(ops, errors.radius(ops, low, high), errors.tiny)


def _centred_with_reach(ops: Any, errors: _Errors, low: Any, high: Any) -> Sequence[Any]:
    """Compute c, r with the error of the product, and |c| + r."""
    c = _middle(ops, low, high)
    size, radius = ops.abs(c), errors.radius(ops, low, high)
    return c, _no_less(ops, ops.add(radius, errors.of(ops, size)), errors.tiny), ops.add(size, radius)


def _around(ops: Any, errors: _Errors, middle: Any, *radii: Any) -> Sequence[Any]:
    """Compute the ends of a result; add `lost` if no bias has it in its radius.

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
    """Return the centre of a bias, and its radius with the underflow of the products, which is at most the error."""
    c = x.lower if x.point else _middle(ops, x.lower, x.upper)
    error = ops.scale(ops.abs(c), c=2 * errors.g * (1 + errors.g))
    if x.point:
        return c, _no_less(ops, error, 2 * errors.lost)
    return c, ops.add(ops.add(errors.radius(ops, x.lower, x.upper), error), errors.lost)


def _product(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (a, *bias, b), ops = refs, bounds.inner
        terms = int(PRODUCT_TERMS[primitive](a, b))
        g = 2 * gamma(a.dtype, terms + len(bias)) + 4 * epsilon(a.dtype)
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
    """Return softmax(scores)·v on any interpreter of bounds; a row without allowed positions is zero."""
    if not mask and not causal:
        return ops.bmm(ops.softmax(scores, axis=-1), v)
    allowed = attention_mask(ops, scores.shape, mask, causal)
    zero = ops.full(shape=scores.shape, value=0.0, dtype=scores.dtype)
    floor = ops.full(shape=scores.shape, value=-math.inf, dtype=scores.dtype)
    blank = ops.logical_not(ops.reduce_any(allowed, axis=-1, keepdims=True))
    # scores of -inf alone have no softmax, so such a row gets zeros
    seen = ops.select(ops.broadcast_to(blank, shape=scores.shape), zero, ops.select(allowed, scores, floor))
    return ops.bmm(ops.select(allowed, ops.softmax(seen, axis=-1), zero), v)


def _with_residuals(bounds: Intervals[Any], out: Interval[Any], q: Interval[Any], v: Interval[Any]) -> Refs:
    """Return the results of attention; a run divides last, so it sums v by weights of up to 1 each."""
    ops = bounds.inner
    total = ops.reduce_sum(ops.maximum(ops.abs(v.lower), ops.abs(v.upper)), axis=-2, keepdims=True)
    nothing = ops.broadcast_to(overflow(ops, total, 1 + 2 * gamma(v.dtype, int(v.shape[-2]))), shape=out.shape)
    out = bounds.between(ops.add(out.lower, nothing), ops.add(out.upper, nothing))
    row = TensorType((*q.shape[:-1], 1), q.dtype)
    return out, bounds.unknown(row), bounds.unknown(row)


def _attention(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    q, k, v, *mask = refs
    return _with_residuals(
        bounds, weighted(bounds, attention_scores(bounds, q, k), v, tuple(mask), static["causal"]), q, v
    )


def _biased(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    q, k, v, bias, *mask = refs
    scores = attention_scores(bounds, q, k)
    scores = bounds.add(scores, bounds.broadcast_to(bias, shape=scores.shape))
    return _with_residuals(bounds, weighted(bounds, scores, v, tuple(mask), static["causal"]), q, v)


# Sums of elements, with nonnegative factors: each end is the sum of ends, less its rounding ---------------------------


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
"""The largest number of terms in an element of the result."""

GATHERS = (GATHER_ROW, GATHER_ROWS, GATHER_SCALAR, GATHER_VEC, MAX_POOL_GATHER)


def _sum(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        ops, dtype = bounds.inner, refs[0].dtype
        terms = int(SUM_TERMS[primitive](refs, static))
        g = 2 * gamma(dtype, terms) + 2 * epsilon(dtype)
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
    **{primitive: rising(primitive) for primitive in (REDUCE_MAX, REDUCE_MIN, *GATHERS)},
    REDUCE_ANY: _whether("reduce_any"),
    REDUCE_ALL: _whether("reduce_all"),
    **{primitive: _arg(primitive) for primitive in (ARGMAX, ARGMIN, ARGSORT)},
    MAX_POOL: _max_pool,
    SMOOTH_MAX_POOL: _smooth_max_pool,
    SOFTMAX: _softmax,
    LOG_SOFTMAX: _log_softmax,
    CROSS_ENTROPY: _cross_entropy,
    **{primitive: _product(primitive) for primitive in PRODUCT_TERMS},
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
    BIASED_ATTENTION: _biased,
    **{primitive: _sum(primitive) for primitive in SUM_TERMS},
}
EXACT = frozenset({REDUCE_MAX, REDUCE_MIN, REDUCE_ANY, REDUCE_ALL, ARGMAX, ARGMIN, ARGSORT, MAX_POOL, *GATHERS})
OPEN_INTEGERS = frozenset({REDUCE_ANY, REDUCE_ALL})
