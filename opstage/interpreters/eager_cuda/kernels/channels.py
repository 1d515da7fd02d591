"""Sums over what each channel has, from which statistics and the cotangents of gamma and beta are made.

x is seen as (outer, channels, inner). Where `inner` is more than 1, a row of the kernels here is a plane, the run of
elements that one channel has at one place of `outer`; else it is a part of a channel's column. Sums of rows go to a
matrix (parts, channels), whose columns are summed in turn, in a fixed order.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps, unrolled_steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda
from ...gpu.rows import MOST_WARPS, ZERO, joined_sum
from .reduction import PART_OF_COLUMN, reduce_part, sum_kernel


def squares_kernel(
    rows: Any, lanes: Any, out: Any, x: Any, mean: Any, channels: Any, outer: Any, inner: Any, part: Any
) -> None:
    """out[p, c] = Σ (x - mean[c])²."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        channel = remainder(row, channels)
        before = quotient(row, channels) * part
        first = before * channels * inner + channel * inner
        count = inner if inner > 1 else min(part, outer - before)
        step = 1 if inner > 1 else channels
        total = ZERO
        for j in unrolled_steps(lane, count, lanes):
            d = x[first + j * step] - mean[channel]
            total += d * d
        total = joined_sum(total, shared, cuda.threadIdx.x, lanes)
        if lane == 0:
            out[row] = total


def products_kernel(
    rows: Any,
    lanes: Any,
    total: Any,
    product: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    g: Any,
    centred: Any,
    channels: Any,
    outer: Any,
    inner: Any,
    part: Any,
    groups: Any,
    each: Any,
) -> None:
    """total[p, c] = Σ g and product[p, c] = Σ g·(x - mean)·rstd; the statistics are those of entry
    o·groups + c // each, for the place o along `outer`."""
    shared = cuda.shared.array(MOST_WARPS, np.float32)
    lane = remainder(cuda.threadIdx.x, lanes)
    for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
        channel = remainder(row, channels)
        before = quotient(row, channels) * part
        first = before * channels * inner + channel * inner
        count = inner if inner > 1 else min(part, outer - before)
        step = 1 if inner > 1 else channels
        alone, weighted = ZERO, ZERO
        for j in unrolled_steps(lane, count, lanes):
            entry = (before if inner > 1 else before + j) * groups + quotient(channel, each)
            centre = mean[entry] if centred != 0 else ZERO
            cotangent = g[first + j * step]
            alone += cotangent
            weighted += cotangent * ((x[first + j * step] - centre) * rstd[entry])
        alone = joined_sum(alone, shared, cuda.threadIdx.x, lanes)
        weighted = joined_sum(weighted, shared, cuda.threadIdx.x, lanes)
        if lane == 0:
            total[row] = alone
            product[row] = weighted


@final
class Parts:
    """How x, as (outer, channels, inner), is cut into rows of partial sums: (parts, channels) of them."""

    __slots__ = ("outer", "channels", "inner", "part", "parts", "rows")

    def __init__(self, outer: int, channels: int, inner: int):
        self.outer, self.channels, self.inner = outer, channels, inner
        self.part = 1 if inner > 1 else PART_OF_COLUMN
        self.parts = -(-outer // self.part)
        self.rows = self.parts * channels

    def empty(self, device: Device, like: DeviceBuffer) -> DeviceBuffer:
        return device.empty(TensorType((self.parts, self.channels), like.dtype))

    @property
    def numbers(self) -> tuple[Any, ...]:
        return tuple(map(np.int32, (self.channels, self.outer, self.inner, self.part)))

    def joined(self, device: Device, partial: DeviceBuffer) -> DeviceBuffer:
        """The sums over the parts, one for each channel."""
        return _column_sums(device, partial, self.parts, self.channels)


def _column_sums(device: Device, x: DeviceBuffer, rows: int, columns: int, factor: float = 1) -> DeviceBuffer:
    """factor·Σ x over the rows of x, seen as (rows, columns)."""
    return reduce_part(device, sum_kernel, x.dtype, x, (1, rows, columns), factor).reshaped((columns,))


def channel_mean(device: Device, x: DeviceBuffer, parts: Parts) -> DeviceBuffer:
    """Over all values of a channel."""
    planes = x
    if parts.inner > 1:
        planes = reduce_part(device, sum_kernel, x.dtype, x, (parts.outer * parts.channels, parts.inner, 1), 1)
    return _column_sums(device, planes, parts.outer, parts.channels, 1 / (parts.outer * parts.inner))


def channel_squares(device: Device, x: DeviceBuffer, mean: DeviceBuffer, parts: Parts) -> DeviceBuffer:
    """Σ (x - mean)² over all values of a channel."""
    partial = parts.empty(device, x)
    device.each_row(squares_kernel, parts.rows, parts.inner, partial, x, mean, *parts.numbers)
    return parts.joined(device, partial)


def products(
    device: Device,
    x: DeviceBuffer,
    mean: DeviceBuffer,
    rstd: DeviceBuffer,
    g: DeviceBuffer,
    parts: Parts,
    groups: int,
    each: int,
    centred: bool = True,
) -> tuple[DeviceBuffer, DeviceBuffer]:
    """Σ g·(x - mean)·rstd and Σ g, the cotangents of gamma and beta."""
    total, product = parts.empty(device, x), parts.empty(device, x)
    numbers = *parts.numbers, np.int32(groups), np.int32(each)
    operands = total, product, x, mean, rstd, g, np.int32(centred), *numbers
    device.each_row(products_kernel, parts.rows, parts.inner, *operands)
    return parts.joined(device, product), parts.joined(device, total)
