"""Maxima, pools of maxima, and the normalised exponentials."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ...ops.dims import prod
from ...ops.loss import CROSS_ENTROPY, class_axis, is_label
from ...ops.pooling import MAX_POOL, SMOOTH_MAX_POOL
from ...ops.primitive import Primitive, Static
from ...ops.reduction import ARGMAX, ARGMIN, LOG_SOFTMAX, REDUCE_ALL, REDUCE_ANY, REDUCE_MAX, REDUCE_MIN, SOFTMAX
from ...ops.sequence import ARGSORT
from ...ops.types import BOOL, INT64, TensorType
from .control import known
from .elementwise import filled
from .interpreter import Interval, Intervals, down, eps_of, gamma, rising, slack, up

Refs = tuple[Interval[Any], ...]


def any_index(bounds: Intervals[Any], shape: Any, count: Any) -> Interval[Any]:
    """An index of which nothing is known but that there are `count`."""
    ends = [bounds.inner.full(shape=shape, value=value, dtype=INT64) for value in (0, max(int(count) - 1, 0))]
    return bounds.between(*ends)


def _arg(primitive: Primitive) -> Callable[..., Refs]:
    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (type_,) = primitive.infer((TensorType(refs[0].shape, refs[0].dtype),), static)
        return (any_index(bounds, type_.shape, refs[0].shape[static["axis"]]),)

    return rule


def _whether(name: str) -> Callable[..., Refs]:
    """`any` or `all`: over masks it is that of each end; of numbers, whether they are 0 comes first."""

    def rule(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
        (x,), ops = refs, bounds.inner
        mask = x
        if x.dtype != BOOL:
            zero = ops.full(shape=x.shape, value=0, dtype=x.dtype)
            sure = known(ops, x)
            apart = ops.logical_or(ops.less(zero, x.lower), ops.less(x.upper, zero))
            never = ops.logical_and(ops.equal(x.lower, zero), ops.equal(x.upper, zero))
            mask = bounds.between(ops.logical_and(sure, apart), ops.logical_not(never))
        f = getattr(ops, name)
        ends = [f(end, axis=static["axes"], keepdims=static["keepdims"]) for end in (mask.lower, mask.upper)]
        return (bounds.between(*ends),)

    return rule


def _max_pool(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    greatest, index = bounds.at_ends(MAX_POOL, refs, static)
    cells = prod(refs[0].shape[-len(static["kernel"]) :])
    return greatest, any_index(bounds, index.shape, cells)


def _smooth_max_pool(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    """It rises in every cell, for either sign of beta; its error is that of a sum of exponentials, over |beta|."""
    (found,), ops = bounds.at_ends(SMOOTH_MAX_POOL, refs, static), bounds.inner
    lower, upper = found.lower, found.upper
    beta, cells = abs(float(static["beta"])), int(prod(static["kernel"]))
    size = ops.maximum(ops.maximum(ops.abs(lower), ops.abs(upper)), (cells + 32) / beta)
    return (bounds.between(down(ops, lower, 8, of=size), up(ops, upper, 8, of=size)),)


# Normalised exponentials: element i rises in x_i and falls in every other -------------------------------------------

_DEEPEST = 800
"""More than the exponent at which exp underflows in float64: its argument is off by at most that many ulps of 1."""


class _Exponentials(NamedTuple):
    """low, high             both ends less the largest of the upper ones
    at_low, at_high       their exponentials
    beside_low            no less than the sum of the other exponentials of the row when this one is at its lower end
    beside_high           no more than that sum when this one is at its upper end
    error                 the relative error of a sum of exponentials
    """

    low: Any
    high: Any
    at_low: Any
    at_high: Any
    beside_low: Any
    beside_high: Any
    error: float


def _exponentials(ops: Any, x: Interval[Any], axis: int) -> _Exponentials:
    """The exponentials of a row's ends, and of the sums of the others.

    A shift that is no number, where all is -inf, makes everything nan.
    """
    peak = ops.broadcast_to(ops.reduce_max(x.upper, axis=axis, keepdims=True), shape=x.shape)
    low, high = ops.sub(x.lower, peak), ops.sub(x.upper, peak)
    terms = int(x.shape[axis])
    error = 2 * gamma(x.dtype, terms + 32) + 2 * _DEEPEST * eps_of(x.dtype)
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
    one, vanishes = filled(ops, above, 1.0), ops.equal(above, filled(ops, above, 0.0))
    upper = ops.select(vanishes, one, ops.div(e.at_high, ops.select(vanishes, one, above)))
    ulps = e.error / eps_of(x.dtype)
    lower, upper = down(ops, lower, ulps), up(ops, upper, ulps)
    return (bounds.between(ops.maximum(lower, 0.0), ops.minimum(upper, 1.0 + 4 * eps_of(x.dtype))),)


def _log_softmax(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    (x,), ops, axis = refs, bounds.inner, static["axis"]
    if 0 in x.shape:
        return bounds.at_ends(LOG_SOFTMAX, refs, static)
    e = _exponentials(ops, x, axis)
    below, above = ops.log(ops.add(e.at_low, e.beside_low)), ops.log(ops.add(e.at_high, e.beside_high))
    lower, upper = ops.sub(e.low, below), ops.sub(e.high, above)

    def size(end: Any, log: Any) -> Any:
        return ops.add(ops.add(ops.abs(end), ops.abs(log)), e.error / eps_of(x.dtype))

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
    losses = []
    for chosen in (best, worst):
        losses.append(ops.bind(CROSS_ENTROPY, (chosen, labels.lower), static)[0])
    count = 1 if static["reduction"] == "mean" else int(prod(labels.shape))
    sizes = [ops.add(ops.abs(loss), filled(ops, loss, float(count))) for loss in losses]
    lower = ops.maximum(ops.sub(losses[0], slack(ops, sizes[0], terms + 32)), 0.0)
    upper = ops.add(losses[1], slack(ops, sizes[1], terms + 32))
    peak = [ops.reduce_max(end, axis=axis, keepdims=True) for end in (logits.lower, logits.upper)]
    one = filled(ops, peak[0], 1.0)
    most = ops.scale(one, c=int(logits.shape[axis]) * (1 + 2 * terms * eps_of(logits.dtype)))
    return bounds.between(lower, upper), bounds.between(*peak), bounds.between(one, most)


RULES: dict[Primitive, Callable[..., Refs]] = {
    REDUCE_MAX: rising(REDUCE_MAX),
    REDUCE_MIN: rising(REDUCE_MIN),
    REDUCE_ANY: _whether("reduce_any"),
    REDUCE_ALL: _whether("reduce_all"),
    ARGMAX: _arg(ARGMAX),
    ARGMIN: _arg(ARGMIN),
    ARGSORT: _arg(ARGSORT),
    MAX_POOL: _max_pool,
    SMOOTH_MAX_POOL: _smooth_max_pool,
    SOFTMAX: _softmax,
    LOG_SOFTMAX: _log_softmax,
    CROSS_ENTROPY: _cross_entropy,
}
EXACT = frozenset({REDUCE_MAX, REDUCE_MIN, REDUCE_ANY, REDUCE_ALL, ARGMAX, ARGMIN, ARGSORT, MAX_POOL})
OPEN_INTEGERS = frozenset({REDUCE_ANY, REDUCE_ALL})
