"""More programs over time beside leaking twins: caches, packed tokens, relative places, what libraries do by habit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opstage import Spec, derived
from tests.facts.decoders import (
    D,
    Program,
    Twins,
    X,
    full,
    positions,
    scores_of,
    spread,
    weigh,
)

LONG = X.changed(where=("B >= 1", "T >= 1", "T <= 32"))
IDS = Spec(("B", "T"), dtype="int64", where=("B >= 1", "T >= 1"))
RNG = np.random.default_rng(1)
TABLE = RNG.standard_normal((32, D)).astype("f4")


def masked(ops: Any, scores: Any, seen: Any, x: Any) -> Any:
    """What is not seen is -inf."""
    return weigh(ops, ops.select(spread(ops, seen, scores), scores, full(ops, scores, -math.inf)), x)


def number(ops: Any, shape: Any, value: Any) -> Any:
    return ops.full(shape=shape, value=value, dtype="int64")


# Keys that are not the queries ---------------------------------------------------------------------------------------


def cached(ahead: int) -> Program:
    """Keys of earlier calls before those of this one."""

    def program(ops: Any, x: Any, cache: Any) -> Any:
        keys = ops.concat([cache, x], axis=1)
        scores = ops.bmm(x, ops.permute(keys, axes=(0, 2, 1)))
        size = scores.shape[1:]
        rows, columns = (ops.iota(shape=size, axis=axis) for axis in (0, 1))
        seen = ops.less_equal(columns, rows + number(ops, size, cache.shape[1] + ahead))
        return masked(ops, scores, seen, keys)

    return program


def sink(ahead: int) -> Program:
    """One learnt key that all see."""

    def program(ops: Any, x: Any, first: Any) -> Any:
        lead = ops.broadcast_to(first, shape=(x.shape[0], 1, D))
        keys = ops.concat([lead, x], axis=1)
        scores = ops.bmm(x, ops.permute(keys, axes=(0, 2, 1)))
        size = scores.shape[1:]
        rows, columns = (ops.iota(shape=size, axis=axis) for axis in (0, 1))
        return masked(ops, scores, ops.less_equal(columns - rows, number(ops, size, 1 + ahead)), keys)

    return program


def prefix_of_another(ahead: int) -> Program:
    """A prefix-LM: all see the prefix, which is no part of T."""

    def program(ops: Any, x: Any, given: Any) -> Any:
        every = ops.concat([given, x], axis=1)
        scores, size = scores_of(ops, every), (every.shape[1],) * 2
        rows, columns = (ops.iota(shape=size, axis=axis) for axis in (0, 1))
        seen = ops.logical_or(
            ops.less_equal(columns, rows + ahead), ops.less(columns, number(ops, size, given.shape[1]))
        )
        return ops.slice(masked(ops, scores, seen, every), axis=1, start=given.shape[1], length=x.shape[1])

    return program


def memory(causal: bool) -> Program:
    def program(ops: Any, x: Any, other: Any) -> Any:
        own = ops.scaled_dot_product_attention(x, x, x, causal=causal)
        return own + ops.scaled_dot_product_attention(own, other, other)

    return program


def packed(causal: bool) -> Program:
    """Tokens of several documents in a row, told apart by numbers."""

    def program(ops: Any, x: Any, document: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        rows, columns = (ops.broadcast_to(ops.unsqueeze(document, axis=axis), shape=scores.shape) for axis in (2, 1))
        seen = ops.equal(rows, columns)
        if causal:
            i, j = positions(ops, n)
            seen = ops.logical_and(seen, spread(ops, ops.less_equal(j, i), scores))
        return masked(ops, scores, seen, x)

    return program


def padded(causal: bool) -> Program:
    """Padding is masked, and the place of the query itself never."""

    def program(ops: Any, x: Any, keep: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        i, j = positions(ops, n)
        kept = ops.broadcast_to(ops.unsqueeze(keep, axis=1), shape=scores.shape)
        seen = ops.logical_or(kept, spread(ops, ops.equal(i, j), scores))
        if causal:
            seen = ops.logical_and(seen, spread(ops, ops.less_equal(j, i), scores))
        return masked(ops, scores, seen, x)

    return program


# Masks written otherwise ---------------------------------------------------------------------------------------------


def outer_compare(strict: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        at = derived.arange(ops, n)
        i = ops.broadcast_to(ops.unsqueeze(at, axis=1), shape=(n, n))
        j = ops.broadcast_to(ops.unsqueeze(at, axis=0), shape=(n, n))
        return masked(ops, scores_of(ops, x), ops.less_equal(j, i) if strict else ops.less_equal(i, j), x)

    return program


def counted_places(ahead: bool) -> Program:
    """Places counted by a running sum of ones, on either side from 1 on."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        ones = number(ops, (n, n), 1)
        i, j = ops.cumsum(ones, axis=0), ops.cumsum(ones, axis=1, exclusive=ahead)
        return masked(ops, scores_of(ops, x), ops.less_equal(j, i), x)

    return program


