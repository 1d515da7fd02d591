"""Attention: by the rule of softmax, since the parts of its decomposition would forget that scores share a peak."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, allowed_of, scores_of
from ....ops.catalogue.biased_attention import BIASED_ATTENTION
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ..interpreter import Interval, Intervals
from ..rounding import gamma, overflow

Refs = tuple[Interval[Any], ...]


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


RULES: dict[Primitive, Callable[..., Refs]] = {
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
    BIASED_ATTENTION: _biased,
}
