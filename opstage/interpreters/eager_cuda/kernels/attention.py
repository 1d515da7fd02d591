"""Kernels: scaled dot-product attention and its fused cotangents. Multi-head attention runs by decomposition.

Tiles of weights, which only exist in a block's memory, are one launch, and take no memory: for few weights, and for
heads of so many queries and keys that the weights of one do not fit. Matrix products, with the weights of some heads in
memory at a time, are for many weights, and for heads that are too wide for registers. The two residuals per query are
the same, so either can follow the other.

The choice depends only on sizes. On an H100 tiles do 9·10^12 operations per second, float32 on the CUDA cores, and skip
what a causal mask leaves empty; products do 5·10^13, or 3.5·10^14 where Options.matmul_precision allows tensor cores.
With 96 causal heads of 1,024 queries and 64 components the forward pass takes tiles 1.5 ms, and the backward pass 6.1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import WARP, Device
from ....ops.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.primitive import Primitive
from ....ops.types import INT32, TensorType
from . import attention_by_products as products
from . import attention_tiles as tiles
from .elementwise import Entry, Types, scalar

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
    """Whether products are faster than tiles, and the weights of a head have room."""
    heads, queries, keys = math.prod(q.shape[:-2]), q.shape[-2], k.shape[-2]
    return heads * queries * keys >= MANY and products.bytes_of_head(queries, keys) <= MOST_OF_HEAD


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
        return products.attention(device, types, q, k, v, mask, causal)
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
        return products.attention_grad(device, types, q, k, v, mask, (peak, total), g, causal)
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
    given, (axes, rank) = (mask[0], products.mask_axes(device, mask[0], every)) if mask else (q, (device.numbers(0), 0))
    numbers = (rank, causal, *every[-2:], k.shape[-1], v.shape[-1], across)
    factor = scalar(1 / math.sqrt(q.shape[-1]), q.dtype)
    blocks = min(count, device.grid.most_blocks)
    device.launch(kernel, blocks, side * side, np.int32(count), *buffers, given, axes, *map(np.int32, numbers), factor)


KERNELS: dict[Primitive, Entry] = {
    SCALED_DOT_PRODUCT_ATTENTION: attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: attention_grad,
}
