"""More programs over time beside leaking twins: caches, packed tokens, relative places, what libraries do by habit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opstage import Spec, derived
from tests.facts.decoders import (
    KERNEL,
    D,
    Program,
    Twins,
    X,
    along,
    full,
    nothing,
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


# Recurrences and convolutions ----------------------------------------------------------------------------------------


def decoding_loop(ahead: int) -> Program:
    """A buffer of zeros that each step writes, and attends to up to its own place."""

    def program(ops: Any, x: Any) -> Any:
        batch, n, _ = x.shape
        rows = ops.permute(x, axes=(1, 0, 2))

        def step(ops: Any, carry: Any, e: Any) -> Any:
            t, buffer = carry
            place = ops.iota(shape=(n, batch, D), axis=0)
            here = ops.equal(place, ops.broadcast_to(ops.reshape(t, shape=(1, 1, 1)), shape=place.shape))
            buffer = ops.select(here, ops.broadcast_to(ops.unsqueeze(e, axis=0), shape=buffer.shape), buffer)
            return (t + 1, buffer), ops.reduce_sum(buffer, axis=0)

        first = ops.full(shape=(), value=0, dtype="int64"), ops.full(shape=(n, batch, D), value=0.0)
        _, out = ops.scan(step, first, rows)
        out = ops.permute(out, axes=(1, 0, 2))
        return out if not ahead else out + derived.flip(ops, x, axis=1)

    return program


def gru_step(ops: Any, h: Any, e: Any) -> Any:
    z, r = ops.sigmoid(e + h), ops.sigmoid(e - h)
    h = (1.0 - z) * h + z * ops.tanh(e + r * h)
    return h, h


def two_ways(both: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        ahead = along(gru_step, nothing)(ops, x)
        return ops.concat([ahead, along(gru_step, nothing, reverse=True)(ops, x)], axis=2) if both else ahead

    return program


def delta_rule(correct: bool) -> Program:
    """A state that is moved towards what it should have said (Yang et al., 2024)."""

    def program(ops: Any, x: Any) -> Any:
        rows = ops.permute(x, axes=(1, 0, 2))
        if not correct:
            rows = ops.softmax(rows, axis=0)

        def step(ops: Any, s: Any, e: Any) -> Any:
            said = ops.reduce_sum(s * ops.broadcast_to(ops.unsqueeze(e, axis=2), shape=s.shape), axis=1)
            move = ops.broadcast_to(ops.unsqueeze(e, axis=2), shape=s.shape) * ops.broadcast_to(
                ops.unsqueeze(e - said, axis=1), shape=s.shape
            )
            return s + 0.1 * move, said

        _, out = ops.scan(step, ops.full(shape=(x.shape[0], D, D), value=0.0), rows)
        return ops.permute(out, axes=(1, 0, 2))

    return program


def attention_free(whole: bool) -> Program:
    """AFT: running sums of exponentials (Zhai et al., 2021), less a number, or their maximum over all of time."""

    def program(ops: Any, x: Any) -> Any:
        top = ops.broadcast_to(ops.reduce_max(x, axis=1, keepdims=True), shape=x.shape) if whole else full(ops, x, 1.0)
        power = ops.exp(x - top)
        return ops.cumsum(power * x, axis=1) / (ops.cumsum(power, axis=1) + (0.1 if whole else 0.0))

    return program


def toeplitz(k: int) -> Program:
    """A long convolution as a matrix of γ^(i - j)."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        i, j = positions(ops, n)
        power = ops.power(ops.full(shape=(n, n), value=0.9), ops.cast(i - j, dtype="float32"))
        kernel = derived.tril(ops, power, k=k)
        return ops.bmm(ops.broadcast_to(kernel, shape=(x.shape[0], n, n)), x)

    return program


