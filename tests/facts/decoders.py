"""Programs over time as people write them, each beside a twin that leaks: by one place, by an order, by a statistic."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from opstage import Spec, derived

Program = Callable[..., Any]
D, H = 4, 2
X = Spec(("B", "T", D), where=("B >= 1", "T >= 1"))
BOUNDED = X.changed(range=(-1, 1))
LEAST = float(np.finfo(np.float32).min)


class Twins(NamedTuple):
    """right    of which `claim` is true
    leaky    of which it is not
    specs    of the arguments of both
    """

    right: Program
    leaky: Program
    claim: str = "causal:T"
    specs: tuple[Spec, ...] = (X,)

    @classmethod
    def of(cls, program: Program, right: Any, leaky: Any, claim: str = "causal:T", specs: Any = (X,)) -> Twins:
        """Twins of one program, which takes first what tells them apart."""
        return cls(partial(program, right), partial(program, leaky), claim, specs)


def full(ops: Any, like: Any, value: float) -> Any:
    return ops.full(shape=like.shape, value=value, dtype=like.dtype)


def scores_of(ops: Any, x: Any) -> Any:
    return ops.scale(ops.bmm(x, ops.permute(x, axes=(0, 2, 1))), c=1 / math.sqrt(D))


def weigh(ops: Any, scores: Any, x: Any) -> Any:
    return ops.bmm(ops.softmax(scores, axis=-1), x)


def spread(ops: Any, mask: Any, scores: Any) -> Any:
    return ops.broadcast_to(mask, shape=scores.shape)


# Masks ---------------------------------------------------------------------------------------------------------------


def tril_of_ones(k: int, ops: Any, x: Any) -> Any:
    n = x.shape[1]
    seen = derived.tril(ops, ops.full(shape=(n, n), value=1.0), k=k)
    scores = scores_of(ops, x)
    hidden = ops.equal(spread(ops, seen, scores), full(ops, scores, 0.0))
    return weigh(ops, derived.masked_fill(ops, scores, hidden, value=-math.inf), x)


def triu_of_inf(k: int, value: float, ops: Any, x: Any) -> Any:
    n = x.shape[1]
    mask = derived.triu(ops, ops.full(shape=(n, n), value=value), k=k)
    scores = scores_of(ops, x)
    return weigh(ops, scores + spread(ops, mask, scores), x)


def held_table(k: int, ops: Any, x: Any) -> Any:
    """A buffer of the longest length, cut to the length of the batch."""
    seen = ops.const(np.tril(np.ones((32, 32), bool), k), dtype="bool")
    for axis in (0, 1):
        seen = ops.slice(seen, axis=axis, start=0, length=x.shape[1])
    return masked(ops, scores_of(ops, x), seen, x)


def positions(ops: Any, n: Any) -> tuple[Any, Any]:
    return ops.iota(shape=(n, n), axis=0), ops.iota(shape=(n, n), axis=1)


def up_to(ops: Any, n: Any, k: Any = 0) -> Any:
    """The mask of columns up to k after the row."""
    i, j = positions(ops, n)
    return ops.less_equal(j, i + k)


def hidden(ops: Any, scores: Any, seen: Any) -> Any:
    """What is not seen is -inf."""
    return ops.select(spread(ops, seen, scores), scores, full(ops, scores, -math.inf))


def masked(ops: Any, scores: Any, seen: Any, x: Any) -> Any:
    return weigh(ops, hidden(ops, scores, seen), x)


def seen_where(test: Callable[[Any, Any, Any, Any], Any], ops: Any, x: Any) -> Any:
    """Attention to the columns that a test (ops, rows, columns, size) lets through."""
    n = x.shape[1]
    return masked(ops, scores_of(ops, x), test(ops, *positions(ops, n), n), x)


def reversed_columns(last: int, ops: Any, i: Any, j: Any, n: Any) -> Any:
    """Places counted from the end on both sides, by T - 1 - t."""
    back = ops.full(shape=(n, n), value=n - last, dtype="int64")
    return ops.less_equal(back - i, ops.full(shape=(n, n), value=n - 1, dtype="int64") - j)


def flipped_places(later: bool, ops: Any, i: Any, j: Any, n: Any) -> Any:
    """Places that are flipped: the later one is the smaller."""
    rows, columns = (derived.flip(ops, each, axis=axis) for axis, each in enumerate((i, j)))
    return ops.less_equal(columns, rows) if later else ops.less_equal(rows, columns)


def sliding(behind: int, ahead: int, ops: Any, i: Any, j: Any, n: Any) -> Any:
    return ops.logical_and(ops.less_equal(j, i + ahead), ops.less_equal(i - behind, j))


def blocks(size: int, ahead: int, ops: Any, i: Any, j: Any, n: Any) -> Any:
    """Block-sparse: blocks up to one's own, and no later place."""
    near = ops.less_equal(i // size - 1, j // size)
    return ops.logical_and(near, ops.less_equal(j, i + ahead))


def whole_blocks(ops: Any, i: Any, j: Any, n: Any) -> Any:
    """Blocks up to one's own, which has later places in it."""
    return ops.less_equal(j // 4, i // 4)


def strided(ahead: int, ops: Any, i: Any, j: Any, n: Any) -> Any:
    """Every fourth place before, and the last few."""
    zero = ops.full(shape=(n, n), value=0, dtype="int64")
    some = ops.logical_or(ops.equal(ops.mod(i - j, zero + 4), zero), ops.less_equal(i - j, zero + 3))
    return ops.logical_and(some, ops.less_equal(j, i + ahead))


def prefix(length: int, ops: Any, i: Any, j: Any, n: Any) -> Any:
    """A prefix that all see, and no later place behind it: causal only where the prefix is one token."""
    return ops.logical_or(ops.less_equal(j, i), ops.less(j, ops.full(shape=(n, n), value=length, dtype="int64")))


def alibi(hides: bool, ops: Any, x: Any) -> Any:
    n, scores = x.shape[1], scores_of(ops, x)
    i, j = positions(ops, n)
    scores = scores + spread(ops, ops.scale(ops.cast(j - i, dtype="float32"), c=0.5), scores)
    return masked(ops, scores, up_to(ops, n), x) if hides else weigh(ops, scores, x)


def added(value: float, k: int, ops: Any, x: Any) -> Any:
    """(1 - mask) · value, as many write it."""
    scores, mask = scores_of(ops, x), ops.cast(up_to(ops, x.shape[1], k), dtype="float32")
    return weigh(ops, scores + spread(ops, (1.0 - mask) * value, scores), x)


def masked_after(renormalised: bool, ops: Any, x: Any) -> Any:
    """The mask behind the softmax: the later scores are in each row's sum; divided by what is left, they cancel."""
    scores = scores_of(ops, x)
    mask = spread(ops, ops.cast(up_to(ops, x.shape[1]), dtype="float32"), scores)
    if not renormalised:
        return ops.bmm(ops.softmax(scores, axis=-1) * mask, x)
    powers = ops.exp(scores) * mask
    return ops.bmm(powers / spread(ops, ops.reduce_sum(powers, axis=-1, keepdims=True), scores), x)


def key_of_row_softmax(axis: int, ops: Any, x: Any) -> Any:
    """The mask and the softmax along the keys, or both along the queries."""
    return ops.bmm(ops.softmax(hidden(ops, scores_of(ops, x), up_to(ops, x.shape[1])), axis=axis), x)


def heads(causal: bool, ops: Any, x: Any) -> Any:
    batch, n, _ = x.shape
    split = ops.permute(ops.reshape(x, shape=(batch, n, H, D // H)), axes=(0, 2, 1, 3))
    out = ops.scaled_dot_product_attention(split, split, split, causal=causal)
    return ops.reshape(ops.permute(out, axes=(0, 2, 1, 3)), shape=x.shape)


def unsplit_heads(ops: Any, x: Any) -> Any:
    """The heads are put back without turning the axes, which mixes places."""
    batch, n, _ = x.shape
    split = ops.permute(ops.reshape(x, shape=(batch, n, H, D // H)), axes=(0, 2, 1, 3))
    out = ops.scaled_dot_product_attention(split, split, split, causal=True)
    return ops.reshape(out, shape=x.shape)


def rotated(ops: Any, x: Any) -> Any:
    """Rotary embeddings of the places."""
    n = x.shape[1]
    half = D // 2
    rates = ops.const(10000.0 ** (-np.arange(half, dtype="f4") / half))
    angle = ops.cast(ops.iota(shape=(n, half), axis=0), dtype="float32") * ops.broadcast_to(rates, shape=(n, half))
    shape = (x.shape[0], n, half)
    cos, sin = (ops.broadcast_to(f(angle), shape=shape) for f in (ops.cos, ops.sin))
    a, b = (ops.slice(x, axis=2, start=at, length=half) for at in (0, half))
    return ops.concat([a * cos - b * sin, a * sin + b * cos], axis=2)


def rope(k: int, ops: Any, x: Any) -> Any:
    q = rotated(ops, x)
    return masked(ops, ops.bmm(q, ops.permute(q, axes=(0, 2, 1))), up_to(ops, x.shape[1], k), x)


def chunked(ahead: int, ops: Any, x: Any) -> Any:
    """Streaming: queries of the second half beside all keys, whose places are offset."""
    n, half = x.shape[1], x.shape[1] // 2
    first, second = (ops.slice(x, axis=1, start=at, length=size) for at, size in ((0, half), (half, n - half)))
    outs = []
    for part, at in ((first, 0), (second, half)):
        keys = ops.slice(x, axis=1, start=0, length=at + part.shape[1])
        scores = ops.bmm(part, ops.permute(keys, axes=(0, 2, 1)))
        size = scores.shape[1:]
        rows, columns = ops.iota(shape=size, axis=0), ops.iota(shape=size, axis=1)
        place = rows + ops.full(shape=size, value=at + ahead, dtype="int64")
        seen = ops.broadcast_to(ops.less_equal(columns, place), shape=scores.shape)
        outs.append(ops.bmm(ops.softmax(ops.select(seen, scores, full(ops, scores, -math.inf)), axis=-1), keys))
    return ops.concat(outs, axis=1)


DECODERS: dict[str, Twins] = {
    "tril of ones, filled with -inf": Twins.of(tril_of_ones, 0, 1),
    "triu of -inf, added": Twins(partial(triu_of_inf, 1, -math.inf), partial(triu_of_inf, 2, -math.inf)),
    "triu of -1e9, added": Twins(partial(triu_of_inf, 1, -1e9), partial(triu_of_inf, 2, -1e9), specs=(BOUNDED,)),
    "a table that is cut": Twins.of(held_table, 0, 1, specs=(X.changed(where=("B >= 1", "T >= 1", "T <= 32")),)),
    "places that are compared": Twins.of(
        seen_where, lambda ops, i, j, n: ops.less_equal(j, i), lambda ops, i, j, n: ops.less_equal(j, i + 1)
    ),
    "places that are compared the other way": Twins.of(
        seen_where,
        lambda ops, i, j, n: ops.logical_not(ops.less(i, j)),
        lambda ops, i, j, n: ops.logical_not(ops.less(j, i)),
    ),
    "places from the end": Twins.of(seen_where, partial(reversed_columns, 1), partial(reversed_columns, 2)),
    "places that are flipped": Twins.of(seen_where, partial(flipped_places, False), partial(flipped_places, True)),
    "a sliding window": Twins.of(seen_where, partial(sliding, 3, 0), partial(sliding, 3, 1)),
    "a window on both sides": Twins.of(seen_where, partial(sliding, 2, 2), partial(sliding, 2, 3), "window:T:2"),
    "blocks before one's own": Twins.of(seen_where, partial(blocks, 4, 0), whole_blocks),
    "blocks of one's own": Twins.of(seen_where, partial(blocks, 2, 0), partial(blocks, 2, 1)),
    "every fourth place": Twins.of(seen_where, partial(strided, 0), partial(strided, 1)),
    "a prefix": Twins.of(seen_where, partial(prefix, 1), partial(prefix, 2)),
    "alibi": Twins.of(alibi, True, False),
    "(1 - mask) · -1e4": Twins(partial(added, -1e4, 0), partial(added, -1e4, 1), specs=(BOUNDED,)),
    "(1 - mask) · the least float": Twins(partial(added, LEAST, 0), partial(added, LEAST, 1), specs=(BOUNDED,)),
    "a mask behind the exponential": Twins.of(masked_after, True, False),
    "a softmax along keys": Twins.of(key_of_row_softmax, -1, 1),
    "heads": Twins.of(heads, True, False),
    "heads put back": Twins(partial(heads, True), unsplit_heads),
    "rotary places": Twins.of(rope, 0, 1),
    "chunks": Twins.of(chunked, 0, 1, specs=(X.changed(where=("B >= 1", "T >= 2")),)),
}
