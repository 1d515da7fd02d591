"""Programs that go wrong in numbers, each beside its repair: losses, statistics and gradients, which go first."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from opstage import Spec, transform
from tests.facts.numerical_bugs import Bug

Program = Callable[..., Any]
FREE = Spec("B 8", where=("B >= 1",))
UNIT = FREE.changed(range=(0, 1))
SHARES = (UNIT, UNIT)
SMALL = FREE.changed(range=(-10, 10))
IN_HALF = FREE.changed(range=(-120, 120))
IDS = Spec("B", dtype="int64", range=(0, 2**31), where=("B >= 1",))


def total(ops: Any, x: Any) -> Any:
    return ops.sum(x)


def rows(ops: Any, x: Any) -> Any:
    return ops.reduce_sum(x, axis=1, keepdims=True)


def wide(ops: Any, x: Any, like: Any) -> Any:
    return ops.broadcast_to(x, shape=like.shape)


def slope(loss: Program, eps: float, ops: Any, x: Any, *others: Any) -> Any:
    """The gradient of a loss in its first argument."""
    return transform.grad(ops, lambda ops, x: loss(eps, ops, x, *others), x)


def length(eps: float, ops: Any, x: Any) -> Any:
    return total(ops, ops.sqrt(ops.reduce_sum(x * x, axis=1) + eps))


def distance(eps: float, ops: Any, x: Any, y: Any) -> Any:
    return total(ops, ops.sqrt(ops.reduce_sum((x - y) * (x - y), axis=1) + eps))


def root(eps: float, ops: Any, x: Any) -> Any:
    return total(ops, ops.sqrt(ops.relu(x) + eps))


def standardised(eps: float, ops: Any, x: Any) -> Any:
    apart = x - wide(ops, ops.reduce_mean(x, axis=1, keepdims=True), x)
    return apart / wide(ops, ops.sqrt(ops.reduce_mean(apart * apart, axis=1, keepdims=True) + eps), x)


def scaled_to_range(guarded: bool, ops: Any, x: Any) -> Any:
    low, high = ops.reduce_min(x, axis=1, keepdims=True), ops.reduce_max(x, axis=1, keepdims=True)
    span = ops.maximum(high - low, 1e-6) if guarded else high - low
    return (x - wide(ops, low, x)) / wide(ops, span, x)


def divergence_of_shares(guarded: bool, ops: Any, p: Any, q: Any) -> Any:
    """Σ p (log p - log q)."""
    if guarded:
        p, q = ops.clamp(p, lo=1e-7, hi=1.0), ops.clamp(q, lo=1e-7, hi=1.0)
    return total(ops, p * (ops.log(p) - ops.log(q)))


def clipped_cross_entropy(ends: tuple[float, float], ops: Any, p: Any, y: Any) -> Any:
    p = ops.clamp(p, lo=ends[0], hi=ends[1])
    return -total(ops, y * ops.log(p) + (1 - y) * ops.log1p(-p))


def focal(by_logits: bool, ops: Any, x: Any, y: Any) -> Any:
    p = ops.sigmoid(x)
    log = ops.log_sigmoid(x) if by_logits else ops.log(p)
    return -total(ops, y * (1 - p) * (1 - p) * log)


def perplexity(bounded: bool, ops: Any, x: Any) -> Any:
    loss = ops.reduce_sum(x * x, axis=1)
    return ops.exp(ops.minimum(loss, 80.0) if bounded else loss)


def temperature(guarded: bool, ops: Any, x: Any, t: Any) -> Any:
    t = ops.maximum(t, 0.05) if guarded else t
    return ops.softmax(x / ops.broadcast_to(t, shape=x.shape), axis=1)


def mean_of_some(guarded: bool, ops: Any, x: Any, keep: Any) -> Any:
    """The mean over the tokens that are no padding."""
    mask = ops.cast(keep, dtype=x.dtype)
    count = ops.reduce_sum(mask, axis=1)
    return ops.reduce_sum(x * mask, axis=1) / (ops.maximum(count, 1.0) if guarded else count)


def odds(guarded: bool, ops: Any, p: Any) -> Any:
    p = ops.clamp(p, lo=1e-6, hi=1 - 1e-6) if guarded else p
    return ops.log(p / (1 - p))


def gumbel(guarded: bool, ops: Any, x: Any, u: Any) -> Any:
    u = ops.clamp(u, lo=1e-6, hi=1 - 1e-6) if guarded else u
    return x - ops.log(-ops.log(u))


def density(by_log: bool, ops: Any, x: Any, s: Any) -> Any:
    """The log of a normal density with a learnt deviation."""
    if by_log:
        s = ops.clamp(s, lo=-10.0, hi=10.0)
        return total(ops, 0.5 * x * x * ops.exp(-2.0 * s) + s)
    return total(ops, 0.5 * x * x / (s * s) + ops.log(s))


def powered(guarded: bool, ops: Any, x: Any) -> Any:
    """A root as a power, of numbers that may be negative."""
    return ops.pow(ops.maximum(x, 1e-6) if guarded else x, exponent=0.3)


def angle(guarded: bool, ops: Any, x: Any) -> Any:
    """acos of a cosine, whose gradient is infinite at 1."""
    c = ops.tanh(x)
    return total(ops, ops.acos(ops.clamp(c, lo=-1 + 1e-6, hi=1 - 1e-6) if guarded else c))


def inverse_of_variance(eps: float, ops: Any, x: Any) -> Any:
    apart = x - wide(ops, ops.reduce_mean(x, axis=0, keepdims=True), x)
    return 1 / (ops.reduce_mean(apart * apart, axis=0) + eps)


def weights_by_distance(guarded: bool, ops: Any, x: Any, y: Any) -> Any:
    """1/d of points to points, some of which are the same."""
    d = ops.reduce_sum((x - y) * (x - y), axis=1)
    return 1 / (d + 1e-3 if guarded else d)


def hashed(wide_enough: bool, ops: Any, ids: Any) -> Any:
    if wide_enough:
        return ops.mod(ids * 40503, ops.full(shape=ids.shape, value=1 << 16, dtype="int64"))
    small = ops.cast(ids, dtype="int32")
    return ops.mod(small * 40503, ops.full(shape=ids.shape, value=1 << 16, dtype="int32"))


def squashed_mean(half: bool, ops: Any, x: Any) -> Any:
    """A mean of squares of activations, summed before it is divided."""
    return ops.reduce_sum(ops.scale(x * x, c=1 / 8) if half else x * x, axis=1)


def entropy(by_log: bool, ops: Any, x: Any) -> Any:
    if by_log:
        log = ops.log_softmax(x, axis=1)
        return -ops.reduce_sum(ops.exp(log) * log, axis=1)
    p = ops.softmax(x, axis=1)
    return -ops.reduce_sum(p * ops.log(p), axis=1)


def log_cosh(stable: bool, ops: Any, x: Any) -> Any:
    if stable:
        return total(ops, ops.abs(x) + ops.softplus(-2.0 * ops.abs(x)) - math.log(2))
    return total(ops, ops.log(ops.cosh(x)))


def soft_labels(guarded: bool, ops: Any, x: Any) -> Any:
    left = 1 - ops.softmax(x, axis=1)
    return ops.log(ops.maximum(left, 1e-6) if guarded else left)


def _of(rule: str, program: Program, buggy: Any, fixed: Any, *specs: Spec, dtype: str = "float32") -> Bug:
    """A bug and its repair by one program, which takes first what tells them apart."""
    return Bug("known", rule, partial(program, buggy), partial(program, fixed), specs or (FREE,), dtype)


ONE = Spec("1 1", range=(0, 1))
KEEP = Spec("B 8", dtype="bool")
CLIPPED = (1e-6, 1 - 1e-6)
PAIRS: dict[str, Bug] = {
    "the gradient of a length": _of("division-by-zero", partial(slope, length), 0.0, 1e-6, SMALL),
    "the gradient of a distance": _of("division-by-zero", partial(slope, distance), 0.0, 1e-6, SMALL, SMALL),
    "the gradient of a root": _of("nan-behind-select", partial(slope, root), 0.0, 1e-6, SMALL),
    "a standardised row": _of("division-by-zero", standardised, 0.0, 1e-5, SMALL),
    "a row in a range": _of("division-by-zero", scaled_to_range, False, True, SMALL),
    "the divergence of shares": _of("log-of-zero", divergence_of_shares, False, True, *SHARES),
    "a cross-entropy that is clipped": _of("log-of-zero", clipped_cross_entropy, (0.0, 1.0), CLIPPED, *SHARES),
    "a cross-entropy clipped by less than float32 tells from 1": _of(
        "log-of-zero", clipped_cross_entropy, (1e-9, 1 - 1e-9), CLIPPED, *SHARES
    ),
    "a focal loss": _of("log-of-zero", focal, False, True, FREE, UNIT),
    "a perplexity": _of("overflow", perplexity, False, True, SMALL),
    "a temperature": _of("division-by-zero", temperature, False, True, SMALL, ONE),
    "a mean of tokens": _of("division-by-zero", mean_of_some, False, True, SMALL, KEEP),
    "log odds": _of("division-by-zero", odds, False, True, UNIT),
    "Gumbel noise": _of("log-of-zero", gumbel, False, True, SMALL, UNIT),
    "a density": _of("division-by-zero", density, False, True, SMALL, UNIT),
    "a root as a power": _of("sqrt-of-negative", powered, False, True, SMALL),
    "1 over a variance": _of("division-by-zero", inverse_of_variance, 0.0, 1e-5, SMALL),
    "weights by distance": _of("division-by-zero", weights_by_distance, False, True, SMALL, SMALL),
    "a hash": _of("integer-overflow", hashed, False, True, IDS),
    "squares in float16": _of("overflow", squashed_mean, False, True, IN_HALF, dtype="float16"),
    "an entropy": _of("log-of-zero", entropy, False, True, FREE),
    "log cosh": _of("overflow", log_cosh, False, True, FREE.changed(range=(-1000, 1000))),
    "the log of what is left": _of("log-of-zero", soft_labels, False, True, FREE),
}