def chomped(trim: bool) -> Program:
    """TCN's: padded on both sides, and the end cut off; or the beginning."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        h = ops.conv(ops.const(KERNEL), None, ops.permute(x, axes=(0, 2, 1)), padding=2)
        return ops.permute(ops.slice(h, axis=2, start=0 if trim else 1, length=n), axes=(0, 2, 1))

    return program


def depthwise(left: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        h = ops.pad(ops.permute(x, axes=(0, 2, 1)), padding=((0, 0), (0, 0), (left, 3 - left)))
        h = ops.conv(ops.const(RNG_KERNEL), None, h, groups=D)
        return ops.permute(ops.silu(h), axes=(0, 2, 1))

    return program


RNG_KERNEL = np.random.default_rng(2).standard_normal((D, 1, 4)).astype("f4")


def coarse(mean: bool) -> Program:
    """Every second place, twice each; or means of pairs, twice each."""

    def program(ops: Any, x: Any) -> Any:
        batch, n, _ = x.shape
        pairs = ops.reshape(x, shape=(batch, n // 2, 2, D))
        low = (
            ops.reduce_mean(pairs, axis=2) if mean else ops.squeeze(ops.slice(pairs, axis=2, start=0, length=1), axis=2)
        )
        twice = ops.broadcast_to(ops.unsqueeze(low, axis=2), shape=pairs.shape)
        return ops.reshape(twice, shape=x.shape)

    return program


def repeated(mean: bool) -> Program:
    """The same by a slice with a step, a pool and repeat_interleave."""

    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        if mean:
            low = ops.permute(ops.avg_pool(ops.permute(x, axes=(0, 2, 1)), kernel=2, stride=2), axes=(0, 2, 1))
        else:
            low = ops.slice(x, axis=1, start=0, length=n // 2, step=2)
        return derived.repeat_interleave(ops, low, repeats=2, axis=1)

    return program


def differences(ahead: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        n = x.shape[1]
        inner = ops.slice(x, axis=1, start=1, length=n - 1) - ops.slice(x, axis=1, start=0, length=n - 1)
        return ops.pad(inner, padding=((0, 0), (0, 1) if ahead else (1, 0), (0, 0)))

    return program


def expanding(whole: bool) -> Program:
    """A series less its mean so far, over its deviation so far; or of all of it."""

    def program(ops: Any, x: Any) -> Any:
        if whole:
            mean = ops.broadcast_to(ops.reduce_mean(x, axis=1, keepdims=True), shape=x.shape)
            return (x - mean) / ops.broadcast_to(derived.std(ops, x, axis=1, keepdims=True) + 1e-3, shape=x.shape)
        count = ops.cast(ops.iota(shape=x.shape, axis=1) + 1, dtype="float32")
        mean = ops.cumsum(x, axis=1) / count
        square = ops.cumsum(x * x, axis=1) / count
        return (x - mean) / ops.sqrt(ops.maximum(square - mean * mean, 0.0) + 1e-3)

    return program


def capacity(reverse: bool) -> Program:
    """A token is dropped where its expert has had two before it; or two behind it."""

    def program(ops: Any, x: Any) -> Any:
        gate = ops.softmax(x, axis=2)
        best = ops.broadcast_to(ops.reduce_max(gate, axis=2, keepdims=True), shape=gate.shape)
        chosen = ops.cast(ops.equal(gate, best), dtype="float32")
        place = ops.cumsum(chosen, axis=1, exclusive=True, reverse=reverse)
        kept = ops.less(place, full(ops, place, 2.0))
        return ops.select(kept, chosen * x, full(ops, x, 0.0))

    return program


def ranked(over: int) -> Program:
    """Features in order, or places."""
    return lambda ops, x: derived.sort(ops, x, axis=over)[0]


def brightest(over: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        best = ops.unsqueeze(ops.cast(ops.argmax(x, axis=over), dtype="float32"), axis=over)
        return x + ops.broadcast_to(best, shape=x.shape)

    return program


def layers(k: int) -> Program:
    def program(ops: Any, x: Any) -> Any:
        for _ in range(3):
            h = ops.layer_norm(x, None, None)
            i, j = positions(ops, x.shape[1])
            x = x + masked(ops, scores_of(ops, h), ops.less_equal(j, i + k), h)
            x = x + ops.gelu(ops.layer_norm(x, None, None))
        return x

    return program


def checkpointed(k: int) -> Program:
    """Layers in a loop over their weights."""

    def program(ops: Any, x: Any, weights: Any) -> Any:
        def layer(ops: Any, x: Any, w: Any) -> Any:
            h = x @ w
            i, j = positions(ops, x.shape[1])
            return ops.tanh(x + masked(ops, scores_of(ops, h), ops.less_equal(j, i + k), h)), ops.sum(w)

        return ops.scan(layer, x, weights)[0]

    return program


def of_tokens(shift: int) -> Program:
    """Sums of the embeddings of the tokens before; or of those up to the next."""

    def program(ops: Any, tokens: Any) -> Any:
        h = ops.gather_rows(ops.const(TABLE), tokens)
        before = ops.pad(h, padding=((0, 0), (1, 1), (0, 0)))
        start = 0 if shift else 2
        return ops.cumsum(ops.slice(before, axis=1, start=start, length=tokens.shape[1]), axis=1)

    return program


OTHER = Spec(("B", "S", D), where=("B >= 1", "S >= 1"))
FOURS = Spec(("B", "T", D), where=("B >= 1", "T >= 4", "T % 4 == 0"))
PAIRS = Spec(("B", "T", D), where=("B >= 1", "T >= 2", "T % 2 == 0"))

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
    "a loop that writes a buffer": Twins(decoding_loop(0), decoding_loop(1)),
    "two ways": Twins(two_ways(False), two_ways(True)),
    "the delta rule": Twins(delta_rule(True), delta_rule(False)),
    "attention-free": Twins(attention_free(False), attention_free(True)),
    "a matrix of powers": Twins(toeplitz(0), toeplitz(1)),
    "an end cut off": Twins(chomped(True), chomped(False)),
    "a convolution of each channel": Twins(depthwise(3), depthwise(2)),
    "every second place": Twins(coarse(False), coarse(True), specs=(PAIRS,)),
    "every second place, repeated": Twins(repeated(False), repeated(True), specs=(PAIRS,)),
    "differences": Twins(differences(False), differences(True), specs=(X.changed(where=("T >= 2",)),)),
    "a mean so far": Twins(expanding(False), expanding(True), specs=(X.changed(where=("B >= 1", "T >= 2")),)),
    "experts with room for two": Twins(capacity(False), capacity(True)),
    "a sort": Twins(ranked(2), ranked(1)),
    "an argmax": Twins(brightest(2), brightest(1)),
    "three layers": Twins(layers(0), layers(1)),
    "layers in a loop": Twins(checkpointed(0), checkpointed(1), specs=(X, Spec(("L", D, D)))),
    "tokens before": Twins(of_tokens(1), of_tokens(0), claim="causal:T", specs=(IDS.changed(range=(0, 31)),)),
}