def real_places(ahead: float) -> Program:
    """Compared as float32 numbers, half a place off."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        i, j = (ops.iota(shape=(n, n), axis=axis, dtype="float32") for axis in (0, 1))
        return masked(ops, scores_of(ops, x), ops.less(j, i + ahead), x)

    return program


def one_less_triu(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        keep = 1.0 - derived.triu(ops, ops.full(shape=(n, n), value=1.0), k=k)
        seen = ops.less(ops.full(shape=(n, n), value=0.5), keep)
        return masked(ops, scores, seen, x)

    return program


def log_of_mask(k: int) -> Program:
    """log 0 is -inf, so the logarithm of a mask is one to be added."""

    def program(ops: Any, x: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        mask = ops.log(derived.tril(ops, ops.full(shape=(n, n), value=1.0), k=k))
        return weigh(ops, scores + spread(ops, mask, scores), x)

    return program


def as_mask_of_attention(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        i, j = positions(ops, x.shape[1])
        return ops.scaled_dot_product_attention(x, x, x, ops.less_equal(j, i + k))

    return program


def as_bias_of_attention(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        mask = derived.triu(ops, ops.full(shape=(n, n), value=-math.inf), k=1 + k)
        return ops.scaled_dot_product_attention(x, x, x, None, mask)

    return program


def by_einsum(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        scores = derived.einsum(ops, "bid,bjd->bij", x, x)
        i, j = positions(ops, n)
        seen = spread(ops, ops.less_equal(j, i + k), scores)
        weights = ops.softmax(ops.select(seen, scores, full(ops, scores, -math.inf)), axis=-1)
        return derived.einsum(ops, "bij,bjd->bid", weights, x)

    return program


def relative_bias(k: int) -> Program:
    """T5's: a number for each distance, cut off."""

    def program(ops: Any, x: Any, biases: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        i, j = positions(ops, n)
        far = ops.minimum(ops.maximum(i - j, number(ops, (n, n), 0)), number(ops, (n, n), 7))
        bias = ops.reshape(ops.gather_vec(biases, ops.reshape(far, shape=(n * n,))), shape=(n, n))
        return masked(ops, scores + spread(ops, bias, scores), ops.less_equal(j, i + k), x)

    return program


def learnt_places(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        places = ops.gather_rows(ops.const(TABLE), derived.arange(ops, x.shape[1]))
        h = x + ops.broadcast_to(places, shape=x.shape)
        i, j = positions(ops, x.shape[1])
        return masked(ops, scores_of(ops, h), ops.less_equal(j, i + k), h)

    return program


def local_blocks(own: bool) -> Program:
    """Longformer's: blocks of four beside the block before, by a reshape; whole blocks where it leaks."""

    def program(ops: Any, x: Any) -> Any:
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

    return program


OTHER = Spec(("B", "S", D), where=("B >= 1", "S >= 1"))
FOURS = Spec(("B", "T", D), where=("B >= 1", "T >= 4", "T % 4 == 0"))

SEQUENCES: dict[str, Twins] = {
    "keys of earlier calls": Twins(cached(0), cached(1), specs=(X, OTHER)),
    "a sink": Twins(sink(0), sink(1), specs=(X, Spec((1, 1, D)))),
    "a prefix that is no part of it": Twins(prefix_of_another(0), prefix_of_another(1), specs=(X, OTHER)),
    "a memory": Twins(memory(True), memory(False), specs=(X, OTHER)),
    "documents in a row": Twins(packed(True), packed(False), specs=(X, IDS.changed(range=(0, 3)))),
    "padding": Twins(padded(True), padded(False), specs=(X, Spec(("B", "T"), dtype="bool"))),
    "places along two axes": Twins(outer_compare(True), outer_compare(False)),
    "places that are counted": Twins(counted_places(False), counted_places(True)),
    "places as real numbers": Twins(real_places(0.5), real_places(1.5)),
    "1 - triu": Twins(one_less_triu(1), one_less_triu(2)),
    "the logarithm of a mask": Twins(log_of_mask(0), log_of_mask(1)),
    "a mask of attention": Twins(as_mask_of_attention(0), as_mask_of_attention(1)),
    "a bias of attention": Twins(as_bias_of_attention(0), as_bias_of_attention(1)),
    "einsum": Twins(by_einsum(0), by_einsum(1)),
    "a bias by distance": Twins(relative_bias(0), relative_bias(1), specs=(X, Spec((8,)))),
    "learnt places": Twins(learnt_places(0), learnt_places(1), specs=(LONG,)),
    "blocks by a reshape": Twins(local_blocks(True), local_blocks(False), specs=(FOURS,)),
}
