"""Kernels: scaled dot-product attention and its fused cotangents.

The weights are an output of the op, because the cotangents read them; so they are made where they stay: a product, one
pass over each row in place, and a product with the values. Multi-head attention runs by decomposition.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.attention import SCALED_DOT_PRODUCT_ATTENTION, SCALED_DOT_PRODUCT_ATTENTION_GRAD
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from ..buffer import DeviceBuffer
from ..device.interface import Device
from ..language import cuda, exp
from .launches import Entry, Types, scalar
from .linalg import multiply
from .rows import LOWEST, MOST_WARPS, ONE, ZERO, joined_max, joined_sum, online
from .strided import row_major


def weights_kernel(
    rows: Any,
    lanes: Any,
    p: Any,
    mask: Any,
    steps: Any,
    rank: Any,
    masked: Any,
    causal: Any,
    queries: Any,
    keys: Any,
    factor: Any,
) -> None:
    """p, products of queries and keys, becomes softmax(factor·p) over the keys allowed to each query, 0 at the others.

    steps   (size, step of the mask) along each of the leading axes and the queries', the last one first; then the
            mask's step along the keys
    """
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = cuda.threadIdx.x % lanes
    for row in range(cuda.grid(1) // lanes, rows, cuda.gridsize(1) // lanes):
        first = row * keys
        allowed = min(row % queries + 1, keys) if causal != 0 else keys
        at, step = 0, 0
        if masked != 0:
            rest = row
            for k in range(rank):
                at += rest % steps[2 * k] * steps[2 * k + 1]
                rest = rest // steps[2 * k]
            step = steps[2 * rank]
        own, total = LOWEST, ZERO
        for j in range(lane, allowed, lanes):
            if masked == 0 or mask[at + j * step] != 0:
                own, total = online(own, total, p[first + j] * factor)
        peak = joined_max(own, shared, cuda.threadIdx.x, lanes)
        nothing = masked != 0 and peak == LOWEST
        total = joined_sum(total * exp(own - peak), shared, cuda.threadIdx.x, lanes)
        share = ONE / total
        for j in range(lane, keys, lanes):
            if nothing:
                p[first + j] = ZERO
            elif j < allowed and (masked == 0 or mask[at + j * step] != 0):
                p[first + j] = exp(p[first + j] * factor - peak) * share
            else:
                p[first + j] = ZERO * share  # nan if the row is


def scores_cotangent_kernel(rows: Any, lanes: Any, s: Any, p: Any, keys: Any, factor: Any) -> None:
    """s, the cotangent of the weights p, becomes that of the products of queries and keys: factor·p·(s - Σ p·s)."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = cuda.threadIdx.x % lanes
    for row in range(cuda.grid(1) // lanes, rows, cuda.gridsize(1) // lanes):
        first = row * keys
        mean = ZERO
        for j in range(lane, keys, lanes):
            mean += p[first + j] * s[first + j]
        mean = joined_sum(mean, shared, cuda.threadIdx.x, lanes)
        for j in range(lane, keys, lanes):
            s[first + j] = p[first + j] * (s[first + j] - mean) * factor


def _mask_steps(device: Device, mask: DeviceBuffer, shape: tuple[int, ...]) -> tuple[DeviceBuffer, int]:
    """How the rows of weights of `shape` go through a mask that broadcasts to it, and of how many axes they are."""
    steps = [0] * (len(shape) - len(mask.shape))
    steps += [0 if n == 1 else step for n, step in zip(mask.shape, row_major(mask.shape))]
    pairs = [number for axis in reversed(range(len(shape) - 1)) for number in (shape[axis], steps[axis])]
    return device.numbers(*pairs, steps[-1]), len(shape) - 1


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
    out, p = device.empty(types[0]), device.empty(types[1])
    matrices, (queries, keys) = math.prod(p.shape[:-2]), p.shape[-2:]
    multiply(device, p, q, k, y_turned=True)
    given, (steps, rank) = (mask[0], _mask_steps(device, mask[0], p.shape)) if has_mask else (q, (device.numbers(), 0))
    numbers = map(np.int32, (rank, has_mask, causal, queries, keys))
    factor = scalar(1 / math.sqrt(q.shape[-1]), q.dtype)
    device.each_row(weights_kernel, matrices * queries, keys, p, given, steps, *numbers, factor)
    multiply(device, out, p, v)
    return out, p


def attention_grad(
    device: Device, types: Types, q: DeviceBuffer, k: DeviceBuffer, v: DeviceBuffer, p: DeviceBuffer, g: DeviceBuffer
) -> tuple[DeviceBuffer, ...]:
    dq, dk, dv = map(device.empty, types)
    s = device.empty(TensorType(p.shape, p.dtype))
    matrices, (queries, keys) = math.prod(p.shape[:-2]), p.shape[-2:]
    multiply(device, s, g, v, y_turned=True)
    factor = scalar(1 / math.sqrt(q.shape[-1]), q.dtype)
    device.each_row(scores_cotangent_kernel, matrices * queries, keys, s, p, np.int32(keys), factor)
    multiply(device, dq, s, k)
    multiply(device, dk, s, q, x_turned=True)
    multiply(device, dv, p, g, x_turned=True)
    return dq, dk, dv


KERNELS: dict[Primitive, Entry] = {
    SCALED_DOT_PRODUCT_ATTENTION: attention,
    SCALED_DOT_PRODUCT_ATTENTION_GRAD: attention_grad,
}
