"""Attention and rotary positions."""

from __future__ import annotations

import math
from typing import Any

from ...operators.values import Value, stretched
from ...ops.dims import Dim, floor_div, rsqrt
from ...ops.errors import UnsupportedError
from ...ops.types import BOOL
from ..call import NodeCall, rule


@rule("Attention")
def _attention(call: NodeCall[Any]) -> tuple[Value | None, ...]:
    """Compute softmax(scale·q·kᵀ + bias)·v in heads; by the fused op unless scores are capped or requested as
    output."""
    ops = call.ops
    q, k, v = (_in_heads(call, i, name) for i, name in enumerate(("q_num_heads", "kv_num_heads", "kv_num_heads")))
    past: Dim = 0
    if call.has(4):
        past = call.shape(4)[2]
        k, v = (ops.concat([call.x(i), new], axis=2) for i, new in ((4, k), (5, v)))
    present = (k, v)
    groups = floor_div(q.shape[1], k.shape[1])
    k, v = (_repeated(ops, each, groups) for each in (k, v))
    scale = call.attribute("scale")
    bias, mask = _bias(call, q, k, past)
    softcap, mode = call.attribute("softcap", 0.0) or 0.0, call.attribute("qk_matmul_output_mode", 0)
    wants_scores = len(call.node.outputs) > 3 and bool(call.node.outputs[3])
    scores = None
    if not softcap and not wants_scores:
        y = ops.scaled_dot_product_attention(q, k, v, mask, bias, scale=scale)
    else:
        factor = scale if scale is not None else rsqrt(q.shape[3])
        raw = ops.bmm(ops.scale(q, c=factor), ops.permute(k, axes=(0, 1, 3, 2)))
        raw = ops.scale(ops.tanh(ops.scale(raw, c=1 / softcap)), c=softcap) if softcap else raw
        biased = raw if bias is None else ops.add(raw, stretched(ops, bias, raw.shape))
        if mask is not None:
            biased = ops.select(stretched(ops, mask, raw.shape), biased, ops.full(shape=raw.shape, value=-math.inf))
        weights = _weights(ops, biased)
        scores = {2: biased, 3: weights}.get(mode, raw)
        y = ops.bmm(weights, v)
    if call.rank() == 3:
        y = ops.reshape(ops.permute(y, axes=(0, 2, 1, 3)), shape=(y.shape[0], y.shape[2], y.shape[1] * y.shape[3]))
    rest = [call.give(each, call.dtype(1)) for each in present]
    return call.give(y), *rest, None if scores is None else call.give(scores)


def _in_heads(call: NodeCall[Any], i: int, name: str) -> Any:
    """Return (B, T, heads·d) or (B, heads, T, d) as the latter."""
    ops, x = call.ops, call.x(i)
    if len(x.shape) == 4:
        return x
    heads = call.attribute(name)
    if not heads:
        raise UnsupportedError(f"of an input of rank 3 it must say {name}")
    b, t, width = x.shape
    return ops.permute(ops.reshape(x, shape=(b, t, heads, floor_div(width, heads))), axes=(0, 2, 1, 3))


def _repeated(ops: Any, x: Any, times: Dim) -> Any:
    """Repeat each head for the queries that share it."""
    if isinstance(times, int) and times == 1:
        return x
    b, heads, t, d = x.shape
    wide = ops.broadcast_to(ops.unsqueeze(x, axis=2), shape=(b, heads, times, t, d))
    return ops.reshape(wide, shape=(b, heads * times, t, d))


