"""More of what runs along time beside leaking twins: loops with buffers, filters, counts, stacks of layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from opstage import Spec, derived
from tests.facts.decoders import D, Twins, X, full, masked, positions, scores_of, up_to
from tests.facts.recurrences import KERNEL, along, nothing
from tests.facts.sequence_programs import IDS, TABLE


def decoding_loop(ahead: int, ops: Any, x: Any) -> Any:
    """A buffer of zeros that each step writes, and attends to up to its own place."""
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


def gru_step(ops: Any, h: Any, e: Any) -> Any:
    z, r = ops.sigmoid(e + h), ops.sigmoid(e - h)
    h = (1.0 - z) * h + z * ops.tanh(e + r * h)
    return h, h


def two_ways(both: bool, ops: Any, x: Any) -> Any:
    ahead = along(gru_step, nothing)(ops, x)
    return ops.concat([ahead, along(gru_step, nothing, reverse=True)(ops, x)], axis=2) if both else ahead


def delta_rule(correct: bool, ops: Any, x: Any) -> Any:
    """A state that is moved towards what it should have said (Yang et al., 2024)."""
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


def attention_free(whole: bool, ops: Any, x: Any) -> Any:
    """AFT: running sums of exponentials (Zhai et al., 2021), less a number, or their maximum over all of time."""
    top = ops.broadcast_to(ops.reduce_max(x, axis=1, keepdims=True), shape=x.shape) if whole else full(ops, x, 1.0)
    power = ops.exp(x - top)
    return ops.cumsum(power * x, axis=1) / (ops.cumsum(power, axis=1) + (0.1 if whole else 0.0))


def toeplitz(k: int, ops: Any, x: Any) -> Any:
    """A long convolution as a matrix of γ^(i - j)."""
    n = x.shape[1]
    i, j = positions(ops, n)
    power = ops.power(ops.full(shape=(n, n), value=0.9), ops.cast(i - j, dtype="float32"))
    kernel = derived.tril(ops, power, k=k)
    return ops.bmm(ops.broadcast_to(kernel, shape=(x.shape[0], n, n)), x)


def chomped(trim: bool, ops: Any, x: Any) -> Any:
    """TCN's: padded on both sides, and the end cut off; or the beginning."""
    n = x.shape[1]
    h = ops.conv(ops.const(KERNEL), None, ops.permute(x, axes=(0, 2, 1)), padding=2)
    return ops.permute(ops.slice(h, axis=2, start=0 if trim else 1, length=n), axes=(0, 2, 1))


def depthwise(left: int, ops: Any, x: Any) -> Any:
    h = ops.pad(ops.permute(x, axes=(0, 2, 1)), padding=((0, 0), (0, 0), (left, 3 - left)))
    h = ops.conv(ops.const(RNG_KERNEL), None, h, groups=D)
    return ops.permute(ops.silu(h), axes=(0, 2, 1))


RNG_KERNEL = np.random.default_rng(2).standard_normal((D, 1, 4)).astype("f4")


