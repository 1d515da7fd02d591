"""Products of two operands that both depend on a box, and what is made of them: quotients, softmax, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, allowed_of, scores_of
from ....ops.catalogue.elementwise import DIV, MUL
from ....ops.catalogue.linalg import BMM
from ....ops.catalogue.reduction import SOFTMAX
from ....ops.primitive import Primitive, Static
from ...intervals import Interval
from ...intervals.rounding import eps_of
from ..interpreter import Related, Relaxed
from . import linear, unary
from .errors import magnitude, rounded

_LARGEST = 1 << 20
"""The most products of a pair of matrices that are bounded one by one."""


def _mul(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    """McCormick's planes: xl·y + yl·x - xl·yl below, xl·y + yu·x - xl·yu above (McCormick, 1976)."""
    x, y = refs
    if x is y:
        return unary.square(relaxed, x, intervals)
    if linear.linear_in(MUL, refs):
        return linear.linear_product(relaxed, refs, static, intervals)
    ops = relaxed.inner
    a, b = relaxed.tightened(x), relaxed.tightened(y)
    out = relaxed.intervals.bind(MUL, (a, b), {})[0]
    below, above = ops.neg(ops.mul(a.lower, b.lower)), ops.neg(ops.mul(a.lower, b.upper))
    size = ops.scale(ops.mul(magnitude(ops, a), magnitude(ops, b)), c=4.0)
    below, above = rounded(ops, below, above, size, 16 * eps_of(x.dtype))

    def pull(ops: Any, g: Any) -> Sequence[Any]:
        positive = ops.less(ops.full(shape=g.shape, value=0.0, dtype=g.dtype), g)
        return [ops.mul(g, ops.select(positive, b.lower, b.upper)), ops.mul(g, a.lower)]

    return (relaxed.related(out, [x, y], pull, below, above),)


def _div(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    x, y = refs
    if linear.linear_in(DIV, refs):
        return linear.linear_quotient(relaxed, refs, static, intervals)
    return (relaxed.met(relaxed.mul(x, relaxed.inv(y)), intervals[0]),)


def normalised(relaxed: Relaxed[Any], x: Related[Any], axis: int, allowed: Any = None) -> Related[Any]:
    """e^(x - m) over its sum, for the number m that is the greatest that x may be; 0 where it is not `allowed`."""
    ops = relaxed.inner
    upper = relaxed.tightened(x).upper
    if allowed is not None:
        upper = ops.select(allowed.interval.lower, upper, ops.full(shape=x.shape, value=-math.inf, dtype=x.dtype))
    peak = ops.reduce_max(upper, axis=axis, keepdims=True)
    blank = ops.equal(peak, ops.full(shape=peak.shape, value=-math.inf, dtype=peak.dtype))
    zero = ops.full(shape=peak.shape, value=0.0, dtype=peak.dtype)
    peak = ops.broadcast_to(ops.select(blank, zero, peak), shape=x.shape)
    shifted = relaxed.sub(x, relaxed.wrap(peak))
    if allowed is None:
        e = relaxed.exp(shifted)
        total = relaxed.reduce_sum(e, axis=axis, keepdims=True)
    else:
        nothing = relaxed.full(shape=x.shape, value=0.0, dtype=x.dtype)
        e = relaxed.select(allowed, relaxed.exp(relaxed.select(allowed, shifted, nothing)), nothing)
        total = relaxed.reduce_sum(e, axis=axis, keepdims=True)
        one = ops.full(shape=(*peak.shape[:-1], 1), value=1.0, dtype=peak.dtype)
        total = relaxed.select(relaxed.wrap(blank), relaxed.wrap(one), total)
    return relaxed.mul(e, relaxed.broadcast_to(relaxed.inv(total), shape=x.shape))


def _softmax(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    (x,) = refs
    if 0 in x.shape:
        return None
    found = normalised(relaxed, x, static["axis"])
    return (relaxed.met(found, relaxed.intervals.bind(SOFTMAX, (x.interval,), static)[0]),)


def _bmm(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    if linear.linear_in(BMM, refs):
        return linear.linear_stack_of_products(relaxed, refs, static, intervals)
    x, y = refs
    *leading, m, k = x.shape
    n = y.shape[-1]
    every = (*leading, m, k, n)
    if math.prod(map(int, every)) > _LARGEST:
        return None
    rows = relaxed.broadcast_to(relaxed.unsqueeze(x, axis=-1), shape=every)
    columns = relaxed.broadcast_to(relaxed.unsqueeze(y, axis=len(leading)), shape=every)
    return (relaxed.met(relaxed.reduce_sum(relaxed.mul(rows, columns), axis=len(leading) + 1), intervals[0]),)


def _attention(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    q, k, v, *mask = refs
    if any(not each.interval.point for each in mask):
        return None
    scores = scores_of(relaxed, q, k)
    if not mask and not static["causal"]:
        return (relaxed.met(relaxed.bmm(relaxed.softmax(scores, axis=-1), v), intervals[0]),)
    allowed: Any = allowed_of(relaxed, scores.shape, tuple(mask), static["causal"])
    out = relaxed.bmm(normalised(relaxed, scores, len(scores.shape) - 1, allowed), v)
    return (relaxed.met(out, intervals[0]),)


RULES: dict[Primitive, Callable[..., Any]] = {
    MUL: _mul,
    DIV: _div,
    SOFTMAX: _softmax,
    BMM: _bmm,
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
}
