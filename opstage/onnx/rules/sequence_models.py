"""Parts of sequence models: gates, caches, convolutions and attention with a state."""

from __future__ import annotations

from typing import Any

from ...operators.values import Value, stretched
from ...ops.dims import floor_div, rsqrt
from ...ops.errors import UnsupportedError
from ...ops.functions.borders import pad
from ...ops.functions.places import put_along_axis, take_along_axis
from ..call import NodeCall, rule


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
        places = ops.mod(places, ops.full(shape=shape, value=size, dtype="int64"))
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
    mirrored = ops.sub(ops.sub(lengths, at), ops.full(shape=x.shape, value=1, dtype="int64"))
    return call.give(take_along_axis(ops, x, ops.select(ops.less(at, lengths), mirrored, at), axis=time))


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
