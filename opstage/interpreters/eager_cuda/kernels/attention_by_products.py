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
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import (
    LOWEST,
    MOST_WARPS,
    ONE,
    ZERO,
    cuda,
    device_function,
    exp,
    joined_max,
    joined_sum,
    online,
    quotient,
    remainder,
    steps,
    times,
)
from ....ops.types import FLOAT32, TensorType
from .elementwise import Types, scalar
from .layout import fill_kernel, row_major
from .matmul import padded

RUN = 32 << 20
"""Bytes of weights at once, if a head has no more: they stay in the second-level cache of an H100, 50 MB, between the
product that writes them and those that read them, and products of that size occupy all multiprocessors."""


class _Heads(NamedTuple):
    """A run of heads: the first one, their number, and the layout of their weights.

    Rows of weights are padded, see `padded.py`.
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
        peak = joined_max(own, shared, cuda.threadIdx.x, lanes)
        lowest = peak == LOWEST
        total = joined_sum(total if lowest else total * exp(own - peak), shared, cuda.threadIdx.x, lanes)
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
        mean = joined_sum(mean, shared, cuda.threadIdx.x, lanes)
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
    masking = _masking(device, q, k, mask, causal)
    for heads in _runs(q, k):
        p = _scores(device, heads, q, k)
        rows, extent = heads.number * q.shape[-2], k.shape[-2]
        device.each_row(weights_kernel, rows, extent, p, peak, total, *masking.of(heads))
        _weighted(device, heads, out, p, v)
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
