"""Kernels: scaled dot-product attention and its fused cotangents. Multi-head attention runs by decomposition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.dims import rsqrt
from ....ops.primitive import Primitive
from ..loops import attention as loops
from ..loops.jit import rows
from .numbers import number

Array = npt.NDArray[Any]


def attention(q: Array, k: Array, v: Array, *mask: Array, has_mask: bool, causal: bool) -> tuple[Array, Array]:
    """The attention weights are computed in one buffer; what is not allowed is -inf before exp and so 0 after it."""
    p = np.matmul(q * number(rsqrt(q.shape[-1]), q.dtype), np.swapaxes(k, -1, -2))
    if has_mask:
        np.copyto(p, -np.inf, where=~mask[0])
    if causal:
        np.copyto(p, -np.inf, where=~np.tri(p.shape[-2], p.shape[-1], dtype=np.bool_))
    peak = p.max(axis=-1, keepdims=True)
    if has_mask:
        np.copyto(peak, 0, where=peak == -np.inf)  # a query that may attend to nothing
    np.exp(np.subtract(p, peak, out=p), out=p)
    total = p.sum(axis=-1, keepdims=True)
    if has_mask:
        np.copyto(total, 1, where=total == 0)
    np.divide(p, total, out=p)
    return np.matmul(p, v), p


def attention_grad(q: Array, k: Array, v: Array, p: Array, g: Array) -> tuple[Array, Array, Array]:
    s = np.matmul(g, np.swapaxes(v, -1, -2))
    np.subtract(s, np.multiply(p, s).sum(axis=-1, keepdims=True), out=s)
    np.multiply(p, s, out=s)
    factor = number(rsqrt(q.shape[-1]), q.dtype)
    dq = np.matmul(s, k)
    dk = np.matmul(np.swapaxes(s, -1, -2), q)
    return (
        np.multiply(dq, factor, out=dq),
        np.multiply(dk, factor, out=dk),
        np.matmul(np.swapaxes(p, -1, -2), g),
    )


KERNELS: dict[Primitive, Callable[..., Any]] = {
    SCALED_DOT_PRODUCT_ATTENTION: attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: attention_grad,
}


def _products(x: Array, y: Array) -> Array:
    """x·yᵀ, row-major, which NumPy alone does not make of every x and y."""
    out = np.empty((*x.shape[:-1], y.shape[-2]), x.dtype)
    return np.matmul(x, np.swapaxes(y, -1, -2), out=out)


def fast_attention(q: Array, k: Array, v: Array, *mask: Array, has_mask: bool, causal: bool) -> tuple[Array, Array]:
    p = _products(q * number(rsqrt(q.shape[-1]), q.dtype), k)
    queries = p.shape[-2]
    if has_mask:
        loops.masked_softmax(rows(np.broadcast_to(mask[0], p.shape)), queries, causal, rows(p))
    else:
        loops.softmax_of_scores(queries, causal, rows(p))
    return np.matmul(p, v), p


def fast_attention_grad(q: Array, k: Array, v: Array, p: Array, g: Array) -> tuple[Array, Array, Array]:
    s = _products(g, v)
    loops.scores_cotangent(rows(p), number(rsqrt(q.shape[-1]), q.dtype), rows(s))
    return np.matmul(s, k), np.matmul(np.swapaxes(s, -1, -2), q), np.matmul(np.swapaxes(p, -1, -2), g)


FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    SCALED_DOT_PRODUCT_ATTENTION: fast_attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: fast_attention_grad,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
