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

Refs = tuple[Interval[Any], ...]


def _attend(bounds: Intervals[Any], scores: Interval[Any], v: Interval[Any], mask: Refs, causal: bool) -> Refs:
    ops = bounds
    weights = ops.softmax(scores, axis=-1)
    if mask or causal:
        allowed = allowed_of(ops, scores.shape, mask, causal)
        zero = ops.full(shape=scores.shape, value=0.0, dtype=scores.dtype)
        floor = ops.full(shape=scores.shape, value=-math.inf, dtype=scores.dtype)
        blank = ops.logical_not(ops.reduce_any(allowed, axis=-1, keepdims=True))
        # a row that may attend to nothing gives zeros; it gets scores of 0 here, as those of -inf alone have no softmax
        seen = ops.select(ops.broadcast_to(blank, shape=scores.shape), zero, ops.select(allowed, scores, floor))
        weights = ops.select(allowed, ops.softmax(seen, axis=-1), zero)
    row = TensorType((*scores.shape[:-1], 1), scores.dtype)
    return ops.bmm(weights, v), ops.unknown(row), ops.unknown(row)


def _attention(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    q, k, v, *mask = refs
    return _attend(bounds, scores_of(bounds, q, k), v, tuple(mask), static["causal"])


def _biased(bounds: Intervals[Any], refs: Refs, static: Static) -> Refs:
    q, k, v, bias, *mask = refs
    scores = scores_of(bounds, q, k)
    scores = bounds.add(scores, bounds.broadcast_to(bias, shape=scores.shape))
    return _attend(bounds, scores, v, tuple(mask), static["causal"])


RULES: dict[Primitive, Callable[..., Refs]] = {
    SCALED_DOT_PRODUCT_ATTENTION: _attention,
    BIASED_ATTENTION: _biased,
}
