"""Convolutions and pools, with ONNX's ways of padding: import and export. Unbatched tensors are exported with a batch
axis of size 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import convolution, pooling
from ....ops.advanced_indexing import put_along_axis
from ....ops.arrangement import pad
from ....ops.dims import Dim, exact_div, floor_div, maximum, prod
from ....ops.errors import UnsupportedError
from ....ops.types import INT64, Shape
from ...operators import NAN
from ...values import Value, even, max_pool, maxima, overhang, window_means, windows
from ..graph import NodeCall, rule
from ..writer import OnnxValue, OnnxWriter, exports, is_empty

Pairs = list[tuple[Dim, Dim]]
Ints = tuple[int, ...]


def _pads(call: NodeCall[Any], sizes: Any, kernel: list[int], stride: list[int], dilation: list[int]) -> Pairs:
    """Return the cells before and after each spatial axis, from `pads` or `auto_pad`."""
    mode, rank = call.attribute("auto_pad", "NOTSET"), len(kernel)
    if mode in ("NOTSET", "VALID", ""):
        pads = call.attribute("pads", [0] * (2 * rank)) if mode != "VALID" else [0] * (2 * rank)
        return list(zip(pads[:rank], pads[rank:]))
    pairs: Pairs = []
    for size, k, s, d in zip(sizes, kernel, stride, dilation):
        count = floor_div(size + (s - 1), s)
        total = maximum((count - 1) * s + (k - 1) * d + 1 - size, 0)
        less = floor_div(total, 2)
        pairs.append((less, total - less) if mode == "SAME_UPPER" else (total - less, less))
    return pairs


def _window(call: NodeCall[Any], rank: int) -> tuple[list[int], list[int]]:
    return call.attribute("strides", [1] * rank), call.attribute("dilations", [1] * rank)


@rule("Conv")
def _conv(call: NodeCall[Any]) -> Value:
    ops, x, kernel = call.ops, call.x(0), call.x(1)
    rank = len(x.shape) - 2
    sizes = list(kernel.shape[2:])
    stride, dilation = _window(call, rank)
    pairs = _pads(call, x.shape[2:], sizes, stride, dilation)
    padding: Any = even(pairs)
    if padding is None:
        x, padding = pad(ops, x, padding=[(0, 0), (0, 0), *pairs]), 0
    bias = call.x(2) if call.has(2) else None
    groups = int(call.attribute("group", 1))
    y = ops.conv(kernel, bias, x, stride=tuple(stride), padding=padding, dilation=tuple(dilation), groups=groups)
    return call.give(y)


@rule("ConvTranspose")
def _conv_transpose(call: NodeCall[Any]) -> Value:
    ops, x, kernel = call.ops, call.x(0), call.x(1)
    rank = len(x.shape) - 2
    sizes = [int(k) for k in kernel.shape[2:]]
    stride, dilation = _window(call, rank)
    extra = call.attribute("output_padding", [0] * rank)
    wanted = call.attribute("output_shape")
    full = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in zip(x.shape[2:], sizes, stride, dilation)]
    mode = call.attribute("auto_pad", "NOTSET")
    if wanted is not None or mode in ("SAME_UPPER", "SAME_LOWER"):
        targets = wanted[-rank:] if wanted is not None else [n * s for n, s in zip(x.shape[2:], stride)]
        pairs = []
        for size, target, e in zip(full, targets, extra):
            total = size + e - target
            less = floor_div(total, 2)
            pairs.append((less, total - less) if mode == "SAME_UPPER" else (total - less, less))
    else:
        pads = call.attribute("pads", [0] * (2 * rank)) if mode != "VALID" else [0] * (2 * rank)
        pairs = list(zip(pads[:rank], pads[rank:]))
    bias = call.x(2) if call.has(2) else None
    groups = int(call.attribute("group", 1))
    static: dict[str, Any] = {"stride": tuple(stride), "dilation": tuple(dilation), "groups": groups}
    padding = even(pairs)
    if padding is not None and all(e < max(s, d) for e, s, d in zip(extra, stride, dilation)):
        return call.give(ops.conv_transpose(kernel, bias, x, padding=padding, output_padding=tuple(extra), **static))
    y = ops.conv_transpose(kernel, None, x, **static)
    y = pad(ops, y, padding=[(0, 0), (0, 0), *[(-a, e - b) for (a, b), e in zip(pairs, extra)]])
    if bias is not None:
        wide = ops.reshape(bias, shape=(1, bias.shape[0], *[1] * rank))
        y = ops.add(y, ops.broadcast_to(wide, shape=y.shape))
    return call.give(y)


def _pooled(call: NodeCall[Any]) -> tuple[Any, list[int], list[int], list[int], Pairs, Sequence[tuple[int, int]]]:
    """Return x, kernel, stride, dilation, the padding, and the extra padding of `ceil_mode`."""
    x = call.x()
    kernel = call.attribute("kernel_shape")
    rank = len(kernel)
    stride, dilation = _window(call, rank)
    pairs = _pads(call, x.shape[2:], kernel, stride, dilation)
    ceil = call.attribute("ceil_mode", 0)
    behind = overhang(x.shape[2:], (kernel, stride, dilation), pairs) if ceil else [(0, 0)] * rank
    return x, kernel, stride, dilation, pairs, behind


@rule("MaxPool")
def _max_pool(call: NodeCall[Any]) -> tuple[Value, ...] | Value:
    ops = call.ops
    x, kernel, stride, dilation, pairs, behind = _pooled(call)
    whole = [(a, b + more) for (a, b), (_, more) in zip(pairs, behind)]
    if call.dtype().kind != "f":
        x = ops.cast(x, dtype=ops.dtype)
    by_columns = bool(call.attribute("storage_order", 0))
    if len([name for name in call.node.outputs if name]) > 1:
        values, places = maxima(ops, x, (kernel, stride, dilation), whole)
        return call.give(values), call.give(_in_whole(ops, x.shape, places, by_columns=by_columns), INT64)
    return call.give(max_pool(ops, x, (kernel, stride, dilation), whole))


def _in_whole(ops: Any, shape: Shape, places: Any, *, by_columns: bool) -> Any:
    """Convert indices in a plane to indices in the whole tensor; in column-major order the plane is transposed."""
    if by_columns:
        if len(shape) != 4:
            raise UnsupportedError("storage_order=1 is known of planes, which x of rank 4 holds")
        rows, columns = shape[2:]
        places = ops.add(ops.mul(ops.mod(places, columns), rows), ops.floor_divide(places, columns))
    planes = ops.reshape(ops.iota(shape=(shape[0] * shape[1],)), shape=(*shape[:2], *[1] * (len(shape) - 2)))
    return ops.add(ops.mul(ops.broadcast_to(planes, shape=places.shape), prod(shape[2:])), places)


@rule("MaxUnpool")
def _max_unpool(call: NodeCall[Any]) -> Value:
    """Scatter x to zeros at the indices of MaxPool, which refer to the shape given by its attributes."""
    ops, x, places = call.ops, call.x(0), call.x(1)
    kernel = call.attribute("kernel_shape")
    rank = len(kernel)
    stride, pads = call.attribute("strides", [1] * rank), call.attribute("pads", [0] * (2 * rank))
    sizes = [(n - 1) * s + k - a - b for n, s, k, a, b in zip(x.shape[2:], stride, kernel, pads[:rank], pads[rank:])]
    shape = (*x.shape[:2], *sizes)
    empty = ops.full(shape=(prod(shape),), value=0.0, dtype=x.dtype)
    flat = (ops.reshape(each, shape=(prod(x.shape),)) for each in (places, x))
    y = ops.reshape(put_along_axis(ops, empty, *flat, axis=0, reduce="set"), shape=shape)
    if call.has(2):
        wanted = call.ints(2, "output_shape")
        y = pad(ops, y, padding=[(0, to - size) for to, size in zip(wanted, shape)])
    return call.give(y)


@rule("AveragePool")
def _average_pool(call: NodeCall[Any]) -> Value:
    x, kernel, stride, dilation, pairs, behind = _pooled(call)
    counted = bool(call.attribute("count_include_pad", 0))
    return call.give(window_means(call.ops, x, (kernel, stride, dilation), pairs, behind, counted=counted))


@rule("LpPool")
def _lp_pool(call: NodeCall[Any]) -> Value:
    ops, p = call.ops, int(call.attribute("p", 2))
    x, kernel, stride, dilation, pairs, behind = _pooled(call)
    whole = [(a, b + more) for (a, b), (_, more) in zip(pairs, behind)]
    powers = pad(ops, ops.pow(ops.abs(x), exponent=p), padding=[(0, 0), (0, 0), *whole])
    return call.give(ops.pow(windows(ops, powers, (kernel, stride, dilation), ops.add), exponent=1 / p))


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    axes = tuple(range(2, len(x.shape)))
    if call.node.op == "GlobalAveragePool":
        return call.give(ops.reduce_mean(x, axis=axes, keepdims=True))
    if call.node.op == "GlobalMaxPool":
        return call.give(ops.reduce_max(x, axis=axes, keepdims=True))
    p = int(call.attribute("p", 2))
    total = ops.reduce_sum(ops.pow(ops.abs(x), exponent=p), axis=axes, keepdims=True)
    return call.give(ops.pow(total, exponent=1 / p))


# Convolutions: export -------------------------------------------------------------------------------------------------


def batched(writer: OnnxWriter, x: OnnxValue, rank: int) -> tuple[str, Shape]:
    """Return x as (N, C, *S)."""
    if len(x.shape) == rank + 2:
        return x.name, x.shape
    return writer.node("Unsqueeze", x, writer.ints(0)), (1, *x.shape)


def unbatched(writer: OnnxWriter, name: str, x: OnnxValue, rank: int) -> str:
    """Return a result with a batch axis only if x has one."""
    return name if len(x.shape) == rank + 2 else writer.node("Squeeze", name, writer.ints(0))


def _write_window(stride: Ints, padding: Ints, dilation: Ints, groups: int) -> dict[str, Any]:
    return {"strides": stride, "pads": (*padding, *padding), "dilations": dilation, "group": groups}


@exports(convolution.CONV)
def _write_conv(writer: OnnxWriter, *operands: OnnxValue, has_bias: bool, **window: Any) -> str:
    kernel, *bias, x = operands
    rank = len(kernel.shape) - 2
    out = writer.node("Conv", batched(writer, x, rank)[0], kernel, *bias, **_write_window(**window))
    return unbatched(writer, out, x, rank)


@exports(convolution.CONV_TRANSPOSE)
def _write_conv_transpose(
    writer: OnnxWriter, *operands: OnnxValue, has_bias: bool, output_padding: Shape, **window: Any
) -> str:
    kernel, *bias, x = operands
    rank = len(kernel.shape) - 2
    if not all(isinstance(extra, int) for extra in output_padding):
        raise UnsupportedError(
            f"the output_padding {output_padding} of a transposed convolution is a number in ONNX, never an "
            "expression in sizes; record the program with numbers for the spatial sizes"
        )
    name, shape = batched(writer, x, rank)
    surplus = [extra // s for extra, s in zip(output_padding, window["stride"])]
    if any(surplus):  # output_padding of the stride or more equals padding x with zeros at the end
        name = writer.node("Pad", name, writer.ints(*(0,) * (len(shape) + 2), *surplus))
    rest = [extra % s for extra, s in zip(output_padding, window["stride"])]
    out = writer.node("ConvTranspose", name, kernel, *bias, output_padding=rest, **_write_window(**window))
    return unbatched(writer, out, x, rank)


@exports(convolution.CONV_KERNEL_GRAD)
def _write_conv_kernel_grad(
    writer: OnnxWriter, x: OnnxValue, g: OnnxValue, *, kernel: Shape, groups: int, **window: Any
) -> str:
    """Write a convolution with batch and channels exchanged, and stride and dilation exchanged.

    x (N, G·c, *S) becomes (c, G·N, *S) and g (N, G·o, *O) becomes (G·o, N, *O), a kernel for each of the G groups; the
    result (c, G·o, *K) is transposed to (G·o, c, *K). Cells of x that no window covers make the result larger than
    *kernel; the excess is cut.
    """
    if is_empty(g.type):
        return writer.filled(writer.out.shape, 0.0, x.dtype)
    rank = len(kernel)
    swap = (1, 0, *range(2, rank + 2))
    x_name, (n, channels, *spatial) = batched(writer, x, rank)
    g_name, _ = batched(writer, g, rank)
    if groups > 1:
        each = exact_div(channels, groups, "groups divide the channels")
        split, merged = (n, groups, each, *spatial), (each, groups * n, *spatial)
        x_name = writer.reshaped(x_name, (n, channels, *spatial), split)
        x_name = writer.node("Transpose", x_name, perm=(2, 1, 0, *range(3, rank + 3)))
        x_name = writer.reshaped(x_name, (each, groups, n, *spatial), merged)
    else:
        x_name = writer.node("Transpose", x_name, perm=swap)
    g_name = writer.node("Transpose", g_name, perm=swap)
    out = writer.node(
        "Conv", x_name, g_name, **_write_window(window["dilation"], window["padding"], window["stride"], groups)
    )
    out = writer.node("Transpose", out, perm=swap)
    ends, axes = writer.dims(kernel), writer.ints(*range(2, rank + 2))
    return writer.node("Slice", out, writer.ints(*(0,) * rank), ends, axes)


# Pools: export --------------------------------------------------------------------------------------------------------


def _write_pool_window(kernel: Ints, stride: Ints, padding: Ints) -> dict[str, Any]:
    return {"kernel_shape": kernel, "strides": stride, "pads": (*padding, *padding)}


@exports(pooling.MAX_POOL, note=NAN)
def _write_max_pool(writer: OnnxWriter, x: OnnxValue, *, kernel: Ints, stride: Ints, padding: Ints) -> tuple[str, ...]:
    """Write a MaxPool. ONNX's index of a maximum counts through the whole tensor; ours is the remainder, within its
    plane."""
    rank = len(kernel)
    name, shape = batched(writer, x, rank)
    out, place = writer.outputs_of("MaxPool", name, count=2, **_write_pool_window(kernel, stride, padding))
    plane = writer.number(prod(shape[2:]), writer.results[1].dtype)
    index = writer.node("Mod", place, plane)
    return unbatched(writer, out, x, rank), unbatched(writer, index, x, rank)


def _write_pool_flat_plane(writer: OnnxWriter, name: str, shape: Shape, rank: int) -> tuple[str, Shape]:
    flat = (*shape[:-rank], prod(shape[-rank:]))
    return writer.reshaped(name, shape, flat), flat


@exports(pooling.MAX_POOL_GATHER)
def _write_max_pool_gather(writer: OnnxWriter, x: OnnxValue, index: OnnxValue, *, kernel: Ints, **window: Any) -> str:
    rank = len(kernel)
    cells, flat = _write_pool_flat_plane(writer, x.name, x.shape, rank)
    places, counts = _write_pool_flat_plane(writer, index.name, index.shape, rank)
    out = writer.node("GatherElements", cells, places, axis=len(flat) - 1)
    return writer.reshaped(out, counts, writer.out.shape)


@exports(pooling.MAX_POOL_SCATTER)
def _write_max_pool_scatter(writer: OnnxWriter, g: OnnxValue, index: OnnxValue, *, kernel: Ints, **window: Any) -> str:
    rank = len(kernel)
    added, _ = _write_pool_flat_plane(writer, g.name, g.shape, rank)
    places, _ = _write_pool_flat_plane(writer, index.name, index.shape, rank)
    shape = writer.out.shape
    flat = (*shape[:-rank], prod(shape[-rank:]))
    zeros = writer.filled(flat, 0.0, g.dtype)
    out = writer.node("ScatterElements", zeros, places, added, axis=len(flat) - 1, reduction="add")
    return writer.reshaped(out, flat, shape)


@exports(pooling.AVG_POOL)
def _write_avg_pool(
    writer: OnnxWriter, x: OnnxValue, *, kernel: Ints, stride: Ints, padding: Ints, count_include_pad: bool
) -> str:
    rank = len(kernel)
    name, _ = batched(writer, x, rank)
    window = _write_pool_window(kernel, stride, padding)
    out = writer.node("AveragePool", name, count_include_pad=int(count_include_pad), **window)
    return unbatched(writer, out, x, rank)


@exports(pooling.AVG_POOL_GRAD)
def _write_avg_pool_grad(
    writer: OnnxWriter, g: OnnxValue, *, shape: Shape, kernel: Ints, count_include_pad: bool, **sides: Ints
) -> str:
    """Write a transposed depthwise convolution with a kernel of ones divided by the number of cells.

    If padding is not counted, that number varies by window: the kernel size times the average, with padding counted, of
    a plane of ones.
    """
    rank, stride, padding = len(kernel), sides["stride"], sides["padding"]
    counts, leading = g.shape[-rank:], g.shape[:-rank]
    extra = tuple(n + 2 * p - k - (count - 1) * s for n, count, k, s, p in zip(shape, counts, kernel, stride, padding))
    if not all(isinstance(e, int) for e in extra):
        raise UnsupportedError(
            "the cells behind the last window are a number in ONNX, never an expression in sizes; record the program "
            "with numbers for the spatial sizes"
        )
    window: dict[str, Any] = {"strides": stride, "pads": (*padding, *padding)}
    name = g.name
    if not count_include_pad and any(padding):
        ones = writer.filled((1, 1, *shape), 1.0, g.dtype)
        share = writer.node("AveragePool", ones, kernel_shape=kernel, count_include_pad=1, **window)
        name = writer.node("Div", name, writer.reshaped(share, (1, 1, *counts), counts))
    # Planes become samples of one channel; output_padding is less than the stride, the rest is padded at the end.
    name = writer.reshaped(name, g.shape, (prod(leading), 1, *counts))
    weight = writer.constant(np.full((1, 1, *kernel), 1 / math.prod(kernel)), g.dtype)
    name = writer.node("ConvTranspose", name, weight, output_padding=extra, **window)
    return writer.reshaped(name, (prod(leading), 1, *shape), writer.out.shape)
