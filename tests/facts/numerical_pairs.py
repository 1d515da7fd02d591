"""Programs that go wrong in numbers, each beside its repair: losses, statistics and gradients, which go first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from opstage import Spec, transform
from tests.facts.numerical_bugs import Bug

Program = Callable[..., Any]
FREE = Spec("B 8", where=("B >= 1",))
UNIT = FREE.changed(range=(0, 1))
SHARES = (UNIT, UNIT)
SMALL = FREE.changed(range=(-10, 10))
IDS = Spec("B", dtype="int64", range=(0, 2**31), where=("B >= 1",))


def total(ops: Any, x: Any) -> Any:
    return ops.sum(x)


def rows(ops: Any, x: Any) -> Any:
    return ops.reduce_sum(x, axis=1, keepdims=True)


def wide(ops: Any, x: Any, like: Any) -> Any:
    return ops.broadcast_to(x, shape=like.shape)


def slope(loss: Program) -> Program:
    """The gradient of a loss in its first argument."""

    def program(ops: Any, x: Any, *others: Any) -> Any:
        return transform.grad(ops, lambda ops, x: loss(ops, x, *others), x)

    return program


def length(eps: float) -> Program:
    return lambda ops, x: total(ops, ops.sqrt(ops.reduce_sum(x * x, axis=1) + eps))


def distance(eps: float) -> Program:
    return lambda ops, x, y: total(ops, ops.sqrt(ops.reduce_sum((x - y) * (x - y), axis=1) + eps))


def root(eps: float) -> Program:
    return lambda ops, x: total(ops, ops.sqrt(ops.relu(x) + eps))


def standardised(eps: float) -> Program:
    def program(ops: Any, x: Any) -> Any:
        apart = x - wide(ops, ops.reduce_mean(x, axis=1, keepdims=True), x)
        return apart / wide(ops, ops.sqrt(ops.reduce_mean(apart * apart, axis=1, keepdims=True) + eps), x)

    return program


def scaled_to_range(guarded: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        low, high = ops.reduce_min(x, axis=1, keepdims=True), ops.reduce_max(x, axis=1, keepdims=True)
        span = ops.maximum(high - low, 1e-6) if guarded else high - low
        return (x - wide(ops, low, x)) / wide(ops, span, x)

    return program


def divergence_of_shares(guarded: bool) -> Program:
    """Σ p (log p - log q)."""

    def program(ops: Any, p: Any, q: Any) -> Any:
        if guarded:
            p, q = ops.clamp(p, lo=1e-7, hi=1.0), ops.clamp(q, lo=1e-7, hi=1.0)
        return total(ops, p * (ops.log(p) - ops.log(q)))

    return program


def clipped_cross_entropy(low: float, high: float) -> Program:
    def program(ops: Any, p: Any, y: Any) -> Any:
        p = ops.clamp(p, lo=low, hi=high)
        return -total(ops, y * ops.log(p) + (1 - y) * ops.log1p(-p))

    return program


def focal(by_logits: bool) -> Program:
    def program(ops: Any, x: Any, y: Any) -> Any:
        p = ops.sigmoid(x)
        log = ops.log_sigmoid(x) if by_logits else ops.log(p)
        return -total(ops, y * (1 - p) * (1 - p) * log)

    return program


def perplexity(bounded: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        loss = ops.reduce_sum(x * x, axis=1)
        return ops.exp(ops.minimum(loss, 80.0) if bounded else loss)

    return program


def temperature(guarded: bool) -> Program:
    def program(ops: Any, x: Any, t: Any) -> Any:
        t = ops.maximum(t, 0.05) if guarded else t
        return ops.softmax(x / ops.broadcast_to(t, shape=x.shape), axis=1)

    return program


def mean_of_some(guarded: bool) -> Program:
    """The mean over the tokens that are no padding."""

    def program(ops: Any, x: Any, keep: Any) -> Any:
        mask = ops.cast(keep, dtype=x.dtype)
        count = ops.reduce_sum(mask, axis=1)
        return ops.reduce_sum(x * mask, axis=1) / (ops.maximum(count, 1.0) if guarded else count)

    return program


def odds(guarded: bool) -> Program:
    def program(ops: Any, p: Any) -> Any:
        p = ops.clamp(p, lo=1e-6, hi=1 - 1e-6) if guarded else p
        return ops.log(p / (1 - p))

    return program


def gumbel(guarded: bool) -> Program:
    def program(ops: Any, x: Any, u: Any) -> Any:
        u = ops.clamp(u, lo=1e-6, hi=1 - 1e-6) if guarded else u
        return x - ops.log(-ops.log(u))

    return program


def density(by_log: bool) -> Program:
    """The log of a normal density with a learnt deviation."""

    def program(ops: Any, x: Any, s: Any) -> Any:
        if by_log:
            s = ops.clamp(s, lo=-10.0, hi=10.0)
            return total(ops, 0.5 * x * x * ops.exp(-2.0 * s) + s)
        return total(ops, 0.5 * x * x / (s * s) + ops.log(s))

    return program


def powered(guarded: bool) -> Program:
    """A root as a power, of numbers that may be negative."""
    return lambda ops, x: ops.pow(ops.maximum(x, 1e-6) if guarded else x, exponent=0.3)


def angle(guarded: bool) -> Program:
    """acos of a cosine, whose gradient is infinite at 1."""

    def program(ops: Any, x: Any) -> Any:
        c = ops.tanh(x)
        return total(ops, ops.acos(ops.clamp(c, lo=-1 + 1e-6, hi=1 - 1e-6) if guarded else c))

    return program


def inverse_of_variance(eps: float) -> Program:
    def program(ops: Any, x: Any) -> Any:
        apart = x - wide(ops, ops.reduce_mean(x, axis=0, keepdims=True), x)
        return 1 / (ops.reduce_mean(apart * apart, axis=0) + eps)

    return program


def weights_by_distance(guarded: bool) -> Program:
    """1/d of points to points, some of which are the same."""

    def program(ops: Any, x: Any, y: Any) -> Any:
        d = ops.reduce_sum((x - y) * (x - y), axis=1)
        return 1 / (d + 1e-3 if guarded else d)

    return program


def hashed(wide_enough: bool) -> Program:
    def program(ops: Any, ids: Any) -> Any:
        if wide_enough:
            return ops.mod(ids * 40503, ops.full(shape=ids.shape, value=1 << 16, dtype="int64"))
        small = ops.cast(ids, dtype="int32")
        return ops.mod(small * 40503, ops.full(shape=ids.shape, value=1 << 16, dtype="int32"))

    return program


def squashed_mean(half: bool) -> Program:
    """A mean of squares of activations, summed before it is divided."""

    def program(ops: Any, x: Any) -> Any:
        return ops.reduce_sum(ops.scale(x * x, c=1 / 8) if half else x * x, axis=1)

    return program


def entropy(by_log: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        if by_log:
            log = ops.log_softmax(x, axis=1)
            return -ops.reduce_sum(ops.exp(log) * log, axis=1)
        p = ops.softmax(x, axis=1)
        return -ops.reduce_sum(p * ops.log(p), axis=1)

    return program


def log_cosh(stable: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        if stable:
            return total(ops, ops.abs(x) + ops.softplus(-2.0 * ops.abs(x)) - math.log(2))
        return total(ops, ops.log(ops.cosh(x)))

    return program


def soft_labels(ops: Any, x: Any) -> Any:
    return ops.log(1 - ops.softmax(x, axis=1))


def soft_labels_by_log(ops: Any, x: Any) -> Any:
    return ops.log(ops.maximum(1 - ops.softmax(x, axis=1), 1e-6))


def _of(rule: str, buggy: Program, fixed: Program, *specs: Spec, dtype: str = "float32") -> Bug:
    return Bug("known", rule, buggy, fixed, specs or (FREE,), dtype)


ONE = Spec("1 1", range=(0, 1))
KEEP = Spec("B 8", dtype="bool")
PAIRS: dict[str, Bug] = {
    "the gradient of a length": _of("division-by-zero", slope(length(0.0)), slope(length(1e-6)), SMALL),
    "the gradient of a distance": _of("division-by-zero", slope(distance(0.0)), slope(distance(1e-6)), SMALL, SMALL),
    "the gradient of a root": _of("nan-behind-select", slope(root(0.0)), slope(root(1e-6)), SMALL),
    "a standardised row": _of("division-by-zero", standardised(0.0), standardised(1e-5), SMALL),
    "a row in a range": _of("division-by-zero", scaled_to_range(False), scaled_to_range(True), SMALL),
    "the divergence of shares": _of("log-of-zero", divergence_of_shares(False), divergence_of_shares(True), *SHARES),
    "a cross-entropy that is clipped": _of(
        "log-of-zero", clipped_cross_entropy(0.0, 1.0), clipped_cross_entropy(1e-6, 1 - 1e-6), *SHARES
    ),
    "a cross-entropy clipped by less than float32 tells from 1": _of(
        "log-of-zero", clipped_cross_entropy(1e-9, 1 - 1e-9), clipped_cross_entropy(1e-6, 1 - 1e-6), *SHARES
    ),
    "a focal loss": _of("log-of-zero", focal(False), focal(True), FREE, UNIT),
    "a perplexity": _of("overflow", perplexity(False), perplexity(True), SMALL),
    "a temperature": _of("division-by-zero", temperature(False), temperature(True), SMALL, ONE),
    "a mean of tokens": _of("division-by-zero", mean_of_some(False), mean_of_some(True), SMALL, KEEP),
    "log odds": _of("division-by-zero", odds(False), odds(True), UNIT),
    "Gumbel noise": _of("log-of-zero", gumbel(False), gumbel(True), SMALL, UNIT),
    "a density": _of("division-by-zero", density(False), density(True), SMALL, UNIT),
    "a root as a power": _of("sqrt-of-negative", powered(False), powered(True), SMALL),
    "1 over a variance": _of("division-by-zero", inverse_of_variance(0.0), inverse_of_variance(1e-5), SMALL),
    "weights by distance": _of("division-by-zero", weights_by_distance(False), weights_by_distance(True), SMALL, SMALL),
    "a hash": _of("integer-overflow", hashed(False), hashed(True), IDS),
    "squares in float16": _of(
        "overflow", squashed_mean(False), squashed_mean(True), FREE.changed(range=(-120, 120)), dtype="float16"
    ),
    "an entropy": _of("log-of-zero", entropy(False), entropy(True), FREE),
    "log cosh": _of("overflow", log_cosh(False), log_cosh(True), FREE.changed(range=(-1000, 1000))),
    "the log of what is left": _of("log-of-zero", soft_labels, soft_labels_by_log, FREE),
}
