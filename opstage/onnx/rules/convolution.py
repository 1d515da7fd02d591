"""Convolutions and pools, with ONNX's ways of padding."""

from __future__ import annotations

import math
from typing import Any

from ...imported.pools import maxima, windows
from ...operators.values import Value
from ...ops.dims import Dim, floor_div, maximum, prod
from ...ops.errors import UnsupportedError
from ...ops.functions.borders import pad
from ...ops.functions.places import put_along_axis
from ...ops.types import INT64, Shape
from ..call import NodeCall, rule

Pairs = list[tuple[Dim, Dim]]


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


def _even(pairs: Pairs) -> bool:
    return all(isinstance(a, int) and isinstance(b, int) and a == b and a >= 0 for a, b in pairs)


def _window(call: NodeCall[Any], rank: int) -> tuple[list[int], list[int]]:
    return call.attribute("strides", [1] * rank), call.attribute("dilations", [1] * rank)


@rule("Conv")
def _conv(call: NodeCall[Any]) -> Value:
    ops, x, kernel = call.ops, call.x(0), call.x(1)
    rank = len(x.shape) - 2
    sizes = list(kernel.shape[2:])
    stride, dilation = _window(call, rank)
    pairs = _pads(call, x.shape[2:], sizes, stride, dilation)
    padding: Any = tuple(a for a, _ in pairs)
    if not _even(pairs):
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
    if _even(pairs) and all(e < max(s, d) for e, s, d in zip(extra, stride, dilation)):
        padding: Any = tuple(a for a, _ in pairs)
        return call.give(ops.conv_transpose(kernel, bias, x, padding=padding, output_padding=tuple(extra), **static))
    y = ops.conv_transpose(kernel, None, x, **static)
    y = pad(ops, y, padding=[(0, 0), (0, 0), *[(-a, e - b) for (a, b), e in zip(pairs, extra)]])
    if bias is not None:
        wide = ops.reshape(bias, shape=(1, bias.shape[0], *[1] * rank))
        y = ops.add(y, ops.broadcast_to(wide, shape=y.shape))
    return call.give(y)


def _pooled(call: NodeCall[Any]) -> tuple[Any, list[int], list[int], list[int], Pairs, Pairs]:
    """Return x, kernel, stride, dilation, the padding, and the extra padding of `ceil_mode`."""
    x = call.x()
    kernel = call.attribute("kernel_shape")
    rank = len(kernel)
    stride, dilation = _window(call, rank)
    pairs = _pads(call, x.shape[2:], kernel, stride, dilation)
    behind: Pairs = [(0, 0)] * rank
    if call.attribute("ceil_mode", 0):
        behind = []
        for size, k, s, d, (a, b) in zip(x.shape[2:], kernel, stride, dilation, pairs):
            room = size + a + b - d * (k - 1) - 1
            count = floor_div(room + (s - 1), s) + 1
            if isinstance(count, int) and isinstance(size, int) and (count - 1) * s >= size + a:
                count -= 1  # a window that would start in the padding at the end
            elif not isinstance(count, int) and s > 1:
                raise UnsupportedError("with ceil_mode and a stride above 1 every size must be known")
            behind.append((0, (count - 1) * s - room))
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
    padding: Any = tuple(a for a, _ in whole)
    if not _even(whole) or any(2 * a > k for a, k in zip(padding, kernel)) or any(d > 1 for d in dilation):
        x, padding = pad(ops, x, padding=[(0, 0), (0, 0), *whole], value=-math.inf), 0
    if any(d > 1 for d in dilation):
        return call.give(windows(ops, x, (kernel, stride, dilation), ops.maximum))
    return call.give(ops.max_pool(x, kernel=tuple(kernel), stride=tuple(stride), padding=padding))


def _in_whole(ops: Any, shape: Shape, places: Any, *, by_columns: bool) -> Any:
    """Convert indices in a plane to indices in the whole tensor; in column-major order the plane is transposed."""

    def full(value: Dim) -> Any:
        return ops.full(shape=places.shape, value=value, dtype=INT64)

    if by_columns:
        if len(shape) != 4:
            raise UnsupportedError("storage_order=1 is known of planes, which x of rank 4 holds")
        rows, columns = shape[2:]
        across = full(columns)
        places = ops.add(ops.mul(ops.mod(places, across), full(rows)), ops.floor_divide(places, across))
    planes = ops.reshape(ops.iota(shape=(shape[0] * shape[1],)), shape=(*shape[:2], *[1] * (len(shape) - 2)))
    return ops.add(ops.mul(ops.broadcast_to(planes, shape=places.shape), full(prod(shape[2:]))), places)


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
    ops = call.ops
    x, kernel, stride, dilation, pairs, behind = _pooled(call)
    counted = bool(call.attribute("count_include_pad", 0))
    plain = all(d == 1 for d in dilation) and _even(behind)
    if plain and _even(pairs) and all(2 * a <= k for (a, _), k in zip(pairs, kernel)):
        padding: Any = tuple(a for a, _ in pairs)
        y = ops.avg_pool(x, kernel=tuple(kernel), stride=tuple(stride), padding=padding, count_include_pad=counted)
        return call.give(y)
    # window sums of x and of the cells that count, with the mean as their quotient
    lead: Pairs = [(0, 0), (0, 0)]
    ones = ops.full(shape=(1, 1, *x.shape[2:]), value=1.0)
    ones = pad(ops, ones, padding=[*lead, *pairs], value=1.0 if counted else 0.0)
    ones = pad(ops, ones, padding=[*lead, *behind])
    cells = pad(ops, pad(ops, x, padding=[*lead, *pairs]), padding=[*lead, *behind])
    total, count = (windows(ops, each, (kernel, stride, dilation), ops.add) for each in (cells, ones))
    return call.give(ops.div(total, ops.broadcast_to(count, shape=total.shape)))


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
