"""Attention by matrix products, with the weights of some heads in memory at a time.

A product, one in-place pass over each row, and a product with the values; the cotangents do the same again from the two
residuals per query. Heads are processed in runs, each with the same memory for its weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer, MatrixLayout
from ....compiler.gpu.device import WARP, Device
from ....compiler.gpu.language import (
    LOWEST,
    MOST_WARPS,
    ONE,
    ZERO,
    cuda,
    exp,
    max_lanes,
    online,
    quotient,
    remainder,
    steps,
    sum_lanes,
    times,
)
from ....ops.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.primitive import Primitive
from ....ops.types import FLOAT32, INT32, TensorType
from . import attention_tiles as tiles
from .attention_tiles import place_in_mask
from .elementwise import Entry, Types, scalar
from .layout import fill_kernel, row_major
from .linalg import padded

# The choice -----------------------------------------------------------------------------------------------------------

WIDEST, WIDEST_GRAD = 128, 64
"""Head sizes up to which two blocks of 256 threads of the tile kernels fit on a multiprocessor."""

MANY = 1 << 21
"""Weights from which the work of tiles takes longer than two more launches, and passes over weights in memory."""

MOST_OF_HEAD = 128 << 20
"""Bytes of the weights of one head, beyond which they are not kept in memory if tiles can do without."""

NARROWEST = 16
SIDES = (16, 8, 4, 1)
"""Blocks of tiles have the square of one of these as threads: the first that is at most a block of the device."""


def _width(k: DeviceBuffer, v: DeviceBuffer) -> int:
    """Return the least power of two that is at least the sizes of keys and values."""
    return 1 << (max(NARROWEST, k.shape[-1], v.shape[-1]) - 1).bit_length()


def _many(q: DeviceBuffer, k: DeviceBuffer) -> bool:
    """Return whether products are faster than tiles, and the weights of a head have room."""
    heads, queries, keys = math.prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    return heads * queries * keys >= MANY and bytes_of_head(queries, keys) <= MOST_OF_HEAD


def attention(
    device: Device,
    types: Types,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    *mask: DeviceBuffer,
    has_mask: bool,
    causal: bool,
) -> tuple[DeviceBuffer, ...]:
    width = _width(k, v)
    if width > WIDEST or _many(q, k):
        return attention_in_runs(device, types, q, k, v, mask, causal)
    out, peak, total = map(device.empty, types)
    kernel = tiles.forward_kernel(width, _side(device), has_mask)
    flags = _flags(device, causal, q, k, v)
    _launch(device, kernel, q.shape, (out, peak, total, q, k, v, flags), mask, causal, q, k, v)
    return out, peak, total


def attention_grad(
    device: Device,
    types: Types,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    *rest: DeviceBuffer,
    has_mask: bool,
    causal: bool,
) -> tuple[DeviceBuffer, ...]:
    *given, peak, total, g = rest
    mask, width = tuple(given), _width(k, v)
    if width > WIDEST_GRAD or _many(q, k):
        return attention_grad_in_runs(device, types, q, k, v, mask, (peak, total), g, causal)
    dq, dk, dv = map(device.empty, types)
    means = device.empty(TensorType(peak.shape, peak.dtype))
    read = (q, k, v, g, peak, total)
    kernel = tiles.queries_kernel(width, _side(device), has_mask)
    flags = _flags(device, causal, q, k, v, k)
    _launch(device, kernel, q.shape, (dq, means, *read, flags), mask, causal, q, k, v)
    kernel = tiles.keys_kernel(width, _side(device), has_mask)
    of_queries = _flags(device, causal, q, k, q, means)
    _launch(device, kernel, k.shape, (dk, dv, means, *read, flags, of_queries), mask, causal, q, k, v)
    return dq, dk, dv


def _flags(device: Device, causal: bool, q: DeviceBuffer, k: DeviceBuffer, *of: DeviceBuffer) -> DeviceBuffer:
    """Return which chunks of the rows of one or two tensors have a nan or an infinity, if tiles would be skipped."""
    count = of[0].shape[-2]
    chunks = -(-count // tiles.CHUNK)
    rows = math.prod(q.shape[:-2]) * chunks
    if not causal or max(q.shape[-2], k.shape[-2]) <= 4 * _side(device) or not rows:
        return device.numbers(0)  # unused
    flags = device.empty(TensorType((rows,), INT32))
    sizes = [x.shape[-1] for x in of] + [0] * (2 - len(of))
    numbers = map(np.int32, (count, chunks, *sizes))
    device.each_row(tiles.flags_kernel, rows, WARP, flags, of[0], of[-1], *numbers)
    return flags


def _side(device: Device) -> int:
    return next(side for side in SIDES if side * side <= device.block)


def _launch(
    device: Device,
    kernel: Any,
    rows: tuple[int, ...],
    buffers: tuple[DeviceBuffer, ...],
    mask: tuple[DeviceBuffer, ...],
    causal: bool,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
) -> None:
    """Launch a tile kernel over the rows of a tensor of shape `rows` (..., n, size)."""
    side = _side(device)
    across = -(-rows[-2] // (4 * side))
    count = math.prod(rows[:-2]) * across
    if not count:
        return
    every = (*q.shape[:-1], k.shape[-2])
    given, (axes, rank) = (mask[0], mask_axes(device, mask[0], every)) if mask else (q, (device.numbers(0), 0))
    numbers = (rank, causal, *every[-2:], k.shape[-1], v.shape[-1], across)
    factor = scalar(1 / math.sqrt(q.shape[-1]), q.dtype)
    blocks = min(count, device.grid.most_blocks)
    device.launch(kernel, blocks, side * side, np.int32(count), *buffers, given, axes, *map(np.int32, numbers), factor)


# Attention by matrix products -----------------------------------------------------------------------------------------

RUN = 32 << 20
"""Bytes of weights at once, if a head has no more: they stay in the second-level cache of an H100, 50 MB, between the
product that writes them and those that read them, and products of that size occupy all multiprocessors."""


class _Heads(NamedTuple):
    """A run of heads: the first one, their number, and the layout of their weights.

    Rows of weights are padded, see `linalg.padded`.
    """

    first: int
    number: int
    weights: MatrixLayout

    def of(self, x: DeviceBuffer) -> MatrixLayout:
        """Return the layout of these heads in a tensor (…, rows, columns) of all."""
        rows, columns = x.shape[-2:]
        return MatrixLayout(rows, columns, columns, rows * columns, self.first * rows * columns)


def bytes_of_head(queries: int, keys: int) -> int:
    """Return the bytes of the weights of one head."""
    return queries * padded(keys) * FLOAT32.itemsize


def _runs(q: DeviceBuffer, k: DeviceBuffer) -> Iterator[_Heads]:
    """Yield the runs of all heads; none if there are no weights."""
    heads, queries, keys = math.prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    if not queries * keys:
        return
    across = padded(keys)
    weights = MatrixLayout(queries, keys, across, queries * across)
    most = max(1, RUN // bytes_of_head(queries, keys))
    for first in range(0, heads, most):
        yield _Heads(first, min(most, heads - first), weights)


def weights_kernel(
    rows: Any,
    lanes: Any,
    p: Any,
    peaks: Any,
    totals: Any,
    mask: Any,
    axes: Any,
    rank: Any,
    masked: Any,
    causal: Any,
    queries: Any,
    keys: Any,
    before: Any,
    across: Any,
    factor: Any,
) -> None:
    """Replace p, scores of queries and keys, by softmax(factor·p) over each query's allowed keys, and 0 elsewhere.

    For each query, its maximal score goes to `peaks` and Σ exp(score - peak) to `totals`. The mask's `axes` are those
    of `place_in_mask`. In p are the queries after the first `before`, and its rows start `across` elements apart.
    """
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        first, query = row * across, before + row
        allowed = min(remainder(query, queries) + 1, keys) if causal != 0 else keys
        at, step = place_in_mask(query, axes, rank) if masked != 0 else 0, axes[2 * rank]
        own, total = LOWEST, ZERO
        for j in steps(lane, allowed, lanes):
            if masked == 0 or mask[at + j * step] != 0:
                own, total = online(own, total, times(p[first + j], factor))
        peak = max_lanes(own, shared, cuda.threadIdx.x, lanes)
        lowest = peak == LOWEST
        total = sum_lanes(total if lowest else total * exp(own - peak), shared, cuda.threadIdx.x, lanes)
        nothing = masked != 0 and lowest and total == total  # a score that is nan counts
        if nothing:
            peak, total = ZERO, ONE
        total *= exp(peak - peak)  # by 1, or by nan if every score is -inf
        if lane == 0:
            peaks[query] = peak
            totals[query] = total
        share = ONE / total
        for j in steps(lane, keys, lanes):
            if nothing:
                p[first + j] = ZERO
            elif j < allowed and (masked == 0 or mask[at + j * step] != 0):
                p[first + j] = exp(times(p[first + j], factor) - peak) * share
            else:
                p[first + j] = ZERO * share  # nan if the row is


def cotangents_kernel(
    rows: Any,
    lanes: Any,
    s: Any,
    p: Any,
    peaks: Any,
    totals: Any,
    mask: Any,
    axes: Any,
    rank: Any,
    masked: Any,
    causal: Any,
    queries: Any,
    keys: Any,
    before: Any,
    across: Any,
    factor: Any,
) -> None:
    """Recompute the weights in p, and convert their cotangents in s to those of the products: factor·p·(s - Σ p·s).

    `before` and `across` are those of `weights_kernel`.
    """
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        first, query = row * across, before + row
        allowed = min(remainder(query, queries) + 1, keys) if causal != 0 else keys
        at, step = place_in_mask(query, axes, rank) if masked != 0 else 0, axes[2 * rank]
        peak, share = peaks[query], ONE / totals[query]
        mean = ZERO
        for j in steps(lane, keys, lanes):
            weight = ZERO * share  # nan if the row is
            if j < allowed and (masked == 0 or mask[at + j * step] != 0):
                weight = exp(times(p[first + j], factor) - peak) * share
            p[first + j] = weight
            mean += weight * s[first + j]
        mean = sum_lanes(mean, shared, cuda.threadIdx.x, lanes)
        for j in steps(lane, keys, lanes):
            s[first + j] = p[first + j] * (s[first + j] - mean) * factor


def mask_axes(device: Device, mask: DeviceBuffer, shape: tuple[int, ...]) -> tuple[DeviceBuffer, int]:
    """Return the `axes` of a mask that broadcasts to the weights' `shape`, and their number."""
    strides = [0] * (len(shape) - len(mask.shape))
    strides += [0 if n == 1 else stride for n, stride in zip(mask.shape, row_major(mask.shape))]
    pairs = [number for axis in reversed(range(len(shape) - 1)) for number in (shape[axis], strides[axis])]
    return device.numbers(*pairs, strides[-1]), len(shape) - 1


