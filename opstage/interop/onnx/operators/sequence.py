"""Models of sequences: attention, rotary positions, gates, caches, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....ops.advanced_indexing import put_along_axis, take_along_axis
from ....ops.arrangement import pad
from ....ops.dims import Dim, floor_div, rsqrt
from ....ops.errors import UnsupportedError
from ....ops.recurrent import gru, lstm, rnn
from ....ops.types import BOOL
from ...operators import attention_scores, attention_weights, repeated_heads
from ...values import Value, stretched
from ..graph import NodeCall, rule


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
    k, v = (repeated_heads(ops, each, groups) for each in (k, v))
    scale = call.attribute("scale")
    bias, mask = _bias(call, q, k, past)
    softcap, mode = call.attribute("softcap", 0.0) or 0.0, call.attribute("qk_matmul_output_mode", 0)
    wants_scores = len(call.node.outputs) > 3 and bool(call.node.outputs[3])
    scores = None
    if not softcap and not wants_scores:
        y = ops.scaled_dot_product_attention(q, k, v, mask, bias, scale=scale)
    else:
        raw, biased = attention_scores(ops, q, k, mask, bias, scale=scale, cap=softcap)
        weights = attention_weights(ops, biased)
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

    shape: tuple[Dim, ...] = (n, m)
    places = ops.iota(shape=shape, axis=0)
    ends = None
    if call.has(6):
        ends = ops.reshape(ops.cast(call.x(6), dtype="int64"), shape=(b, 1, 1, 1))
        shape = (b, 1, n, m)
        places = ops.add(ops.iota(shape=shape, axis=2), ops.sub(ops.broadcast_to(ends, shape=shape), n))
    else:
        places = ops.add(places, past)
    keys = ops.iota(shape=shape, axis=len(shape) - 1)
    rules = []
    if call.attribute("is_causal", 0):
        rules.append(ops.less_equal(keys, places))
    left, right = call.attribute("left_window_size", -1), call.attribute("right_window_size", -1)
    if left >= 0:
        rules.append(ops.less_equal(ops.sub(places, keys), left))
    if right >= 0:
        rules.append(ops.less_equal(ops.sub(keys, places), right))
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


# Gates, caches, convolutions and attention with a state ---------------------------------------------------------------


@rule("SwiGLU")
def _swiglu(call: NodeCall[Any]) -> Value:
    ops, a = call.ops, call.x()
    gate = ops.mul(a, ops.sigmoid(ops.scale(a, c=call.attribute("alpha", 1.0))))
    return call.give(ops.mul(gate, call.x(1)))


@rule("CausalConvWithState")
def _causal_conv(call: NodeCall[Any]) -> tuple[Value, ...]:
    """A causal depthwise convolution whose state is the last k - 1 entries."""
    ops, x, kernel = call.ops, call.x(0), call.x(1)
    batch, channels, length = x.shape
    size = kernel.shape[2]
    if not isinstance(channels, int):
        raise UnsupportedError("the number of channels is not known before a run")
    past = call.x(3) if call.has(3) else ops.full(shape=(batch, channels, size - 1), value=0.0)
    whole = ops.concat([past, x], axis=2)
    y = ops.conv(kernel, call.x(2) if call.has(2) else None, whole, groups=channels)
    if call.attribute("activation", "none") in ("silu", "swish"):
        y = ops.silu(y)
    return call.give(y), call.give(ops.slice(whole, axis=2, start=length, length=size - 1))


@rule("TensorScatter")
def _tensor_scatter(call: NodeCall[Any]) -> Value:
    """Write new entries to a cache, from a position in each row on; if `circular`, wrapping around at the end."""
    ops, past, new = call.ops, call.x(0), call.x(1)
    rank = len(past.shape)
    axis = int(call.attribute("axis", -2)) % rank
    size = past.shape[axis]
    shape = new.shape
    places = ops.iota(shape=shape, axis=axis)
    if call.has(2):
        first = ops.reshape(ops.cast(call.x(2), dtype="int64"), shape=(shape[0], *[1] * (rank - 1)))
        places = ops.add(places, ops.broadcast_to(first, shape=shape))
    if call.attribute("mode", "linear") == "circular":
        places = ops.mod(places, size)
    return call.give(put_along_axis(ops, past, places, new, axis=axis))


@rule("ReverseSequence")
def _reverse_sequence(call: NodeCall[Any]) -> Value:
    """Reverse the first entries of each sequence, up to its length."""
    ops, x = call.ops, call.x()
    batch, time = int(call.attribute("batch_axis", 1)), int(call.attribute("time_axis", 0))
    lengths = ops.cast(call.x(1), dtype="int64")
    lengths = ops.reshape(lengths, shape=tuple(lengths.shape[0] if a == batch else 1 for a in range(len(x.shape))))
    lengths = ops.broadcast_to(lengths, shape=x.shape)
    at = ops.iota(shape=x.shape, axis=time)
    mirrored = ops.select(ops.less(at, lengths), ops.sub(ops.sub(lengths, at), 1), at)
    return call.give(take_along_axis(ops, x, mirrored, axis=time))


@rule("CenterCropPad", known=(1,))
def _center(call: NodeCall[Any]) -> Value:

    ops, x = call.ops, call.x()
    sizes = call.ints(1, "shape")
    axes = [int(a) % len(x.shape) for a in call.attribute("axes", range(len(x.shape)))]
    for axis, wanted in zip(axes, sizes):
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(wanted, int):
            raise UnsupportedError("sizes that it cuts or pads are not known before a run")
        if wanted < size:
            x = ops.slice(x, axis=axis, start=(size - wanted) // 2, length=wanted)
        else:
            before = (wanted - size) // 2
            pairs: list[Any] = [(0, 0)] * len(x.shape)
            pairs[axis] = (before, wanted - size - before)
            x = pad(ops, x, padding=pairs)
    return call.give(x)


@rule("LinearAttention")
def _linear_attention(call: NodeCall[Any]) -> tuple[Value, ...]:
    """Attention without softmax: a state (B, heads, dₖ, dᵥ) that each step decays, corrects and reads."""
    ops = call.ops
    rule_name = call.attribute("update_rule", "gated_delta")
    heads, shared = int(call.attribute("q_num_heads")), int(call.attribute("kv_num_heads"))
    batch, time = call.shape(0)[:2]

    def steps(i: int, count: int) -> Any:
        """Return (B, T, count·d) as (T, B, count, d)."""
        x = call.x(i)
        x = ops.reshape(x, shape=(batch, time, count, floor_div(x.shape[2], count)))
        return ops.permute(x, axes=(1, 0, 2, 3))

    q, k, v = steps(0, heads), steps(1, shared), steps(2, shared)
    wide, deep = k.shape[3], v.shape[3]
    gates = steps(4, shared) if "gated" in rule_name else None
    beta = None
    if "delta" in rule_name:
        beta = ops.permute(call.x(5), axes=(1, 0, 2))
        beta = stretched(ops, ops.unsqueeze(beta, axis=3), (time, batch, shared, deep))
    scale = call.attribute("scale", 0.0) or rsqrt(wide)
    first = call.x(3) if call.has(3) else ops.full(shape=(batch, shared, wide, deep), value=0.0)
    times = heads // shared

    def step(inner: Any, state: Any, at: Any) -> tuple[Any, Any]:
        q, k, v, *rest = at
        if gates is not None:
            decay = inner.unsqueeze(inner.exp(rest.pop(0)), axis=3)
            state = inner.mul(state, stretched(inner, decay, state.shape))
        column = inner.unsqueeze(k, axis=3)
        if beta is not None:
            found = inner.squeeze(inner.bmm(inner.unsqueeze(k, axis=2), state), axis=2)
            v = inner.mul(rest.pop(0), inner.sub(v, found))
        state = inner.add(state, inner.bmm(column, inner.unsqueeze(v, axis=2)))
        rows = inner.reshape(q, shape=(batch, shared, times, wide))
        y = inner.scale(inner.bmm(rows, state), c=scale)
        return state, inner.reshape(y, shape=(batch, heads * deep))

    xs = tuple(each for each in (q, k, v, gates, beta) if each is not None)
    state, y = ops.scan(step, first, xs)
    return call.give(ops.permute(y, axes=(1, 0, 2))), call.give(state, call.dtype(3) if call.has(3) else None)


# Recurrent layers -----------------------------------------------------------------------------------------------------


def _functions(call: NodeCall[Any], direction: int, defaults: list[str]) -> list[Callable[[Any, Any], Any]]:
    """Return the activations of one direction."""
    names = call.attribute("activations") or defaults * 2
    names = names[direction * len(defaults) :][: len(defaults)]
    alphas, betas = call.attribute("activation_alpha", []), call.attribute("activation_beta", [])
    known: dict[str, Callable[[Any, Any], Any]] = {
        "sigmoid": lambda ops, x: ops.sigmoid(x),
        "tanh": lambda ops, x: ops.tanh(x),
        "relu": lambda ops, x: ops.relu(x),
        "softplus": lambda ops, x: ops.softplus(x),
        "softsign": lambda ops, x: ops.softsign(x),
    }
    if alphas or betas:
        raise UnsupportedError("activations with custom coefficients are not supported")
    for name in names:
        if name.lower() not in known:
            raise UnsupportedError(f"its activation {name} is not known")
    clip = call.attribute("clip")

    def limited(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        if clip is None:
            return function
        return lambda ops, x: function(ops, ops.clamp(x, lo=-clip, hi=clip))

    return [limited(known[name.lower()]) for name in names]


def _row(ops: Any, x: Any, i: int) -> Any:
    return ops.squeeze(ops.slice(x, axis=0, start=i, length=1), axis=0)


def _run(
    call: NodeCall[Any], layer: Callable[..., tuple[Any, Any]], gates: int, settings: Callable[[int], dict[str, Any]]
) -> tuple[Value, ...]:
    """Run a layer in each direction; return all outputs and the last states."""
    ops, x = call.ops, call.x()
    batch_first = bool(call.attribute("layout", 0))
    x = ops.permute(x, axes=(1, 0, 2)) if batch_first else x
    width = gates * call.shape(2)[2]
    direction = call.attribute("direction", "forward")
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    lengths = ops.cast(call.x(4), dtype="int64") if call.has(4) else None

    def part(i: int, direction: int) -> Any:
        return _row(ops, call.x(i), direction)

    def state(i: int, direction: int) -> Any:
        if not call.has(i):
            return None
        given = call.x(i)
        return _row(ops, ops.permute(given, axes=(1, 0, 2)) if batch_first else given, direction)

    ys, lasts = [], []
    for at, backwards in enumerate(directions):
        params = {"input": part(1, at), "recurrent": part(2, at)}
        if call.has(3):
            halves = ops.split(part(3, at), sizes=(width, width), axis=0)
            params |= dict(zip(("bias", "recurrent_bias"), halves))
        if layer is lstm and call.has(7):
            params["peephole"] = part(7, at)
        first = state(5, at)
        if layer is lstm and (call.has(5) or call.has(6)):
            shape = (x.shape[1], call.shape(2)[2])
            pair = [first, state(6, at)]
            first = tuple(ops.full(shape=shape, value=0.0) if each is None else each for each in pair)
        y, last = layer(ops, x, params, state=first, lengths=lengths, reverse=backwards, **settings(at))
        ys.append(y)
        lasts.append(last if isinstance(last, tuple) else (last,))
    y = ops.stack(ys, axis=1)  # (time, directions, batch, hidden)
    ends = [ops.stack([last[i] for last in lasts], axis=0) for i in range(len(lasts[0]))]
    if batch_first:
        y = ops.permute(y, axes=(2, 0, 1, 3))
        ends = [ops.permute(end, axes=(1, 0, 2)) for end in ends]
    return tuple(call.give(each) for each in (y, *ends))


@rule("RNN")
def _rnn(call: NodeCall[Any]) -> tuple[Value, ...]:
    return _run(call, rnn, 1, lambda at: {"activation": _functions(call, at, ["Tanh"])[0]})


@rule("GRU")
def _gru(call: NodeCall[Any]) -> tuple[Value, ...]:
    after = bool(call.attribute("linear_before_reset", 0))
    defaults = ["Sigmoid", "Tanh"]
    settings = {"gates": "zrn", "reset_after": after}
    return _run(call, gru, 3, lambda at: {**settings, "activations": _functions(call, at, defaults)})


@rule("LSTM")
def _lstm(call: NodeCall[Any]) -> tuple[Value, ...]:
    if call.attribute("input_forget", 0):
        raise UnsupportedError("input_forget is not known")
    if call.attribute("clip") is not None:
        raise UnsupportedError("clip is not known for an LSTM: runtimes differ in what of its state they clip")
    defaults = ["Sigmoid", "Tanh", "Tanh"]
    return _run(call, lstm, 4, lambda at: {"gates": "iofg", "activations": _functions(call, at, defaults)})
