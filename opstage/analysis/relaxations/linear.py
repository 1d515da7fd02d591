"""Ops that are linear in the operands that depend on a box: the backward pass is their vjp rule.

Products, softmax, attention and pools follow; their lines come from the intervals of their operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ...ops.attention import SCALED_DOT_PRODUCT_ATTENTION, attention_mask, attention_scores
from ...ops.convolution import CONV, CONV_TRANSPOSE
from ...ops.dims import prod
from ...ops.elementwise import ADD, DIV, MUL, NEG, SCALE, SUB
from ...ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ...ops.logic import DETACH, SELECT
from ...ops.matmul import BMM, LINEAR, MATMUL
from ...ops.pooling import AVG_POOL, MAX_POOL
from ...ops.primitive import Primitive, Static
from ...ops.reduction import REDUCE_SUM, SOFTMAX
from ...ops.slicing import CONCAT, PAD, SLICE
from ...ops.types import FLOAT32, TensorType, is_float
from ..intervals.elementwise import full_like
from ..intervals.interpreter import TINY, Interval, epsilon, gamma, up
from ..intervals.reduction import PRODUCT_TERMS, SUM_TERMS
from . import unary
from .interpreter import Related, Relaxed, by_sign, double, magnitude, rounded


class ForwardCall(NamedTuple):
    """The forward call of an op, as its vjp rule sees it."""

    needs: tuple[bool, ...]
    saved: tuple[Any, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]


_BILINEAR = {MUL, MATMUL, BMM, LINEAR, CONV, CONV_TRANSPOSE}
_JOINT = {ADD, SUB, NEG, SCALE, CONCAT, PAD, PERMUTE, RESHAPE, SLICE, BROADCAST_TO, REDUCE_SUM, AVG_POOL, SELECT}
_CENTRED = _BILINEAR - {MUL}
_LEAST = 2.0**-100
_EXACT = {NEG, CONCAT, PAD, PERMUTE, RESHAPE, SLICE, SELECT}


def is_linear(primitive: Primitive, refs: Sequence[Related[Any]]) -> bool:
    """Return whether an op is linear, up to a constant, in those operands that are not points."""
    is_open = [not ref.interval.point for ref in refs]
    if primitive in _JOINT:
        return primitive is not SELECT or not is_open[0]
    if primitive is DIV:
        return not is_open[1]
    factors = [is_open[0], is_open[-1]]
    return primitive in _BILINEAR and factors != [True, True]


def _linear(primitive: Primitive, otherwise: Callable[..., Any] = lambda *call: None) -> Callable[..., Any]:
    """Return the rule of an op where it is linear in its open operands; elsewhere `otherwise` is its rule."""

    def rule(
        relaxed: Relaxed[Any], refs: tuple[Related[Any], ...], static: Static, intervals: Sequence[Interval[Any]]
    ) -> Any:
        if not is_linear(primitive, refs) or primitive.vjp is None:
            return otherwise(relaxed, refs, static, intervals)
        ops, (out,) = relaxed.inner, intervals[:1]
        needs = tuple([not ref.interval.point and is_float(ref.dtype) for ref in refs])
        call = _call(primitive, refs, static, needs, out)
        vjp = primitive.vjp

        def pull(ops: Any, a: Any) -> Sequence[Any]:
            found = vjp(ops, call, (a,), **static)
            return [each for each, needed in zip(found, needs) if needed]

        sources = [ref for ref, needed in zip(refs, needs) if needed]
        is_factor = len(sources) == 1 and (sources[0] is refs[0] or sources[0] is refs[-1])
        if primitive in _CENTRED and is_factor and out.dtype == FLOAT32:
            below, above, centre = _centred(ops, primitive, refs, static, sources[0], out)
            return (relaxed.related(out, sources, pull, below, above, centre),)
        below, above = _constants(ops, primitive, refs, static, needs, out)
        return (relaxed.related(out, sources, pull, below, above),)

    return rule


def _call(
    primitive: Primitive, refs: Sequence[Related[Any]], static: Static, needs: tuple[bool, ...], out: Interval[Any]
) -> ForwardCall:
    """Return the context of the vjp rule, which for a linear op reads only the other operands, all points."""
    every = [*[ref.interval for ref in refs], out]
    positions = primitive.saved_positions(needs, static)
    saved = tuple([every[i].lower if i >= 0 and every[i].point else None for i in positions])
    inputs = tuple([TensorType(ref.shape, ref.dtype) for ref in refs])
    return ForwardCall(needs, saved, inputs, (TensorType(out.shape, out.dtype),))


def _constants(
    ops: Any, primitive: Primitive, refs: Sequence[Related[Any]], static: Static, needs: tuple[bool, ...], out: Any
) -> tuple[Any, Any]:
    """Return the results where open operands are 0, moved by the errors of a run and of the backward pass."""
    zeros = [
        ops.full(shape=ref.shape, value=0.0, dtype=ref.dtype) if needed else ref.interval.lower
        for ref, needed in zip(refs, needs)
    ]
    added = primitive in _JOINT and not all(needs)
    added = added or primitive is PAD or static.get("has_bias", False)
    constant = ops.bind(primitive, tuple(zeros), static)[0] if added else None
    if primitive in _EXACT:
        return constant, constant
    size = _size(ops, primitive, refs, static)
    if constant is None:
        return rounded(ops, None, None, size, _error(primitive, refs, static, out))
    return rounded(ops, constant, constant, size, _error(primitive, refs, static, out))


def _centred(
    ops: Any, primitive: Primitive, refs: Sequence[Related[Any]], static: Static, x: Related[Any], out: Interval[Any]
) -> tuple[Any, Any, Any]:
    """Return the constants of a product W·x + b about the middle m of its only open operand, and m.

    The backward pass has a coefficient p in place of a·W, off by gamma·|a|·|W|. Since a·W·x = p·(x - m) + (a·W - p)·(x
    - m) + a·(W·m), that costs gamma·|a|·|W| times the radius of x, not its magnitude, if W·m is computed in float64:
    there its error is far below that of a run in float32.

    With S = |W|·|x| + |b| and v the result, the positive terms of a sum are at most (S + |v|)/2, and so are the
    negative ones. Every partial sum lies between them. A run has n sums, one for each product and one for the bias, in
    any order. Each sum rounds by u of that bound at most, and each product by u of itself. So the error of a run is
    gamma_n·(S + |v|)/2 + u·S.

    Both errors are one product of |W|, computed here, and too small by gamma at most.
    """
    interval, dtype = x.interval, x.dtype
    run, coefficients = _errors(primitive, refs, static, out, more=len(refs) - 2)
    each = run / 2 + epsilon(dtype) / 2
    centre = ops.add(ops.scale(interval.lower, c=0.5), ops.scale(interval.upper, c=0.5))
    radius = up(ops, ops.maximum(ops.sub(interval.upper, centre), ops.sub(centre, interval.lower)))
    moved = ops.add(ops.scale(magnitude(ops, interval), c=each), ops.scale(radius, c=coefficients))
    moved = ops.clamp(moved, lo=_LEAST, hi=float("inf"))  # a lower limit covers underflow
    sizes, middles = [], []
    for at, ref in enumerate(refs):
        size = magnitude(ops, ref.interval)
        is_bias = 0 < at < len(refs) - 1
        sizes.append(moved if ref is x else ops.scale(size, c=each) if is_bias else size)
        middles.append(double(ops, centre if ref is x else ref.interval.lower))
    lost = ops.add(ops.bind(primitive, tuple(sizes), static)[0], ops.scale(magnitude(ops, out), c=run / 2))
    lost = ops.add(ops.scale(lost, c=(1 + 2 * run) * (1 + 16 * epsilon(dtype))), TINY[dtype])
    value = ops.bind(primitive, tuple(middles), static)[0]
    return ops.sub(value, double(ops, lost)), ops.add(value, double(ops, lost)), centre


def _size(ops: Any, primitive: Primitive, refs: Sequence[Related[Any]], static: Static) -> Any:
    """Return the sum of magnitudes of all terms of each element."""
    sizes = tuple([magnitude(ops, ref.interval) for ref in refs])
    if primitive is SUB:
        return ops.add(*sizes)
    if primitive is SCALE:
        return ops.abs(ops.bind(SCALE, sizes, static)[0])
    return ops.bind(primitive, sizes, static)[0]


def _error(primitive: Primitive, refs: Sequence[Related[Any]], static: Static, out: Interval[Any]) -> float:
    """Return the relative error of a run and of the coefficients together."""
    run, coefficients = _errors(primitive, refs, static, out)
    return (run + coefficients) * (1 + 2 * run)


def _errors(
    primitive: Primitive, refs: Sequence[Related[Any]], static: Static, out: Interval[Any], more: int = 4
) -> tuple[float, float]:
    """Return the relative errors of a run and of the coefficients: of both sums, forward and back; `more` as in
    `gamma`.

    The error of a run is gamma_n of the sum of magnitudes. A coefficient of the backward pass is a sum over the uses of
    an operand, with an error of gamma of those; times the operands this is the same sum of magnitudes. The sum is
    computed here, and too small by gamma_n at most.
    """
    if primitive in PRODUCT_TERMS:
        forward = int(PRODUCT_TERMS[primitive](refs[0], refs[-1]))
    elif primitive in SUM_TERMS:
        forward = int(SUM_TERMS[primitive](tuple([ref.interval for ref in refs]), static))
    else:
        forward = 2
    back = 2
    if primitive is LINEAR:
        back = int(max(refs[0].shape[0], prod(refs[-1].shape[:-1])))
    elif primitive in (MATMUL, BMM):
        back = max(int(refs[0].shape[-2]), int(refs[1].shape[-1]))
    elif primitive in (CONV, CONV_TRANSPOSE):
        back = int(prod(refs[0].shape))
        if not refs[0].interval.point:
            back = int(max(back, prod(out.shape)))
    elif primitive is BROADCAST_TO:
        back = int(prod(out.shape)) // max(int(prod(refs[0].shape)), 1)
    elif primitive is AVG_POOL:
        back = int(prod(static["kernel"]))
    return gamma(out.dtype, forward, more), gamma(out.dtype, back)


# Products of two operands that both depend on a box, and ops on them: quotients, softmax, attention -------------------

_LARGEST = 1 << 20
"""The most products of a pair of matrices with separate bounds."""


def _mul(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    """Return McCormick's planes: xl·y + yl·x - xl·yl below, xl·y + yu·x - xl·yu above (McCormick, 1976)."""
    x, y = refs
    if x is y:
        return unary.square(relaxed, x, intervals)
    ops = relaxed.inner
    a, b = relaxed.tighten(x), relaxed.tighten(y)
    out = relaxed.intervals.bind(MUL, (a, b), {})[0]
    below, above = ops.neg(ops.mul(a.lower, b.lower)), ops.neg(ops.mul(a.lower, b.upper))
    size = ops.scale(ops.mul(magnitude(ops, a), magnitude(ops, b)), c=4.0)
    below, above = rounded(ops, below, above, size, 16 * epsilon(x.dtype))

    def pull(ops: Any, g: Any) -> Sequence[Any]:
        return [ops.mul(g, by_sign(ops, g, b.lower, b.upper)), ops.mul(g, a.lower)]

    return (relaxed.related(out, [x, y], pull, below, above),)


