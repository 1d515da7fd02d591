"""Kernels: reductions along axes.

A tensor is viewed as (outer, extent, inner), and the middle axis is reduced, so no axis is moved. Long extents are cut
into parts of equal length, whose results are reduced again, so that many threads have work and the order of sums
depends only on shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device, pointer_type
from ....compiler.gpu.language import (
    MOST_WARPS,
    argmax_lanes,
    cuda,
    max_lanes,
    quotient,
    remainder,
    steps,
    sum_lanes,
    unrolled_steps,
)
from ....ops.primitive import Primitive
from ....ops.reduction import ARGMAX, REDUCE_MAX, REDUCE_MEAN, REDUCE_SUM, SUM
from ....ops.types import DType, TensorType
from .elementwise import Entry, Kernel, Types, scalar

PART_OF_ROW, PART_OF_COLUMN = 8192, 256
"""The maximum of elements per row of threads, and per thread that has a column of its own."""

Sizes = tuple[int, int, int]


def along(x: DeviceBuffer, axis: int) -> Sizes:
    """Return (outer, extent, inner) for an axis."""
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


# The kernel of a row has arguments (rows, lanes, out, x, extent, inner, …); element j of row r is x[(r // inner·extent
# + j)·inner + r % inner].


@cache
def sum_kernel(dtype: DType) -> Kernel:
    """Return the kernel of sums: of floats in float32, of integers in int64."""
    kind = dtype.type

    def reduce_sum(
        rows: Any, lanes: Any, out: Any, x: Any, extent: Any, inner: Any, part: Any, parts: Any, factor: Any
    ) -> None:
        """Compute out[o, p, i] = factor·Σ x[o, j, i] over part p of the extent."""
        shared = cuda.shared.array(MOST_WARPS, kind)
        lane = remainder(cuda.threadIdx.x, lanes)
        for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
            before = remainder(quotient(row, inner), parts) * part
            first = (quotient(quotient(row, inner), parts) * extent + before) * inner + remainder(row, inner)
            total = kind(0)
            for j in unrolled_steps(lane, min(part, extent - before), lanes):
                total += x[first + j * inner]
            total = sum_lanes(total, shared, cuda.threadIdx.x, lanes)
            if lane == 0:
                out[row] = total * factor

    return reduce_sum


@cache
def max_kernel(dtype: DType) -> Kernel:
    kind = dtype.type

    def reduce_max(
        rows: Any, lanes: Any, out: Any, x: Any, extent: Any, inner: Any, part: Any, parts: Any, factor: Any
    ) -> None:
        """Compute out[o, p, i] = the greatest x[o, j, i] of part p of the extent, nan if there is one."""
        shared = cuda.shared.array(MOST_WARPS, kind)
        lane = remainder(cuda.threadIdx.x, lanes)
        for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
            before = remainder(quotient(row, inner), parts) * part
            first = (quotient(quotient(row, inner), parts) * extent + before) * inner + remainder(row, inner)
            best = x[first]
            for j in unrolled_steps(lane, min(part, extent - before), lanes):
                value = x[first + j * inner]
                best = value if value > best or value != value else best
            best = max_lanes(best, shared, cuda.threadIdx.x, lanes)
            if lane == 0:
                out[row] = best

    return reduce_max


@cache
def argmax_kernel(dtype: DType) -> Kernel:
    kind = dtype.type

    def argmax(rows: Any, lanes: Any, out: Any, x: Any, extent: Any, inner: Any) -> None:
        """Compute out[row] = the index of the first maximum of a row; nan is greater than any number."""
        shared = cuda.shared.array(MOST_WARPS, kind)
        places = cuda.shared.array(MOST_WARPS, np.int32)
        lane = remainder(cuda.threadIdx.x, lanes)
        for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
            first = quotient(row, inner) * extent * inner + remainder(row, inner)
            best, at = x[first], np.int32(0)
            for j in steps(lane, extent, lanes):
                value = x[first + j * inner]
                if best == best and (value > best or value != value):
                    best, at = value, np.int32(j)
            at = argmax_lanes(best, at, shared, places, cuda.threadIdx.x, lanes)
            if lane == 0:
                out[row] = at

    return argmax


def launch_rows(device: Device, kernel: Kernel, sizes: Sizes, *arguments: Any) -> None:
    """Launch a row kernel: many threads for a contiguous row, one for any other."""
    outer, extent, inner = sizes
    device.each_row(kernel, outer * inner, extent if inner == 1 else 1, *arguments)


def reduce_part(
    device: Device, kernel_of: Callable[[DType], Kernel], dtype: DType, x: DeviceBuffer, sizes: Sizes, factor: Any
) -> DeviceBuffer:
    """Reduce x, viewed as (outer, extent, inner), to (outer, inner): in several steps if the extent is long."""
    outer, extent, inner = sizes
    kernel = kernel_of(pointer_type(dtype))
    while True:
        part = PART_OF_ROW if inner == 1 else PART_OF_COLUMN
        parts = max(1, -(-extent // part))
        out = device.empty(TensorType((outer, parts, inner), dtype))
        numbers = np.int32(extent), np.int32(inner), np.int32(part), np.int32(parts)
        length = min(part, extent) if inner == 1 else 1
        last = scalar(factor if parts == 1 else 1, dtype)
        device.each_row(kernel, outer * parts * inner, length, out, x, *numbers, last)
        if parts == 1:
            return out
        x, extent = out, parts


def total(device: Device, x: DeviceBuffer) -> DeviceBuffer:
    """Return the sums of a matrix's columns."""
    rows, columns = x.shape
    return reduce_part(device, sum_kernel, x.dtype, x, (1, rows, columns), 1)


