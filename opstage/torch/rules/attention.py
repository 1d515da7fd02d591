"""Attention."""

from __future__ import annotations

import math
from typing import Any

from ...operators.values import broadcast
from ...ops.derived import dropout
from ...ops.dims import floor_div, rsqrt
from ...ops.infix import broadcast_shapes
from ...ops.types import BOOL
from ..call import AtenCall, rule


@rule("scaled_dot_product_attention.default")
def _attention(
    call: AtenCall[Any], q: Any, k: Any, v: Any, mask: Any, p: float, causal: bool, scale: Any, grouped: bool
) -> Any:
    """Compute softmax(scale·q·kᵀ + bias)·v; by the fused op unless there is dropout."""
    ops = call.ops
    query, key, value = q.ref, k.ref, v.ref
    if grouped:
        key, value = (_repeated(ops, each, floor_div(query.shape[-3], each.shape[-3])) for each in (key, value))
    lead = broadcast_shapes(broadcast_shapes(query.shape[:-2], key.shape[:-2]), value.shape[:-2])
    query, key, value = (call.stretched(each, (*lead, *each.shape[-2:])) for each in (query, key, value))
    width = query.shape[-1]
    drops = p > 0 and call.around.trains(call.node)
    masks = (None, None) if mask is None else (mask.ref, None) if mask.dtype == BOOL else (None, call.floats(mask))
    if not drops:
        y = ops.scaled_dot_product_attention(query, key, value, *masks, causal=causal, scale=scale)
        return call.give(y)
    factor = rsqrt(width) if scale is None else scale
    axes = [*range(len(key.shape) - 2), len(key.shape) - 1, len(key.shape) - 2]
    scores = ops.bmm(ops.scale(query, c=factor), ops.permute(key, axes=axes))
    if causal:
        rows, columns = (ops.iota(shape=scores.shape, axis=axis) for axis in (-2, -1))
        scores = ops.select(ops.less_equal(columns, rows), scores, -math.inf)
    if mask is not None and mask.dtype == BOOL:
        scores = ops.select(call.stretched(mask.ref, scores.shape), scores, -math.inf)
    elif mask is not None:
        scores = ops.add(*broadcast(ops, scores, call.floats(mask)))
    weights = _weights(ops, scores)
    if drops:
        weights = dropout(ops, weights, p=p, train=True)
    return call.give(ops.bmm(weights, value))


def _repeated(ops: Any, x: Any, times: Any) -> Any:
    """Repeat each head for the queries that share it."""
    if isinstance(times, int) and times == 1:
        return x
    *lead, heads, t, d = x.shape
    wide = ops.broadcast_to(ops.unsqueeze(x, axis=len(lead) + 1), shape=(*lead, heads, times, t, d))
    return ops.reshape(wide, shape=(*lead, heads * times, t, d))


def _weights(ops: Any, scores: Any) -> Any:
    """Return the softmax, with zeros for a query whose positions are all masked."""
    peak = ops.reduce_max(scores, axis=-1, keepdims=True)
    dead = ops.broadcast_to(ops.equal(peak, -math.inf), shape=scores.shape)
    return ops.select(dead, 0.0, ops.softmax(ops.select(dead, 0.0, scores), axis=-1))