def _bias(call: NodeCall[Any], q: Any, k: Any, past: Dim) -> tuple[Any, Any]:
    """Return the bias added to each score, and the mask of allowed positions; None for neither."""
    ops = call.ops
    b, n, m = q.shape[0], q.shape[2], k.shape[2]
    bias = mask = None
    if call.has(3):
        given = call.x(3)
        short = m - given.shape[-1]
        if not (isinstance(short, int) and short == 0):
            widths = [(0, 0)] * (len(given.shape) - 1) + [(0, short)]
            if given.dtype == BOOL:
                wide = ops.pad(ops.cast(given, dtype="int64"), padding=widths, value=0)
                given = ops.cast(wide, dtype="bool")
            else:
                given = ops.pad(given, padding=widths, value=-math.inf)
        bias, mask = (None, given) if given.dtype == BOOL else (given, None)
    if mask is not None:
        mask = stretched(ops, mask, (*mask.shape[:-2], n, m)) if len(mask.shape) >= 2 else mask

    def full(shape: Any, value: Any) -> Any:
        return ops.full(shape=shape, value=value, dtype="int64")

    shape: tuple[Dim, ...] = (n, m)
    places = ops.iota(shape=shape, axis=0)
    ends = None
    if call.has(6):
        ends = ops.reshape(ops.cast(call.x(6), dtype="int64"), shape=(b, 1, 1, 1))
        shape = (b, 1, n, m)
        offset = ops.sub(ops.broadcast_to(ends, shape=shape), full(shape, n))
        places = ops.add(ops.iota(shape=shape, axis=2), offset)
    else:
        places = ops.add(places, full(shape, past))
    keys = ops.iota(shape=shape, axis=len(shape) - 1)
    rules = []
    if call.attribute("is_causal", 0):
        rules.append(ops.less_equal(keys, places))
    left, right = call.attribute("left_window_size", -1), call.attribute("right_window_size", -1)
    if left >= 0:
        rules.append(ops.less_equal(ops.sub(places, keys), full(shape, left)))
    if right >= 0:
        rules.append(ops.less_equal(ops.sub(keys, places), full(shape, right)))
    if ends is not None:
        rules.append(ops.less(keys, ops.broadcast_to(ends, shape=shape)))
    for each in rules:
        if mask is None:
            mask = each
        else:
            wide = tuple(mask.shape) if len(mask.shape) > len(each.shape) else tuple(each.shape)
            if len(mask.shape) == 4 and len(each.shape) == 4:
                wide = (b, mask.shape[1], n, m)
            mask = ops.logical_and(stretched(ops, mask, wide), stretched(ops, each, wide))
    return bias, mask


def _weights(ops: Any, scores: Any) -> Any:
    """Return the softmax, with zeros for a query whose positions are all masked."""
    peak = ops.reduce_max(scores, axis=-1, keepdims=True)
    dead = ops.equal(peak, ops.full(shape=peak.shape, value=-math.inf))
    dead = stretched(ops, dead, scores.shape)
    zero = ops.full(shape=scores.shape, value=0.0)
    return ops.select(dead, zero, ops.softmax(ops.select(dead, zero, scores), axis=-1))


@rule("RotaryEmbedding")
def _rotary(call: NodeCall[Any]) -> Value:
    """Rotate pairs of entries of a head by the angle of their position (Su et al. 2021)."""
    ops, x = call.ops, call.x()
    whole = x.shape
    if len(whole) == 4:
        x = ops.permute(x, axes=(0, 2, 1, 3))
    else:
        heads = call.attribute("num_heads", 0)
        if not heads:
            raise UnsupportedError("of an input of rank 3 it must say num_heads")
        x = ops.reshape(x, shape=(*whole[:2], heads, floor_div(whole[2], heads)))
    b, t, heads, d = x.shape
    size = call.attribute("rotary_embedding_dim", 0) or d
    half = floor_div(size, 2)
    cos, sin = call.x(1), call.x(2)
    if call.has(3):
        index = ops.cast(call.x(3), dtype="int64")
        cos, sin = ops.gather_rows(cos, index), ops.gather_rows(sin, index)
    cos, sin = (ops.broadcast_to(ops.unsqueeze(each, axis=2), shape=(b, t, heads, half)) for each in (cos, sin))
    turned = ops.slice(x, axis=3, start=0, length=size)
    if call.attribute("interleaved", 0):
        pairs = ops.reshape(turned, shape=(b, t, heads, half, 2))
        first, second = (ops.squeeze(part, axis=4) for part in ops.split(pairs, sizes=(1, 1), axis=4))
    else:
        first, second = ops.split(turned, sizes=(half, half), axis=3)
    real = ops.sub(ops.mul(cos, first), ops.mul(sin, second))
    imaginary = ops.add(ops.mul(sin, first), ops.mul(cos, second))
    if call.attribute("interleaved", 0):
        turned = ops.reshape(ops.stack([real, imaginary], axis=4), shape=(b, t, heads, size))
    else:
        turned = ops.concat([real, imaginary], axis=3)
    rest = d - size
    if not (isinstance(rest, int) and rest == 0):
        turned = ops.concat([turned, ops.slice(x, axis=3, start=size, length=rest)], axis=3)
    y = ops.permute(turned, axes=(0, 2, 1, 3)) if len(whole) == 4 else ops.reshape(turned, shape=whole)
    return call.give(y)
