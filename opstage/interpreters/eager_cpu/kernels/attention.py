"""Kernels: attention with and without a bias, and its fused cotangents. Multi-head attention runs by decomposition.

Weights are computed for a few matrices at a time, or a few queries of one, as many as fit in the cache, in the same
memory; they are recomputed for the cotangents and never stored. Rabe & Staats, Self-attention does not need O(n²)
memory, 2021; Dao et al., FlashAttention, 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....ops.attention import (
    BIASED_ATTENTION,
    BIASED_ATTENTION_GRAD,
    SCALED_DOT_PRODUCT_ATTENTION,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD,
)
from ....ops.dims import rsqrt
from ....ops.host_arrays import number
from ....ops.primitive import Primitive
from ..loops import arrays as loops
from ..loops.arrays import flat, rows
from .reduction import only_numbers

# Attention ------------------------------------------------------------------------------------------------------------

Array = npt.NDArray[Any]
Sizes = tuple[int, ...]

_WEIGHTS_BYTES = 1 << 20  # limit of the weights of one block; about the cache of a core


class ScoreTile(NamedTuple):
    """A tile of weights computed together: for the queries `at` of some matrices, and the first keys of each.

    at      a slice of every leading axis, then of the queries
    shape   of the weights
    causal  whether query i attends only to keys j <= i
    """

    at: tuple[slice, ...]
    shape: Sizes
    causal: bool

    @property
    def keys(self) -> tuple[slice, ...]:
        """Return the slices of the keys and values of these weights."""
        return *self.at[:-1], slice(0, self.shape[-1])

    @property
    def first(self) -> int:
        """Return the index of the first query in its matrix."""
        start: int = self.at[-1].start
        return start

    def of(self, mask: Array, shape: Sizes) -> Array:
        """Return the tile's part of a mask or bias that broadcasts to `shape`, that of all weights."""
        part: Array = np.broadcast_to(mask, shape)[*self.at, slice(0, self.shape[-1])]
        return part

    def add_cotangent(self, cotangent: Array, s: Array) -> None:
        """Add the tile's cotangents to those of a bias of the same rank: summed over broadcast axes."""
        one = [n == 1 for n in cotangent.shape]
        at = tuple([slice(0, 1) if alone else part for alone, part in zip(one, (*self.at, slice(0, self.shape[-1])))])
        cotangent[at] += s.sum(axis=tuple([i for i, alone in enumerate(one) if alone]), keepdims=True)