class _Masking(NamedTuple):
    """Kernel arguments for masking: the keys that a query may attend to, and the factor of its scores."""

    given: tuple[Any, ...]
    factor: Any

    def of(self, heads: _Heads) -> tuple[Any, ...]:
        """Return them for the weights of these heads."""
        weights = heads.weights
        return *self.given, np.int32(heads.first * weights.rows), np.int32(weights.row), self.factor


def _masking(
    device: Device, q: DeviceBuffer, k: DeviceBuffer, mask: tuple[DeviceBuffer, ...], causal: bool
) -> _Masking:
    shape = *q.shape[:-1], k.shape[-2]
    given, (axes, rank) = (mask[0], mask_axes(device, mask[0], shape)) if mask else (q, (device.numbers(0), 0))
    numbers = map(np.int32, (rank, len(mask), causal, *shape[-2:]))
    return _Masking((given, axes, *numbers), scalar(1 / math.sqrt(q.shape[-1]), q.dtype))


def _scores(device: Device, heads: _Heads, x: DeviceBuffer, y: DeviceBuffer) -> DeviceBuffer:
    """Return x·yᵀ for these heads, in the layout of their weights."""
    weights = heads.weights
    out = device.empty(TensorType((heads.number, weights.rows, weights.row), x.dtype))
    if not x.shape[-1]:
        device.each(fill_kernel, out.size, out, np.float32(0))
        return out
    device.product(*(out, x, y), y_transposed=True, x_layout=heads.of(x), y_layout=heads.of(y), out_layout=weights)
    return out


