"""More programs over time beside leaking twins: caches, packed tokens, relative places, what libraries do by habit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opstage import Spec, derived
from tests.facts.decoders import D, Twins, X, hidden, masked, positions, scores_of, spread, up_to, weigh

LONG = X.changed(where=("B >= 1", "T >= 1", "T <= 32"))
IDS = Spec(("B", "T"), dtype="int64", where=("B >= 1", "T >= 1"))
RNG = np.random.default_rng(1)
TABLE = RNG.standard_normal((32, D)).astype("f4")


def number(ops: Any, shape: Any, value: Any) -> Any:
    return ops.full(shape=shape, value=value, dtype="int64")


# Keys that are not the queries ---------------------------------------------------------------------------------------


def cached(ahead: int, ops: Any, x: Any, cache: Any) -> Any:
    """Keys of earlier calls before those of this one."""
    keys = ops.concat([cache, x], axis=1)
    scores = ops.bmm(x, ops.permute(keys, axes=(0, 2, 1)))
    size = scores.shape[1:]
    rows, columns = (ops.iota(shape=size, axis=axis) for axis in (0, 1))
    seen = ops.less_equal(columns, rows + number(ops, size, cache.shape[1] + ahead))
    return masked(ops, scores, seen, keys)


def sink(ahead: int, ops: Any, x: Any, first: Any) -> Any:
    """One learnt key that all see."""
    lead = ops.broadcast_to(first, shape=(x.shape[0], 1, D))
    keys = ops.concat([lead, x], axis=1)
    scores = ops.bmm(x, ops.permute(keys, axes=(0, 2, 1)))
    size = scores.shape[1:]
    rows, columns = (ops.iota(shape=size, axis=axis) for axis in (0, 1))
    return masked(ops, scores, ops.less_equal(columns - rows, number(ops, size, 1 + ahead)), keys)


def prefix_of_another(ahead: int, ops: Any, x: Any, given: Any) -> Any:
    """A prefix-LM: all see the prefix, which is no part of T."""
    every = ops.concat([given, x], axis=1)
    scores, size = scores_of(ops, every), (every.shape[1],) * 2
    rows, columns = (ops.iota(shape=size, axis=axis) for axis in (0, 1))
    seen = ops.logical_or(ops.less_equal(columns, rows + ahead), ops.less(columns, number(ops, size, given.shape[1])))
    return ops.slice(masked(ops, scores, seen, every), axis=1, start=given.shape[1], length=x.shape[1])


def memory(causal: bool, ops: Any, x: Any, other: Any) -> Any:
    own = ops.scaled_dot_product_attention(x, x, x, causal=causal)
    return own + ops.scaled_dot_product_attention(own, other, other)


def packed(causal: bool, ops: Any, x: Any, document: Any) -> Any:
    """Tokens of several documents in a row, told apart by numbers."""
    scores = scores_of(ops, x)
    rows, columns = (ops.broadcast_to(ops.unsqueeze(document, axis=axis), shape=scores.shape) for axis in (2, 1))
    seen = ops.equal(rows, columns)
    if causal:
        seen = ops.logical_and(seen, spread(ops, up_to(ops, x.shape[1]), scores))
    return masked(ops, scores, seen, x)


def padded(causal: bool, ops: Any, x: Any, keep: Any) -> Any:
    """Padding is masked, and the place of the query itself never."""
    n, scores = x.shape[1], scores_of(ops, x)
    i, j = positions(ops, n)
    kept = ops.broadcast_to(ops.unsqueeze(keep, axis=1), shape=scores.shape)
    seen = ops.logical_or(kept, spread(ops, ops.equal(i, j), scores))
    if causal:
        seen = ops.logical_and(seen, spread(ops, up_to(ops, n), scores))
    return masked(ops, scores, seen, x)


# Masks written otherwise ---------------------------------------------------------------------------------------------


def outer_compare(strict: bool, ops: Any, x: Any) -> Any:
    n = x.shape[1]
    at = derived.arange(ops, n)
    i = ops.broadcast_to(ops.unsqueeze(at, axis=1), shape=(n, n))
    j = ops.broadcast_to(ops.unsqueeze(at, axis=0), shape=(n, n))
    return masked(ops, scores_of(ops, x), ops.less_equal(j, i) if strict else ops.less_equal(i, j), x)


def counted_places(ahead: bool, ops: Any, x: Any) -> Any:
    """Places counted by a running sum of ones, on either side from 1 on."""
    n = x.shape[1]
    ones = number(ops, (n, n), 1)
    i, j = ops.cumsum(ones, axis=0), ops.cumsum(ones, axis=1, exclusive=ahead)
    return masked(ops, scores_of(ops, x), ops.less_equal(j, i), x)


def real_places(ahead: float, ops: Any, x: Any) -> Any:
    """Compared as float32 numbers, half a place off."""
    n = x.shape[1]
    i, j = (ops.iota(shape=(n, n), axis=axis, dtype="float32") for axis in (0, 1))
    return masked(ops, scores_of(ops, x), ops.less(j, i + ahead), x)


def one_less_triu(k: int, ops: Any, x: Any) -> Any:
    n, scores = x.shape[1], scores_of(ops, x)
    keep = 1.0 - derived.triu(ops, ops.full(shape=(n, n), value=1.0), k=k)
    seen = ops.less(ops.full(shape=(n, n), value=0.5), keep)
    return masked(ops, scores, seen, x)


def log_of_mask(k: int, ops: Any, x: Any) -> Any:
    """log 0 is -inf, so the logarithm of a mask is one to be added."""
    n, scores = x.shape[1], scores_of(ops, x)
    mask = ops.log(derived.tril(ops, ops.full(shape=(n, n), value=1.0), k=k))
    return weigh(ops, scores + spread(ops, mask, scores), x)


def as_mask_of_attention(k: int, ops: Any, x: Any) -> Any:
    return ops.scaled_dot_product_attention(x, x, x, up_to(ops, x.shape[1], k))


def as_bias_of_attention(k: int, ops: Any, x: Any) -> Any:
    n = x.shape[1]
    mask = derived.triu(ops, ops.full(shape=(n, n), value=-math.inf), k=1 + k)
    return ops.scaled_dot_product_attention(x, x, x, None, mask)


def by_einsum(k: int, ops: Any, x: Any) -> Any:
    scores = hidden(ops, derived.einsum(ops, "bid,bjd->bij", x, x), up_to(ops, x.shape[1], k))
    return derived.einsum(ops, "bij,bjd->bid", ops.softmax(scores, axis=-1), x)


def relative_bias(k: int, ops: Any, x: Any, biases: Any) -> Any:
    """T5's: a number for each distance, cut off."""
    n, scores = x.shape[1], scores_of(ops, x)
    i, j = positions(ops, n)
    far = ops.minimum(ops.maximum(i - j, number(ops, (n, n), 0)), number(ops, (n, n), 7))
    bias = ops.reshape(ops.gather_vec(biases, ops.reshape(far, shape=(n * n,))), shape=(n, n))
    return masked(ops, scores + spread(ops, bias, scores), up_to(ops, n, k), x)