def blocks(shape: Sizes, causal: bool, itemsize: int, every_key: bool = False) -> Iterator[ScoreTile]:
    """Yield blocks that cover all weights of `shape` (..., n, m) in order, each with at least one query.

    Keys that `causal` forbids for all queries of a block are omitted, unless `every_key` is set.
    """
    room = _WEIGHTS_BYTES // itemsize
    apart = _apart(shape, room)
    whole = [slice(0, n) for n in shape[apart + 1 : -1]]
    length = max(1, room // max(1, math.prod(shape[apart + 1 :])))
    for index in np.ndindex(shape[:apart]):
        for start in range(0, max(1, shape[apart]), length):
            run = slice(start, min(start + length, shape[apart]))
            at = (*[slice(i, i + 1) for i in index], run, *whole)
            keys = min(shape[-1], max(1, at[-1].stop)) if causal and not every_key else shape[-1]
            yield ScoreTile(at, (*[part.stop - part.start for part in at], keys), causal)


def _apart(shape: Sizes, room: int) -> int:
    """Return how many leading axes are iterated entry by entry, because an entry of the next one does not fit."""
    return next((axis for axis in range(len(shape) - 2) if math.prod(shape[axis + 1 :]) <= room), len(shape) - 2)


def different_blocks(shape: Sizes, causal: bool, itemsize: int) -> list[ScoreTile]:
    """Return the blocks of the first entry of iterated axes; those of other entries are the same."""
    return list(blocks(shape[_apart(shape, _WEIGHTS_BYTES // itemsize) :], causal, itemsize))


def max_weights(shape: Sizes, causal: bool, itemsize: int) -> int:
    """Return the number of weights in the largest block."""
    return max(math.prod(block.shape) for block in different_blocks(shape, causal, itemsize))


def keys_in_one_block(shape: Sizes, causal: bool, itemsize: int) -> bool:
    """Return whether each block has all queries and keys of its matrices."""
    return all(block.shape[-2:] == shape[-2:] for block in different_blocks(shape, causal, itemsize))


def _turned(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _factor(q: Array) -> Any:
    return number(rsqrt(q.shape[-1]), q.dtype)


def attended(
    exponentials: Callable[..., None],
    q: Array,
    k: Array,
    v: Array,
    mask: tuple[Array, ...],
    causal: bool,
    bias: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Compute attention. `exponentials` converts scores to exponentials, and stores each query's maximum and total."""
    shape = (*q.shape[:-1], k.shape[-2])
    out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
    peak, total = (np.empty((*q.shape[:-1], 1), q.dtype) for _ in range(2))
    shorter = causal and not keys_in_one_block(shape, causal, q.itemsize)
    every_key = shorter and not only_numbers(v)  # a weight of 0 makes nan of a value that is not finite
    room = np.empty(max_weights(shape, causal and not every_key, q.itemsize), q.dtype)
    for block in blocks(shape, causal, q.itemsize, every_key):
        at, keys = block.at, block.keys
        e = room[: math.prod(block.shape)].reshape(block.shape)
        np.matmul(np.multiply(q[at], _factor(q)), _turned(k[keys]), out=e)
        if bias is not None:
            np.add(e, block.of(bias, shape), out=e)
        exponentials(block, [block.of(m, shape) for m in mask], peak[at], total[at], e)
        np.matmul(e, v[keys], out=out[at])
        np.divide(out[at], total[at], out=out[at])
    return out, peak, total


def cotangents(
    weights: Callable[..., None],
    q: Array,
    k: Array,
    v: Array,
    mask: tuple[Array, ...],
    peak: Array,
    total: Array,
    g: Array,
    causal: bool,
    bias: Array | None = None,
    dbias: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Compute cotangents. `weights` recomputes weights from scores, and converts their cotangents to those of the
    scores.

    Cotangents of keys and values are sums over blocks, unless each key is in a single block. That of a bias is added to
    `dbias`, which has the weights' rank.
    """
    shape = (*q.shape[:-1], k.shape[-2])
    whole = keys_in_one_block(shape, causal, q.itemsize)
    every_key = causal and not whole and not only_numbers(q, k, v, g, total)  # a bias can make a total that is none
    dq = np.empty(q.shape, q.dtype)
    dk, dv = ((np.empty if whole else np.zeros)(x.shape, q.dtype) for x in (k, v))
    room = np.empty((2, max_weights(shape, causal and not every_key, q.itemsize)), q.dtype)
    for block in blocks(shape, causal, q.itemsize, every_key):
        at, keys = block.at, block.keys
        p, s = (part[: math.prod(block.shape)].reshape(block.shape) for part in room)
        scaled = np.multiply(q[at], _factor(q), out=dq[at])  # in the memory of its later cotangent
        np.matmul(scaled, _turned(k[keys]), out=p)
        np.matmul(g[at], _turned(v[keys]), out=s)
        if bias is not None:
            np.add(p, block.of(bias, shape), out=p)
        weights(block, [block.of(m, shape) for m in mask], peak[at], total[at], p, s)
        if dbias is not None:
            block.add_cotangent(dbias, s)
        np.matmul(s, k[keys], out=dq[at])
        for found, x, y in ((dk, s, q), (dv, p, g)):
            if whole:
                np.matmul(_turned(x), y[at], out=found[keys])
            else:
                found[keys] += np.matmul(_turned(x), y[at])
    return np.multiply(dq, _factor(q), out=dq), np.multiply(dk, _factor(q), out=dk), dv


# With NumPy -----------------------------------------------------------------------------------------------------------


def _forbid(block: ScoreTile, mask: list[Array], scores: Array) -> None:
    """Write -inf where a query may not attend."""
    for m in mask:
        np.copyto(scores, -np.inf, where=~m)
    if block.causal:
        queries, keys = block.shape[-2:]
        np.copyto(scores, -np.inf, where=~np.tri(queries, keys, block.first, dtype=np.bool_))


def numpy_exponentials(
    block: ScoreTile, mask: list[Array], peak: Array, total: Array, e: Array, may_be_blank: bool = False
) -> None:
    _forbid(block, mask, e)
    e.max(axis=-1, keepdims=True, out=peak)
    if mask or may_be_blank:
        np.copyto(peak, 0, where=peak == -np.inf)  # a query with all positions masked
    np.exp(np.subtract(e, peak, out=e), out=e)
    e.sum(axis=-1, keepdims=True, out=total)
    if mask or may_be_blank:
        np.copyto(total, 1, where=total == 0)


def numpy_weights(block: ScoreTile, mask: list[Array], peak: Array, total: Array, p: Array, s: Array) -> None:
    _forbid(block, mask, p)
    np.exp(np.subtract(p, peak, out=p), out=p)
    np.divide(p, total, out=p)
    np.subtract(s, np.einsum("...m,...m->...", p, s)[..., np.newaxis], out=s)
    np.multiply(p, s, out=s)


# With loops -----------------------------------------------------------------------------------------------------------


_NO_MASK = np.ones((1, 1), np.bool_)


def fast_exponentials(
    block: ScoreTile, mask: list[Array], peak: Array, total: Array, e: Array, may_be_blank: bool = False
) -> None:
    loop, allowed = (loops.masked_exponentials, rows(mask[0])) if mask else (loops.exponentials, _NO_MASK)
    blank = may_be_blank or bool(mask)
    loop(allowed, block.first, block.shape[-2], block.causal, blank, flat(peak), flat(total), rows(e))


def fast_weights(block: ScoreTile, mask: list[Array], peak: Array, total: Array, p: Array, s: Array) -> None:
    loop, allowed = (loops.masked_weights, rows(mask[0])) if mask else (loops.weights, _NO_MASK)
    loop(allowed, flat(peak), flat(total), block.first, block.shape[-2], block.causal, rows(p), rows(s))


# Kernels --------------------------------------------------------------------------------------------------------------


def _attention(exponentials: Callable[..., None], has_bias: bool = False) -> Callable[..., tuple[Array, ...]]:
    def kernel(q: Array, k: Array, v: Array, *rest: Array, has_mask: bool, causal: bool) -> tuple[Array, ...]:
        bias = rest[0] if has_bias else None
        return attended(exponentials, q, k, v, rest[has_bias:], causal, bias)

    return kernel


def _grad(weights: Callable[..., None], has_bias: bool = False) -> Callable[..., tuple[Array, ...]]:
    def kernel(q: Array, k: Array, v: Array, *rest: Array, has_mask: bool, causal: bool) -> tuple[Array, ...]:
        *mask, peak, total, g = rest[has_bias:]
        if not has_bias:
            return cotangents(weights, q, k, v, tuple(mask), peak, total, g, causal)
        bias = rest[0]
        dbias = np.zeros((1,) * (q.ndim - bias.ndim) + bias.shape, q.dtype)
        found = cotangents(weights, q, k, v, tuple(mask), peak, total, g, causal, bias, dbias)
        return *found, dbias.reshape(bias.shape)

    return kernel


KERNELS: dict[Primitive, Callable[..., Any]] = {
    SCALED_DOT_PRODUCT_ATTENTION: _attention(numpy_exponentials),
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: _grad(numpy_weights),
    BIASED_ATTENTION: _attention(partial(numpy_exponentials, may_be_blank=True), has_bias=True),
    BIASED_ATTENTION_GRAD: _grad(numpy_weights, has_bias=True),
}

FAST_KERNELS: dict[Primitive, Callable[..., Any]] = {
    SCALED_DOT_PRODUCT_ATTENTION: _attention(fast_exponentials),
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: _grad(fast_weights),
    BIASED_ATTENTION: _attention(partial(fast_exponentials, may_be_blank=True), has_bias=True),
    BIASED_ATTENTION_GRAD: _grad(fast_weights, has_bias=True),
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
