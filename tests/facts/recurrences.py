"""Recurrences, convolutions and shifts over time as people write them, each beside a twin that leaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from opstage import derived
from tests.facts.decoders import D, Program, Twins, X, full, positions, scores_of, spread


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


def retention(decays: bool, ops: Any, x: Any) -> Any:
    """Parallel retention: (Q Kᵀ ⊙ D) V with D = γ^(i - j) below the diagonal (Sun et al., 2023)."""
    n = x.shape[1]
    i, j = positions(ops, n)
    gap = ops.cast(i - j, dtype="float32")
    decay = ops.exp(ops.scale(gap if decays else ops.abs(gap), c=math.log(0.9)))
    if decays:
        decay = ops.select(ops.less_equal(j, i), decay, ops.full(shape=(n, n), value=0.0))
    scores = scores_of(ops, x)
    return ops.bmm(scores * spread(ops, decay, scores), x)


def linear_attention(whole: bool, ops: Any, x: Any) -> Any:
    """Running sums of k⊗v and of k, or the sums of all."""
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


def _outer(ops: Any, k: Any, v: Any) -> Any:
    shape = (*k.shape, D)
    return ops.broadcast_to(ops.unsqueeze(k, axis=3), shape=shape) * ops.broadcast_to(
        ops.unsqueeze(v, axis=2), shape=shape
    )


def _columns(ops: Any, k: Any, like: Any) -> Any:
    return ops.broadcast_to(ops.unsqueeze(k, axis=3), shape=like.shape)


# Convolutions and shifts ---------------------------------------------------------------------------------------------

KERNEL = np.random.default_rng(0).standard_normal((D, D, 3)).astype("f4")


def wavenet(left: Callable[[int], int], ops: Any, x: Any) -> Any:
    """Dilated convolutions, padded on the left by what `left` says of the dilation."""
    h = ops.permute(x, axes=(0, 2, 1))
    for dilation in (1, 2, 4):
        behind = left(dilation)
        padded = ops.pad(h, padding=((0, 0), (0, 0), (behind, 2 * dilation - behind)))
        h = h + ops.tanh(ops.conv(ops.const(KERNEL), None, padded, dilation=dilation))
    return ops.permute(h, axes=(0, 2, 1))


def shifted(by: int, ops: Any, x: Any) -> Any:
    """Token mixing: each place beside the one before it, or after it."""
    n = x.shape[1]
    zero = ops.full(shape=(x.shape[0], 1, D), value=0.0)
    if by > 0:
        other = ops.concat([zero, ops.slice(x, axis=1, start=0, length=n - 1)], axis=1)
    else:
        other = ops.concat([ops.slice(x, axis=1, start=1, length=n - 1), zero], axis=1)
    return 0.5 * x + 0.5 * other


def rolled(keeps_first: bool, ops: Any, x: Any) -> Any:
    """The places before by a roll, whose first place is the last one where it is not masked."""
    before = derived.roll(ops, x, shift=1, axis=1)
    if keeps_first:
        first = ops.equal(ops.iota(shape=x.shape, axis=1), ops.full(shape=x.shape, value=0, dtype="int64"))
        before = ops.select(first, full(ops, x, 0.0), before)
    return x + before


def pooled(padding: tuple[int, int], ops: Any, x: Any) -> Any:
    h = ops.pad(ops.permute(x, axes=(0, 2, 1)), padding=((0, 0), (0, 0), padding), value=-math.inf)
    return ops.permute(ops.max_pool(h, kernel=3, stride=1), axes=(0, 2, 1))


def running(op: str, reverse: bool, ops: Any, x: Any) -> Any:
    if op == "mean":
        total = ops.cumsum(x, axis=1, reverse=reverse)
        count = ops.cast(ops.iota(shape=x.shape, axis=1), dtype="float32") + 1.0
        return total / count
    return ops.cumsum(x, axis=1, exclusive=True, reverse=reverse)


def running_max(whole: bool, ops: Any, x: Any) -> Any:
    if whole:
        return x - ops.broadcast_to(ops.reduce_max(x, axis=1, keepdims=True), shape=x.shape)
    return x - derived.cummax(ops, x, axis=1)[0]


def normed(axes: tuple[int, ...], ops: Any, x: Any) -> Any:
    mean = ops.broadcast_to(ops.reduce_mean(x, axis=axes, keepdims=True), shape=x.shape)
    var = ops.reduce_mean((x - mean) * (x - mean), axis=axes, keepdims=True)
    return (x - mean) / ops.broadcast_to(ops.sqrt(var + 1e-5), shape=x.shape)


def in_reverse(twice: bool, ops: Any, x: Any) -> Any:
    """A scan backward over reversed time is one forward."""
    turned = derived.flip(ops, x, axis=1) if twice else x
    out = ops.cumsum(turned, axis=1, reverse=True)
    return derived.flip(ops, out, axis=1) if twice else out


def teacher(shift: bool, ops: Any, y: Any) -> Any:
    """A decoder fed its own targets: those before, or by mistake those of the same step, which it predicts."""
    n = y.shape[1]
    given = y
    if shift:
        start = ops.full(shape=(y.shape[0], 1, D), value=0.0)
        given = ops.concat([start, ops.slice(y, axis=1, start=0, length=n - 1)], axis=1)
    else:
        given = derived.roll(ops, y, shift=-1, axis=1)
    return along(lstm_step, lambda ops, x: (nothing(ops, x), nothing(ops, x)))(ops, given)


def lookback(ahead: int, ops: Any, x: Any) -> Any:
    """Rows read at computed places: the one before, cut off at the first."""
    n = x.shape[1]
    place = ops.iota(shape=(n,), axis=0) - 1 + ahead
    zero, last = (ops.full(shape=(n,), value=v, dtype="int64") for v in (0, n - 1))
    place = ops.minimum(ops.maximum(place, zero), last)
    rows = ops.gather_rows(ops.permute(x, axes=(1, 0, 2)), place)
    return ops.permute(rows, axes=(1, 0, 2))


def mirrored_rows(twice: bool, ops: Any, x: Any) -> Any:
    """Rows read at T - 1 - t, twice or once."""
    n = x.shape[1]
    place = ops.full(shape=(n,), value=n - 1, dtype="int64") - ops.iota(shape=(n,), axis=0)
    rows = ops.gather_rows(ops.permute(x, axes=(1, 0, 2)), place)
    if twice:
        rows = ops.gather_rows(rows, place)
    return ops.permute(rows, axes=(1, 0, 2))


RECURRENCES: dict[str, Twins] = {
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
    "retention": Twins.of(retention, True, False),
    "linear attention": Twins.of(linear_attention, False, True),
    "dilated convolutions": Twins.of(wavenet, lambda d: 2 * d, lambda d: d),
    "a shift": Twins.of(shifted, 1, -1, specs=(X.changed(where=("B >= 1", "T >= 1")),)),
    "a roll": Twins.of(rolled, True, False),
    "a pool": Twins(partial(pooled, (2, 0)), partial(pooled, (1, 1))),
    "a running mean": Twins(partial(running, "mean", False), partial(running, "mean", True)),
    "a running sum of those before": Twins(partial(running, "sum", False), partial(running, "sum", True)),
    "a running maximum": Twins.of(running_max, False, True),
    "a norm of features": Twins(partial(normed, (2,)), partial(normed, (1, 2))),
    "a running sum of reversed time": Twins.of(in_reverse, True, False),
    "teacher forcing": Twins.of(teacher, True, False),
    "rows at places before": Twins.of(lookback, 0, 2),
    "rows in reverse": Twins.of(mirrored_rows, True, False),
}