def _weighted(
    device: Device, heads: _Heads, out: DeviceBuffer, p: DeviceBuffer, x: DeviceBuffer, *, transposed: bool = False
) -> None:
    """Compute out = p·x or pᵀ·x for these heads, with p in the layout of weights."""
    if out.size:
        device.product(
            *(out, p, x),
            x_transposed=transposed,
            x_layout=heads.weights,
            y_layout=heads.of(x),
            out_layout=heads.of(out),
            matrices=heads.number,
        )


def attention_in_runs(
    device: Device,
    types: Types,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    mask: tuple[DeviceBuffer, ...],
    causal: bool,
) -> tuple[DeviceBuffer, ...]:
    out, peak, total = map(device.empty, types)
    masking = _masking(device, q, k, mask, causal)
    for heads in _runs(q, k):
        p = _scores(device, heads, q, k)
        rows, extent = heads.number * q.shape[-2], k.shape[-2]
        device.each_row(weights_kernel, rows, extent, p, peak, total, *masking.of(heads))
        _weighted(device, heads, out, p, v)
    return out, peak, total


def attention_grad_in_runs(
    device: Device,
    types: Types,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    mask: tuple[DeviceBuffer, ...],
    kept: tuple[DeviceBuffer, DeviceBuffer],
    g: DeviceBuffer,
    causal: bool,
) -> tuple[DeviceBuffer, ...]:
    dq, dk, dv = map(device.empty, types)
    if not q.shape[-2]:  # sums of no terms
        for each in (dk, dv):
            device.each(fill_kernel, each.size, each, np.float32(0))
    masking = _masking(device, q, k, mask, causal)
    for heads in _runs(q, k):
        p, s = _scores(device, heads, q, k), _scores(device, heads, g, v)
        rows, extent = heads.number * q.shape[-2], k.shape[-2]
        device.each_row(cotangents_kernel, rows, extent, s, p, *kept, *masking.of(heads))
        _weighted(device, heads, dq, s, k)
        _weighted(device, heads, dk, s, q, transposed=True)
        _weighted(device, heads, dv, p, g, transposed=True)
    return dq, dk, dv


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Entry] = {
    SCALED_DOT_PRODUCT_ATTENTION: attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: attention_grad,
}
