"""Attention by matrix products, with the weights in memory during a call.

A product, one in-place pass over each row, and a product with the values; the cotangents do the same again from the two
residuals per query.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda, device_function, exp
from ...gpu.rows import LOWEST, MOST_WARPS, ONE, ZERO, joined_max, joined_sum, online
from .launches import Types, scalar
from .linalg import multiply
from .strided import row_major


@device_function
def place_in_mask(row: Any, axes: Any, rank: Any) -> Any:
    """Return the offset in the mask of a row of weights.

    axes   (size, stride of the mask) along each leading axis and that of queries, last axis first; then the mask's
    stride along the keys
    """
    at, rest = 0, row
    for k in range(rank):
        at += remainder(rest, axes[2 * k]) * axes[2 * k + 1]
        rest = quotient(rest, axes[2 * k])
    return at


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
    factor: Any,
) -> None:
    """Replace p, scores of queries and keys, by softmax(factor·p) over each query's allowed keys, and 0 elsewhere.

    For each query, its maximal score goes to `peaks` and Σ exp(score - peak) to `totals`. The mask's `axes` are those
    of `place_in_mask`.
    """
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        first = row * keys
        allowed = min(remainder(row, queries) + 1, keys) if causal != 0 else keys
        at, step = place_in_mask(row, axes, rank) if masked != 0 else 0, axes[2 * rank]
        own, total = LOWEST, ZERO
        for j in steps(lane, allowed, lanes):
            if masked == 0 or mask[at + j * step] != 0:
                own, total = online(own, total, p[first + j] * factor)
        peak = joined_max(own, shared, cuda.threadIdx.x, lanes)
        lowest = peak == LOWEST
        total = joined_sum(total if lowest else total * exp(own - peak), shared, cuda.threadIdx.x, lanes)
        nothing = masked != 0 and lowest and total == total  # a score that is nan counts
        if nothing:
            peak, total = ZERO, ONE
        total *= exp(peak - peak)  # by 1, or by nan if every score is -inf
        if lane == 0:
            peaks[row] = peak
            totals[row] = total
        share = ONE / total
        for j in steps(lane, keys, lanes):
            if nothing:
                p[first + j] = ZERO
            elif j < allowed and (masked == 0 or mask[at + j * step] != 0):
                p[first + j] = exp(p[first + j] * factor - peak) * share
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
    factor: Any,
) -> None:
    """Recompute the weights in p, and convert their cotangents in s to those of the products: factor·p·(s - Σ p·s)."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        first = row * keys
        allowed = min(remainder(row, queries) + 1, keys) if causal != 0 else keys
        at, step = place_in_mask(row, axes, rank) if masked != 0 else 0, axes[2 * rank]
        peak, share = peaks[row], ONE / totals[row]
        mean = ZERO
        for j in steps(lane, keys, lanes):
            weight = ZERO * share  # nan if the row is
            if j < allowed and (masked == 0 or mask[at + j * step] != 0):
                weight = exp(p[first + j] * factor - peak) * share
            p[first + j] = weight
            mean += weight * s[first + j]
        mean = joined_sum(mean, shared, cuda.threadIdx.x, lanes)
        for j in steps(lane, keys, lanes):
            s[first + j] = p[first + j] * (s[first + j] - mean) * factor


def mask_axes(device: Device, mask: DeviceBuffer, shape: tuple[int, ...]) -> tuple[DeviceBuffer, int]:
    """Return the `axes` of a mask that broadcasts to the weights' `shape`, and their number."""
    strides = [0] * (len(shape) - len(mask.shape))
    strides += [0 if n == 1 else stride for n, stride in zip(mask.shape, row_major(mask.shape))]
    pairs = [number for axis in reversed(range(len(shape) - 1)) for number in (shape[axis], strides[axis])]
    return device.numbers(*pairs, strides[-1]), len(shape) - 1


def _seen(device: Device, q: DeviceBuffer, mask: tuple[DeviceBuffer, ...], shape: Any, causal: bool) -> tuple[Any, ...]:
    """Return kernel arguments for masking: the keys that a query may attend to, and the factor of its scores."""
    given, (axes, rank) = (mask[0], mask_axes(device, mask[0], shape)) if mask else (q, (device.numbers(0), 0))
    numbers = map(np.int32, (rank, len(mask), causal, *shape[-2:]))
    return given, axes, *numbers, scalar(1 / math.sqrt(q.shape[-1]), q.dtype)


def attention(
    device: Device,
    types: Types,
    q: DeviceBuffer,
    k: DeviceBuffer,
    v: DeviceBuffer,
    mask: tuple[DeviceBuffer, ...],
    causal: bool,
) -> tuple[DeviceBuffer, ...]:
    out, peak, total = map(device.empty, types)
    p = device.empty(TensorType((*q.shape[:-1], k.shape[-2]), q.dtype))
    multiply(device, p, q, k, y_transposed=True)
    seen = _seen(device, q, mask, p.shape, causal)
    device.each_row(weights_kernel, math.prod(p.shape[:-1]), p.shape[-1], p, peak, total, *seen)
    multiply(device, out, p, v)
    return out, peak, total


def attention_grad(
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
    p, s = (device.empty(TensorType((*q.shape[:-1], k.shape[-2]), q.dtype)) for _ in range(2))
    multiply(device, p, q, k, y_transposed=True)
    multiply(device, s, g, v, y_transposed=True)
    seen = _seen(device, q, mask, p.shape, causal)
    device.each_row(cotangents_kernel, math.prod(p.shape[:-1]), p.shape[-1], s, p, *kept, *seen)
    multiply(device, dq, s, k)
    multiply(device, dk, s, q, x_transposed=True)
    multiply(device, dv, p, g, x_transposed=True)
    return dq, dk, dv