def _reduced(
    device: Device,
    kernel_of: Callable[[DType], Kernel],
    type: TensorType,
    x: DeviceBuffer,
    axes: tuple[int, ...],
    factor: Any = 1,
) -> tuple[DeviceBuffer, ...]:
    """Reduce x along axes, adjacent ones at once and the last ones first."""
    shape: Any = type.shape
    sizes = list(x.shape)
    runs: list[list[int]] = []
    for axis in axes:
        if runs and runs[-1][-1] == axis - 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    for run in reversed(runs or [[]]):
        first = run[0] if run else len(sizes)
        extent = math.prod(sizes[first : first + len(run)])
        view = math.prod(sizes[:first]), extent, math.prod(sizes[first + len(run) :])
        x = reduce_part(device, kernel_of, type.dtype, x, view, factor if run == (runs or [[]])[0] else 1)
        del sizes[first : first + len(run)]
    return (x.reshaped(shape),)


def reduce_sum(
    device: Device, types: Types, x: DeviceBuffer, axes: tuple[int, ...], keepdims: bool
) -> tuple[DeviceBuffer, ...]:
    return _reduced(device, sum_kernel, types[0], x, axes)


def reduce_mean(
    device: Device, types: Types, x: DeviceBuffer, axes: tuple[int, ...], keepdims: bool
) -> tuple[DeviceBuffer, ...]:
    return _reduced(device, sum_kernel, types[0], x, axes, 1 / math.prod(x.shape[axis] for axis in axes))


def sum_all(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    return reduce_sum(device, types, x, tuple(range(len(x.shape))), False)


def reduce_max(
    device: Device, types: Types, x: DeviceBuffer, axes: tuple[int, ...], keepdims: bool
) -> tuple[DeviceBuffer, ...]:
    return _reduced(device, max_kernel, types[0], x, axes)


def argmax(device: Device, types: Types, x: DeviceBuffer, axis: int, keepdims: bool) -> tuple[DeviceBuffer, ...]:
    out, sizes = device.empty(types[0]), along(x, axis)
    launch_rows(device, argmax_kernel(pointer_type(x.dtype)), sizes, out, x, np.int32(sizes[1]), np.int32(sizes[2]))
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    SUM: sum_all,
    REDUCE_SUM: reduce_sum,
    REDUCE_MEAN: reduce_mean,
    REDUCE_MAX: reduce_max,
    ARGMAX: argmax,
}