def coarse(mean: bool, ops: Any, x: Any) -> Any:
    """Every second place, twice each; or means of pairs, twice each."""
    batch, n, _ = x.shape
    pairs = ops.reshape(x, shape=(batch, n // 2, 2, D))
    low = ops.reduce_mean(pairs, axis=2) if mean else ops.squeeze(ops.slice(pairs, axis=2, start=0, length=1), axis=2)
    twice = ops.broadcast_to(ops.unsqueeze(low, axis=2), shape=pairs.shape)
    return ops.reshape(twice, shape=x.shape)


def repeated(mean: bool, ops: Any, x: Any) -> Any:
    """The same by a slice with a step, a pool and repeat_interleave."""
    n = x.shape[1]
    if mean:
        low = ops.permute(ops.avg_pool(ops.permute(x, axes=(0, 2, 1)), kernel=2, stride=2), axes=(0, 2, 1))
    else:
        low = ops.slice(x, axis=1, start=0, length=n // 2, step=2)
    return derived.repeat_interleave(ops, low, repeats=2, axis=1)


def differences(ahead: bool, ops: Any, x: Any) -> Any:
    n = x.shape[1]
    inner = ops.slice(x, axis=1, start=1, length=n - 1) - ops.slice(x, axis=1, start=0, length=n - 1)
    return ops.pad(inner, padding=((0, 0), (0, 1) if ahead else (1, 0), (0, 0)))


def expanding(whole: bool, ops: Any, x: Any) -> Any:
    """A series less its mean so far, over its deviation so far; or of all of it."""
    if whole:
        mean = ops.broadcast_to(ops.reduce_mean(x, axis=1, keepdims=True), shape=x.shape)
        return (x - mean) / ops.broadcast_to(derived.std(ops, x, axis=1, keepdims=True) + 1e-3, shape=x.shape)
    count = ops.cast(ops.iota(shape=x.shape, axis=1) + 1, dtype="float32")
    mean = ops.cumsum(x, axis=1) / count
    square = ops.cumsum(x * x, axis=1) / count
    return (x - mean) / ops.sqrt(ops.maximum(square - mean * mean, 0.0) + 1e-3)


def capacity(reverse: bool, ops: Any, x: Any) -> Any:
    """A token is dropped where its expert has had two before it; or two behind it."""
    gate = ops.softmax(x, axis=2)
    best = ops.broadcast_to(ops.reduce_max(gate, axis=2, keepdims=True), shape=gate.shape)
    chosen = ops.cast(ops.equal(gate, best), dtype="float32")
    place = ops.cumsum(chosen, axis=1, exclusive=True, reverse=reverse)
    kept = ops.less(place, full(ops, place, 2.0))
    return ops.select(kept, chosen * x, full(ops, x, 0.0))


def ranked(over: int, ops: Any, x: Any) -> Any:
    """Features in order, or places."""
    return derived.sort(ops, x, axis=over)[0]


def brightest(over: int, ops: Any, x: Any) -> Any:
    best = ops.unsqueeze(ops.cast(ops.argmax(x, axis=over), dtype="float32"), axis=over)
    return x + ops.broadcast_to(best, shape=x.shape)


def layers(k: int, ops: Any, x: Any) -> Any:
    for _ in range(3):
        h = ops.layer_norm(x, None, None)
        x = x + masked(ops, scores_of(ops, h), up_to(ops, x.shape[1], k), h)
        x = x + ops.gelu(ops.layer_norm(x, None, None))
    return x


def checkpointed(k: int, ops: Any, x: Any, weights: Any) -> Any:
    """Layers in a loop over their weights."""

    def layer(ops: Any, x: Any, w: Any) -> Any:
        h = x @ w
        return ops.tanh(x + masked(ops, scores_of(ops, h), up_to(ops, x.shape[1], k), h)), ops.sum(w)

    return ops.scan(layer, x, weights)[0]


def of_tokens(shift: int, ops: Any, tokens: Any) -> Any:
    """Sums of the embeddings of the tokens before; or of those up to the next."""
    h = ops.gather_rows(ops.const(TABLE), tokens)
    before = ops.pad(h, padding=((0, 0), (1, 1), (0, 0)))
    start = 0 if shift else 2
    return ops.cumsum(ops.slice(before, axis=1, start=start, length=tokens.shape[1]), axis=1)


PAIRS = Spec(("B", "T", D), where=("B >= 1", "T >= 2", "T % 2 == 0"))

STREAMS: dict[str, Twins] = {
    "a loop that writes a buffer": Twins.of(decoding_loop, 0, 1),
    "two ways": Twins.of(two_ways, False, True),
    "the delta rule": Twins.of(delta_rule, True, False),
    "attention-free": Twins.of(attention_free, False, True),
    "a matrix of powers": Twins.of(toeplitz, 0, 1),
    "an end cut off": Twins.of(chomped, True, False),
    "a convolution of each channel": Twins.of(depthwise, 3, 2),
    "every second place": Twins.of(coarse, False, True, specs=(PAIRS,)),
    "every second place, repeated": Twins.of(repeated, False, True, specs=(PAIRS,)),
    "differences": Twins.of(differences, False, True, specs=(X.changed(where=("T >= 2",)),)),
    "a mean so far": Twins.of(expanding, False, True, specs=(X.changed(where=("B >= 1", "T >= 2")),)),
    "experts with room for two": Twins.of(capacity, False, True),
    "a sort": Twins.of(ranked, 2, 1),
    "an argmax": Twins.of(brightest, 2, 1),
    "three layers": Twins.of(layers, 0, 1),
    "layers in a loop": Twins.of(checkpointed, 0, 1, specs=(X, Spec(("L", D, D)))),
    "tokens before": Twins.of(of_tokens, 1, 0, claim="causal:T", specs=(IDS.changed(range=(0, 31)),)),
}