def learnt_places(k: int, ops: Any, x: Any) -> Any:
    places = ops.gather_rows(ops.const(TABLE), derived.arange(ops, x.shape[1]))
    h = x + ops.broadcast_to(places, shape=x.shape)
    return masked(ops, scores_of(ops, h), up_to(ops, x.shape[1], k), h)


def local_blocks(own: bool, ops: Any, x: Any) -> Any:
    """Longformer's: blocks of four beside the block before, by a reshape; whole blocks where it leaks."""
    batch, n, _ = x.shape
    count = n // 4
    q = ops.reshape(x, shape=(batch, count, 4, D))
    zero = ops.full(shape=(batch, 1, 4, D), value=0.0)
    before = ops.concat([zero, ops.slice(q, axis=1, start=0, length=count - 1)], axis=1)
    keys = ops.concat([before, q], axis=2)
    scores = ops.bmm(q, ops.permute(keys, axes=(0, 1, 3, 2)))
    i, j = (ops.iota(shape=(4, 8), axis=axis) for axis in (0, 1))
    seen = ops.less_equal(j, i + 4) if own else ops.less_equal(j, i + 8)
    return ops.reshape(masked(ops, scores, seen, keys), shape=x.shape)


OTHER = Spec(("B", "S", D), where=("B >= 1", "S >= 1"))
FOURS = Spec(("B", "T", D), where=("B >= 1", "T >= 4", "T % 4 == 0"))

SEQUENCES: dict[str, Twins] = {
    "keys of earlier calls": Twins.of(cached, 0, 1, specs=(X, OTHER)),
    "a sink": Twins.of(sink, 0, 1, specs=(X, Spec((1, 1, D)))),
    "a prefix that is no part of it": Twins.of(prefix_of_another, 0, 1, specs=(X, OTHER)),
    "a memory": Twins.of(memory, True, False, specs=(X, OTHER)),
    "documents in a row": Twins.of(packed, True, False, specs=(X, IDS.changed(range=(0, 3)))),
    "padding": Twins.of(padded, True, False, specs=(X, Spec(("B", "T"), dtype="bool"))),
    "places along two axes": Twins.of(outer_compare, True, False),
    "places that are counted": Twins.of(counted_places, False, True),
    "places as real numbers": Twins.of(real_places, 0.5, 1.5),
    "1 - triu": Twins.of(one_less_triu, 1, 2),
    "the logarithm of a mask": Twins.of(log_of_mask, 0, 1),
    "a mask of attention": Twins.of(as_mask_of_attention, 0, 1),
    "a bias of attention": Twins.of(as_bias_of_attention, 0, 1),
    "einsum": Twins.of(by_einsum, 0, 1),
    "a bias by distance": Twins.of(relative_bias, 0, 1, specs=(X, Spec((8,)))),
    "learnt places": Twins.of(learnt_places, 0, 1, specs=(LONG,)),
    "blocks by a reshape": Twins.of(local_blocks, True, False, specs=(FOURS,)),
}
