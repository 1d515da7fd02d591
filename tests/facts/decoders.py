"""Programs over time as people write them, each beside a twin that leaks: by one place, by an order, by a statistic."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from opstage import Spec, derived

Program = Callable[..., Any]
D, H = 4, 2
X = Spec(("B", "T", D), where=("B >= 1", "T >= 1"))
BOUNDED = X.changed(range=(-1, 1))


class Twins(NamedTuple):
    """right    of which `claim` is true
    leaky    of which it is not
    specs    of the arguments of both
    """

    right: Program
    leaky: Program
    claim: str = "causal:T"
    specs: tuple[Spec, ...] = (X,)


def full(ops: Any, like: Any, value: float) -> Any:
    return ops.full(shape=like.shape, value=value, dtype=like.dtype)


def scores_of(ops: Any, x: Any) -> Any:
    return ops.scale(ops.bmm(x, ops.permute(x, axes=(0, 2, 1))), c=1 / math.sqrt(D))


def weigh(ops: Any, scores: Any, x: Any) -> Any:
    return ops.bmm(ops.softmax(scores, axis=-1), x)


def spread(ops: Any, mask: Any, scores: Any) -> Any:
    return ops.broadcast_to(mask, shape=scores.shape)


# Masks ---------------------------------------------------------------------------------------------------------------


def tril_of_ones(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        seen = derived.tril(ops, ops.full(shape=(n, n), value=1.0), k=k)
        scores = scores_of(ops, x)
        hidden = ops.equal(spread(ops, seen, scores), full(ops, scores, 0.0))
        return weigh(ops, derived.masked_fill(ops, scores, hidden, value=-math.inf), x)

    return program


def triu_of_inf(k: int, value: float = -math.inf) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        mask = derived.triu(ops, ops.full(shape=(n, n), value=value), k=k)
        scores = scores_of(ops, x)
        return weigh(ops, scores + spread(ops, mask, scores), x)

    return program


def held_table(k: int) -> Program:
    """A buffer of the longest length, cut to the length of the batch."""
    table = np.tril(np.ones((32, 32), bool), k)

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        seen = ops.slice(
            ops.slice(ops.const(table, dtype="bool"), axis=0, start=0, length=n), axis=1, start=0, length=n
        )
        scores = scores_of(ops, x)
        return weigh(ops, ops.select(spread(ops, seen, scores), scores, full(ops, scores, -math.inf)), x)

    return program


def positions(ops: Any, n: Any) -> tuple[Any, Any]:
    return ops.iota(shape=(n, n), axis=0), ops.iota(shape=(n, n), axis=1)


def seen_where(test: Callable[[Any, Any, Any, Any], Any]) -> Program:
    """Attention to the columns that a test (ops, rows, columns, size) lets through."""

    def program(ops: Any, x: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        seen = test(ops, *positions(ops, n), n)
        return weigh(ops, ops.select(spread(ops, seen, scores), scores, full(ops, scores, -math.inf)), x)

    return program


def reversed_columns(last: int) -> Program:
    """Places counted from the end on both sides, by T - 1 - t."""

    def test(ops: Any, i: Any, j: Any, n: Any) -> Any:
        back = ops.full(shape=(n, n), value=n - last, dtype="int64")
        return ops.less_equal(back - i, ops.full(shape=(n, n), value=n - 1, dtype="int64") - j)

    return seen_where(test)


def flipped_places(later: bool) -> Program:
    """Places that are flipped: the later one is the smaller."""

    def test(ops: Any, i: Any, j: Any, n: Any) -> Any:
        rows, columns = (derived.flip(ops, each, axis=axis) for axis, each in enumerate((i, j)))
        return ops.less_equal(columns, rows) if later else ops.less_equal(rows, columns)

    return seen_where(test)


def sliding(behind: int, ahead: int) -> Program:
    def test(ops: Any, i: Any, j: Any, n: Any) -> Any:
        return ops.logical_and(ops.less_equal(j, i + ahead), ops.less_equal(i - behind, j))

    return seen_where(test)


def blocks(size: int, ahead: int) -> Program:
    """Block-sparse: blocks up to one's own, and no later place."""

    def test(ops: Any, i: Any, j: Any, n: Any) -> Any:
        near = ops.less_equal(i // size - 1, j // size)
        return ops.logical_and(near, ops.less_equal(j, i + ahead))

    return seen_where(test)


def whole_blocks(ops: Any, i: Any, j: Any, n: Any) -> Any:
    """Blocks up to one's own, which has later places in it."""
    return ops.less_equal(j // 4, i // 4)


def strided(ahead: int) -> Program:
    """Every fourth place before, and the last few."""

    def test(ops: Any, i: Any, j: Any, n: Any) -> Any:
        zero = ops.full(shape=(n, n), value=0, dtype="int64")
        some = ops.logical_or(ops.equal(ops.mod(i - j, zero + 4), zero), ops.less_equal(i - j, zero + 3))
        return ops.logical_and(some, ops.less_equal(j, i + ahead))

    return seen_where(test)


def prefix(length: int) -> Program:
    """A prefix that all see, and no later place behind it: causal only where the prefix is one token."""

    def test(ops: Any, i: Any, j: Any, n: Any) -> Any:
        return ops.logical_or(ops.less_equal(j, i), ops.less(j, ops.full(shape=(n, n), value=length, dtype="int64")))

    return seen_where(test)


def alibi(hides: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        i, j = positions(ops, n)
        bias = ops.scale(ops.cast(j - i, dtype="float32"), c=0.5)
        scores = scores + spread(ops, bias, scores)
        if hides:
            seen = ops.less_equal(j, i)
            scores = ops.select(spread(ops, seen, scores), scores, full(ops, scores, -math.inf))
        return weigh(ops, scores, x)

    return program


def added(value: float, k: int, dtype: str = "float32") -> Program:
    """(1 - mask) · value, as many write it."""

    def program(ops: Any, x: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        i, j = positions(ops, n)
        mask = ops.cast(ops.less_equal(j, i + k), dtype="float32")
        return weigh(ops, scores + spread(ops, (1.0 - mask) * value, scores), x)

    return program


def masked_after(renormalised: bool) -> Program:
    """The mask behind the softmax: the later scores are in each row's sum; divided by what is left, they cancel."""

    def program(ops: Any, x: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        i, j = positions(ops, n)
        mask = spread(ops, ops.cast(ops.less_equal(j, i), dtype="float32"), scores)
        if renormalised:
            powers = ops.exp(scores) * mask
            return ops.bmm(
                powers / ops.broadcast_to(ops.reduce_sum(powers, axis=-1, keepdims=True), shape=scores.shape), x
            )
        return ops.bmm(ops.softmax(scores, axis=-1) * mask, x)

    return program


def key_of_row_softmax(axis: int) -> Program:
    """The mask and the softmax along the keys, or both along the queries."""

    def program(ops: Any, x: Any) -> Any:
        n, scores = x.shape[1], scores_of(ops, x)
        i, j = positions(ops, n)
        masked = ops.select(spread(ops, ops.less_equal(j, i), scores), scores, full(ops, scores, -math.inf))
        return ops.bmm(ops.softmax(masked, axis=axis), x)

    return program


def heads(causal: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        batch, n, _ = x.shape
        split = ops.permute(ops.reshape(x, shape=(batch, n, H, D // H)), axes=(0, 2, 1, 3))
        out = ops.scaled_dot_product_attention(split, split, split, causal=causal)
        return ops.reshape(ops.permute(out, axes=(0, 2, 1, 3)), shape=x.shape)

    return program


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


def rope(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        q, n = rotated(ops, x), x.shape[1]
        scores = ops.bmm(q, ops.permute(q, axes=(0, 2, 1)))
        i, j = positions(ops, n)
        seen = spread(ops, ops.less_equal(j, i + k), scores)
        return weigh(ops, ops.select(seen, scores, full(ops, scores, -math.inf)), x)

    return program


def chunked(ahead: int) -> Program:
    """Streaming: queries of the second half beside all keys, whose places are offset."""

    def program(ops: Any, x: Any) -> Any:
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

    return program


# Recurrences ---------------------------------------------------------------------------------------------------------


def along(step: Callable[..., Any], first: Callable[..., Any], **more: Any) -> Program:
    """A scan over time of (B, T, D)."""

    def program(ops: Any, x: Any) -> Any:
        rows = ops.permute(x, axes=(1, 0, 2))
        _, out = ops.scan(step, first(ops, x), rows, **more)
        return ops.permute(out, axes=(1, 0, 2))

    return program


def nothing(ops: Any, x: Any) -> Any:
    return ops.full(shape=(x.shape[0], D), value=0.0)


def lstm_step(ops: Any, carry: Any, e: Any) -> Any:
    h, c = carry
    c = ops.sigmoid(h + e) * c + ops.sigmoid(h - e) * ops.tanh(e)
    h = ops.sigmoid(e) * ops.tanh(c)
    return (h, c), h


def xlstm_step(ops: Any, carry: Any, e: Any) -> Any:
    """Exponential gates, kept in range by their running maximum (Beck et al., 2024)."""
    c, n, m = carry
    largest = ops.maximum(e + m, e)
    keep, add = ops.exp(e + m - largest), ops.exp(e - largest)
    c, n = keep * c + add * ops.tanh(e), keep * n + add
    return (c, n, largest), c / ops.maximum(ops.abs(n), full(ops, n, 1.0))


def rwkv_step(ops: Any, carry: Any, e: Any) -> Any:
    """A weighted mean of values whose weights decay, and the value before shifted in (Peng et al., 2023)."""
    a, b, before = carry
    k = 0.5 * e + 0.5 * before
    weight = ops.exp(ops.minimum(k, full(ops, k, 0.0)))
    out = (a + weight * e) / (b + weight)
    return (0.9 * a + weight * e, 0.9 * b + weight, e), out


def mamba(ops: Any, x: Any) -> Any:
    """A selective state space by a linear recurrence."""
    decay = ops.exp(ops.neg(ops.softplus(x)))
    return ops.linear_recurrence(decay, (1.0 - decay) * x, axis=1)


def mamba_backward(ops: Any, x: Any) -> Any:
    decay = ops.exp(ops.neg(ops.softplus(x)))
    return mamba(ops, x) + ops.linear_recurrence(decay, (1.0 - decay) * x, axis=1, reverse=True)


def retention(decays: bool) -> Program:
    """Parallel retention: (Q Kᵀ ⊙ D) V with D = γ^(i - j) below the diagonal (Sun et al., 2023)."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        i, j = positions(ops, n)
        gap = ops.cast(i - j, dtype="float32")
        decay = ops.exp(ops.scale(gap if decays else ops.abs(gap), c=math.log(0.9)))
        if decays:
            decay = ops.select(ops.less_equal(j, i), decay, ops.full(shape=(n, n), value=0.0))
        scores = scores_of(ops, x)
        return ops.bmm(scores * spread(ops, decay, scores), x)

    return program


def linear_attention(whole: bool) -> Program:
    """Running sums of k⊗v and of k, or the sums of all."""

    def program(ops: Any, x: Any) -> Any:
        k = ops.elu(x) + 1.0
        pairs = _outer(ops, k, x)
        if whole:
            state = ops.broadcast_to(ops.reduce_sum(pairs, axis=1, keepdims=True), shape=pairs.shape)
            norm = ops.broadcast_to(ops.reduce_sum(k, axis=1, keepdims=True), shape=k.shape)
        else:
            state, norm = ops.cumsum(pairs, axis=1), ops.cumsum(k, axis=1)
        read = ops.reduce_sum(state * _columns(ops, k, pairs), axis=2)
        total = ops.reduce_sum(norm * k, axis=2, keepdims=True)
        return read / ops.broadcast_to(total, shape=read.shape)

    return program


def _outer(ops: Any, k: Any, v: Any) -> Any:
    shape = (*k.shape, D)
    return ops.broadcast_to(ops.unsqueeze(k, axis=3), shape=shape) * ops.broadcast_to(
        ops.unsqueeze(v, axis=2), shape=shape
    )


def _columns(ops: Any, k: Any, like: Any) -> Any:
    return ops.broadcast_to(ops.unsqueeze(k, axis=3), shape=like.shape)


# Convolutions and shifts ---------------------------------------------------------------------------------------------

KERNEL = np.random.default_rng(0).standard_normal((D, D, 3)).astype("f4")


def wavenet(left: Callable[[int], int]) -> Program:
    """Dilated convolutions, padded on the left by what `left` says of the dilation."""

    def program(ops: Any, x: Any) -> Any:
        h = ops.permute(x, axes=(0, 2, 1))
        for dilation in (1, 2, 4):
            behind = left(dilation)
            padded = ops.pad(h, padding=((0, 0), (0, 0), (behind, 2 * dilation - behind)))
            h = h + ops.tanh(ops.conv(ops.const(KERNEL), None, padded, dilation=dilation))
        return ops.permute(h, axes=(0, 2, 1))

    return program


def shifted(by: int) -> Program:
    """Token mixing: each place beside the one before it, or after it."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        zero = ops.full(shape=(x.shape[0], 1, D), value=0.0)
        if by > 0:
            other = ops.concat([zero, ops.slice(x, axis=1, start=0, length=n - 1)], axis=1)
        else:
            other = ops.concat([ops.slice(x, axis=1, start=1, length=n - 1), zero], axis=1)
        return 0.5 * x + 0.5 * other

    return program


def rolled(keeps_first: bool) -> Program:
    """The places before by a roll, whose first place is the last one where it is not masked."""

    def program(ops: Any, x: Any) -> Any:
        before = derived.roll(ops, x, shift=1, axis=1)
        if keeps_first:
            first = ops.equal(ops.iota(shape=x.shape, axis=1), ops.full(shape=x.shape, value=0, dtype="int64"))
            before = ops.select(first, full(ops, x, 0.0), before)
        return x + before

    return program


def pooled(padding: tuple[int, int]) -> Program:
    def program(ops: Any, x: Any) -> Any:
        h = ops.pad(ops.permute(x, axes=(0, 2, 1)), padding=((0, 0), (0, 0), padding), value=-math.inf)
        return ops.permute(ops.max_pool(h, kernel=3, stride=1), axes=(0, 2, 1))

    return program


def running(op: str, reverse: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        if op == "mean":
            total = ops.cumsum(x, axis=1, reverse=reverse)
            count = ops.cast(ops.iota(shape=x.shape, axis=1), dtype="float32") + 1.0
            return total / count
        return ops.cumsum(x, axis=1, exclusive=True, reverse=reverse)

    return program


def running_max(whole: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        if whole:
            return x - ops.broadcast_to(ops.reduce_max(x, axis=1, keepdims=True), shape=x.shape)
        return x - derived.cummax(ops, x, axis=1)[0]

    return program


def normed(axes: tuple[int, ...]) -> Program:
    def program(ops: Any, x: Any) -> Any:
        mean = ops.broadcast_to(ops.reduce_mean(x, axis=axes, keepdims=True), shape=x.shape)
        var = ops.reduce_mean((x - mean) * (x - mean), axis=axes, keepdims=True)
        return (x - mean) / ops.broadcast_to(ops.sqrt(var + 1e-5), shape=x.shape)

    return program


def in_reverse(twice: bool) -> Program:
    """A scan backward over reversed time is one forward."""

    def program(ops: Any, x: Any) -> Any:
        turned = derived.flip(ops, x, axis=1) if twice else x
        out = ops.cumsum(turned, axis=1, reverse=True)
        return derived.flip(ops, out, axis=1) if twice else out

    return program


def teacher(shift: bool) -> Program:
    """A decoder fed its own targets: those before, or by mistake those of the same step, which it predicts."""

    def program(ops: Any, y: Any) -> Any:
        n = y.shape[1]
        given = y
        if shift:
            start = ops.full(shape=(y.shape[0], 1, D), value=0.0)
            given = ops.concat([start, ops.slice(y, axis=1, start=0, length=n - 1)], axis=1)
        else:
            given = derived.roll(ops, y, shift=-1, axis=1)
        return along(lstm_step, lambda ops, x: (nothing(ops, x), nothing(ops, x)))(ops, given)

    return program


def lookback(ahead: int) -> Program:
    """Rows read at computed places: the one before, cut off at the first."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        place = ops.iota(shape=(n,), axis=0) - 1 + ahead
        zero, last = (ops.full(shape=(n,), value=v, dtype="int64") for v in (0, n - 1))
        place = ops.minimum(ops.maximum(place, zero), last)
        rows = ops.gather_rows(ops.permute(x, axes=(1, 0, 2)), place)
        return ops.permute(rows, axes=(1, 0, 2))

    return program


def mirrored_rows(twice: bool) -> Program:
    """Rows read at T - 1 - t, twice or once."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        place = ops.full(shape=(n,), value=n - 1, dtype="int64") - ops.iota(shape=(n,), axis=0)
        rows = ops.gather_rows(ops.permute(x, axes=(1, 0, 2)), place)
        if twice:
            rows = ops.gather_rows(rows, place)
        return ops.permute(rows, axes=(1, 0, 2))

    return program


DECODERS: dict[str, Twins] = {
    "tril of ones, filled with -inf": Twins(tril_of_ones(0), tril_of_ones(1)),
    "triu of -inf, added": Twins(triu_of_inf(1), triu_of_inf(2)),
    "triu of -1e9, added": Twins(triu_of_inf(1, -1e9), triu_of_inf(2, -1e9), specs=(BOUNDED,)),
    "a table that is cut": Twins(
        held_table(0), held_table(1), specs=(X.changed(where=("B >= 1", "T >= 1", "T <= 32")),)
    ),
    "places that are compared": Twins(
        seen_where(lambda ops, i, j, n: ops.less_equal(j, i)), seen_where(lambda ops, i, j, n: ops.less_equal(j, i + 1))
    ),
    "places that are compared the other way": Twins(
        seen_where(lambda ops, i, j, n: ops.logical_not(ops.less(i, j))),
        seen_where(lambda ops, i, j, n: ops.logical_not(ops.less(j, i))),
    ),
    "places from the end": Twins(reversed_columns(1), reversed_columns(2)),
    "places that are flipped": Twins(flipped_places(False), flipped_places(True)),
    "a sliding window": Twins(sliding(3, 0), sliding(3, 1)),
    "a window on both sides": Twins(sliding(2, 2), sliding(2, 3), "window:T:2"),
    "blocks before one's own": Twins(blocks(4, 0), seen_where(whole_blocks)),
    "blocks of one's own": Twins(blocks(2, 0), blocks(2, 1)),
    "every fourth place": Twins(strided(0), strided(1)),
    "a prefix": Twins(prefix(1), prefix(2)),
    "alibi": Twins(alibi(True), alibi(False)),
    "(1 - mask) · -1e4": Twins(added(-1e4, 0), added(-1e4, 1), specs=(BOUNDED,)),
    "(1 - mask) · the least float": Twins(
        added(float(np.finfo(np.float32).min), 0), added(float(np.finfo(np.float32).min), 1), specs=(BOUNDED,)
    ),
    "a mask behind the exponential": Twins(masked_after(True), masked_after(False)),
    "a softmax along keys": Twins(key_of_row_softmax(-1), key_of_row_softmax(1)),
    "heads": Twins(heads(True), heads(False)),
    "heads put back": Twins(heads(True), unsplit_heads),
    "rotary places": Twins(rope(0), rope(1)),
    "chunks": Twins(chunked(0), chunked(1), specs=(X.changed(where=("B >= 1", "T >= 2")),)),
    "an lstm": Twins(
        along(lstm_step, lambda ops, x: (nothing(ops, x), nothing(ops, x))),
        along(lstm_step, lambda ops, x: (nothing(ops, x), nothing(ops, x)), reverse=True),
    ),
    "an xlstm": Twins(
        along(xlstm_step, lambda ops, x: (nothing(ops, x), nothing(ops, x), nothing(ops, x))),
        along(xlstm_step, lambda ops, x: (nothing(ops, x), nothing(ops, x), ops.reduce_max(x, axis=1))),
    ),
    "rwkv": Twins(
        along(rwkv_step, lambda ops, x: (nothing(ops, x), nothing(ops, x), nothing(ops, x))),
        along(rwkv_step, lambda ops, x: (nothing(ops, x), nothing(ops, x), ops.reduce_mean(x, axis=1))),
    ),
    "a state space": Twins(mamba, mamba_backward),
    "retention": Twins(retention(True), retention(False)),
    "linear attention": Twins(linear_attention(False), linear_attention(True)),
    "dilated convolutions": Twins(wavenet(lambda d: 2 * d), wavenet(lambda d: d)),
    "a shift": Twins(shifted(1), shifted(-1), specs=(X.changed(where=("B >= 1", "T >= 1")),)),
    "a roll": Twins(rolled(True), rolled(False)),
    "a pool": Twins(pooled((2, 0)), pooled((1, 1))),
    "a running mean": Twins(running("mean", False), running("mean", True)),
    "a running sum of those before": Twins(running("sum", False), running("sum", True)),
    "a running maximum": Twins(running_max(False), running_max(True)),
    "a norm of features": Twins(normed((2,)), normed((1, 2))),
    "a running sum of reversed time": Twins(in_reverse(True), in_reverse(False)),
    "teacher forcing": Twins(teacher(True), teacher(False)),
    "rows at places before": Twins(lookback(0), lookback(2)),
    "rows in reverse": Twins(mirrored_rows(True), mirrored_rows(False)),
}
