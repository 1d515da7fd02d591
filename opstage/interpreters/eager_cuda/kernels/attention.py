"""Kernels: scaled dot-product attention and its fused cotangents. Multi-head attention runs by decomposition.

Uses tiles of weights, which only exist in a block's memory, up to the head sizes that fit in registers; beyond that,
matrix products, with the weights of one call in memory while it runs. The two residuals per query are the same, so
either can follow the other.

The choice depends only on sizes, not on the precision of products: tiles are multiplied in float32 on the CUDA cores,
even if Options.matmul_precision allows tensor cores. A weight by products is written or read four times, 16 bytes; by
tiles it takes 2·(d + e) operations, half as many on average if causal. On an H100 that is about as much time at d = e =
64, and the memory is n times less.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.primitive import Primitive
from ....ops.types import INT32, TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.device.grid import WARP
from ...gpu.device.interface import Device
from . import attention_by_products as products
from . import attention_tiles as tiles
from .launches import Entry, Types, scalar

WIDEST, WIDEST_GRAD = 128, 64
"""Head sizes up to which two blocks of 256 threads of the tile kernels fit on a multiprocessor."""

NARROWEST = 16
SIDES = (16, 8, 4, 1)
"""Blocks of tiles have the square of one of these as threads: the first that is at most a block of the device."""


def _width(k: DeviceBuffer, v: DeviceBuffer) -> int:
    """Return the least power of two that is at least the sizes of keys and values."""
    return 1 << (max(NARROWEST, k.shape[-1], v.shape[-1]) - 1).bit_length()


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
    if width > WIDEST:
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
    if width > WIDEST_GRAD:
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