def _div(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    x, y = refs
    return (relaxed.intersect(relaxed.mul(x, relaxed.inv(y)), intervals[0]),)


def normalised(relaxed: Relaxed[Any], x: Related[Any], axis: int, allowed: Any = None) -> Related[Any]:
    """Return e^(x - m) over its sum, with m the greatest that x may be; 0 where x is not `allowed`."""
    ops = relaxed.inner
    upper = relaxed.tighten(x).upper
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
    return (relaxed.intersect(found, relaxed.intervals.bind(SOFTMAX, (x.interval,), static)[0]),)


def _bmm(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    x, y = refs
    *leading, m, k = x.shape
    n = y.shape[-1]
    every = (*leading, m, k, n)
    if math.prod(map(int, every)) > _LARGEST:
        return None
    rows = relaxed.broadcast_to(relaxed.unsqueeze(x, axis=-1), shape=every)
    columns = relaxed.broadcast_to(relaxed.unsqueeze(y, axis=len(leading)), shape=every)
    return (relaxed.intersect(relaxed.reduce_sum(relaxed.mul(rows, columns), axis=len(leading) + 1), intervals[0]),)


def _attention(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    q, k, v, *mask = refs
    if any(not each.interval.point for each in mask):
        return None
    scores = attention_scores(relaxed, q, k)
    if not mask and not static["causal"]:
        return (relaxed.intersect(relaxed.bmm(relaxed.softmax(scores, axis=-1), v), intervals[0]),)
    allowed: Any = attention_mask(relaxed, scores.shape, tuple(mask), static["causal"])
    out = relaxed.bmm(normalised(relaxed, scores, len(scores.shape) - 1, allowed), v)
    return (relaxed.intersect(out, intervals[0]),)


# Max pools: below by the cell of the greatest lower end, above by a number, or by that cell if it wins ----------------


def _max_pool(relaxed: Relaxed[Any], refs: Any, static: Static, intervals: Sequence[Interval[Any]]) -> Any:
    (x,), ops = refs, relaxed.inner
    interval = relaxed.tighten(x)
    lower, index = ops.bind(MAX_POOL, (interval.lower,), static)
    upper = ops.bind(MAX_POOL, (interval.upper,), static)[0]
    zero = full_like(ops, lower, 0.0)
    wins = ops.full(shape=lower.shape, value=False, dtype="bool")
    if tuple(static["stride"]) == tuple(static["kernel"]) and not any(static["padding"]):
        own = ops.max_pool_scatter(full_like(ops, lower, 1.0), index, shape=x.shape[-len(static["kernel"]) :], **static)
        others = by_sign(ops, own, full_like(ops, own, -math.inf), interval.upper)
        wins = ops.less_equal(ops.bind(MAX_POOL, (others,), static)[0], lower)
    vjp = MAX_POOL.vjp
    assert vjp is not None
    types = (
        (TensorType(x.shape, x.dtype),),
        (TensorType(lower.shape, lower.dtype), TensorType(index.shape, index.dtype)),
    )
    call = ForwardCall((True,), (index,), *types)

    def pull(ops: Any, a: Any) -> Sequence[Any]:
        taken = by_sign(ops, a, a, ops.select(wins, a, full_like(ops, a, 0.0)))
        return list(vjp(ops, call, (taken,), **static))

    above = ops.select(wins, zero, upper)
    out = relaxed.intervals.between(lower, upper)
    return (relaxed.related(out, [x], pull, zero, above),)


RULES: dict[Primitive, Callable[..., Any]] = {
    **{primitive: _linear(primitive) for primitive in _JOINT | _BILINEAR},
    DETACH: lambda relaxed, refs, static, intervals: refs,
    MUL: _linear(MUL, _mul),
    DIV: _linear(DIV, _div),
    BMM: _linear(BMM, _bmm),
    SOFTMAX: _softmax,
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
    MAX_POOL: _max_pool,
}
