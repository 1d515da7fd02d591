"""Kernels: maxima and means over windows. What goes back to a cell is added up by the thread of that cell, in order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.primitive import Primitive
from ..buffer import DeviceBuffer
from ..device.interface import Device
from ..language import cuda, device_function
from .launches import Entry, Types
from .windows import COUNT, KERNEL, PADDING, SIZE, STRIDE, windows

ZERO, ONE = np.float32(0), np.float32(1)
NOWHERE = np.int32(-1)


def max_pool_kernel(count: Any, out: Any, index: Any, x: Any, w: Any, places: Any, plane: Any) -> None:
    """The maximum of each window and its place in the plane of its channel; the first one, nan before all numbers."""
    s0, s1, s2 = w[SIZE], w[SIZE + 1], w[SIZE + 2]
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        place, channel = cell % places, cell // places
        i2 = place % w[COUNT + 2] * w[STRIDE + 2] - w[PADDING + 2]
        rest = place // w[COUNT + 2]
        i1 = rest % w[COUNT + 1] * w[STRIDE + 1] - w[PADDING + 1]
        i0 = rest // w[COUNT + 1] * w[STRIDE] - w[PADDING]
        best, at = ZERO, NOWHERE
        for a0 in range(max(i0, 0), min(i0 + w[KERNEL], s0)):
            for a1 in range(max(i1, 0), min(i1 + w[KERNEL + 1], s1)):
                for a2 in range(max(i2, 0), min(i2 + w[KERNEL + 2], s2)):
                    where = (a0 * s1 + a1) * s2 + a2
                    value = x[channel * plane + where]
                    if at == NOWHERE or value > best or (value != value and best == best):
                        best, at = value, np.int32(where)
        out[cell] = best
        index[cell] = at


def scatter_kernel(count: Any, out: Any, g: Any, index: Any, w: Any, places: Any, plane: Any) -> None:
    """out[cell] = Σ g over the windows whose index is that cell."""
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        where, channel = cell % plane, cell // plane
        a2 = where % w[SIZE + 2] + w[PADDING + 2]
        rest = where // w[SIZE + 2]
        a1 = rest % w[SIZE + 1] + w[PADDING + 1]
        a0 = rest // w[SIZE + 1] + w[PADDING]
        total = ZERO
        for i0 in range(_first(a0, w[KERNEL], w[STRIDE]), min(a0 // w[STRIDE] + 1, w[COUNT])):
            for i1 in range(_first(a1, w[KERNEL + 1], w[STRIDE + 1]), min(a1 // w[STRIDE + 1] + 1, w[COUNT + 1])):
                for i2 in range(_first(a2, w[KERNEL + 2], w[STRIDE + 2]), min(a2 // w[STRIDE + 2] + 1, w[COUNT + 2])):
                    window = channel * places + (i0 * w[COUNT + 1] + i1) * w[COUNT + 2] + i2
                    if index[window] == where:
                        total += g[window]
        out[cell] = total


def gather_kernel(count: Any, out: Any, x: Any, index: Any, places: Any, plane: Any) -> None:
    """out[window] = x at the window's index."""
    for window in range(cuda.grid(1), count, cuda.gridsize(1)):
        out[window] = x[window // places * plane + index[window]]


def avg_pool_kernel(count: Any, out: Any, x: Any, w: Any, places: Any, plane: Any, padded: Any) -> None:
    """The mean of each window; padded cells are 0, and counted if `padded`."""
    s0, s1, s2 = w[SIZE], w[SIZE + 1], w[SIZE + 2]
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        place, channel = cell % places, cell // places
        i2 = place % w[COUNT + 2] * w[STRIDE + 2] - w[PADDING + 2]
        rest = place // w[COUNT + 2]
        i1 = rest % w[COUNT + 1] * w[STRIDE + 1] - w[PADDING + 1]
        i0 = rest // w[COUNT + 1] * w[STRIDE] - w[PADDING]
        total = ZERO
        for a0 in range(max(i0, 0), min(i0 + w[KERNEL], s0)):
            for a1 in range(max(i1, 0), min(i1 + w[KERNEL + 1], s1)):
                for a2 in range(max(i2, 0), min(i2 + w[KERNEL + 2], s2)):
                    total += x[channel * plane + (a0 * s1 + a1) * s2 + a2]
        out[cell] = total / _cells(i0, i1, i2, w, padded)


def avg_pool_grad_kernel(count: Any, out: Any, g: Any, w: Any, places: Any, plane: Any, padded: Any) -> None:
    """out[cell] = Σ g/cells over the windows that hold that cell."""
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        where, channel = cell % plane, cell // plane
        a2 = where % w[SIZE + 2] + w[PADDING + 2]
        rest = where // w[SIZE + 2]
        a1 = rest % w[SIZE + 1] + w[PADDING + 1]
        a0 = rest // w[SIZE + 1] + w[PADDING]
        total = ZERO
        for i0 in range(_first(a0, w[KERNEL], w[STRIDE]), min(a0 // w[STRIDE] + 1, w[COUNT])):
            for i1 in range(_first(a1, w[KERNEL + 1], w[STRIDE + 1]), min(a1 // w[STRIDE + 1] + 1, w[COUNT + 1])):
                for i2 in range(_first(a2, w[KERNEL + 2], w[STRIDE + 2]), min(a2 // w[STRIDE + 2] + 1, w[COUNT + 2])):
                    window = channel * places + (i0 * w[COUNT + 1] + i1) * w[COUNT + 2] + i2
                    j0 = i0 * w[STRIDE] - w[PADDING]
                    j1 = i1 * w[STRIDE + 1] - w[PADDING + 1]
                    j2 = i2 * w[STRIDE + 2] - w[PADDING + 2]
                    total += g[window] / _cells(j0, j1, j2, w, padded)
        out[cell] = total


@device_function
def _first(at: Any, size: Any, stride: Any) -> Any:
    """The first of the windows, one every `stride`, that reaches `at`."""
    return max((at - size + stride) // stride, 0) if at >= size else 0


@device_function
def _cells(i0: Any, i1: Any, i2: Any, w: Any, padded: Any) -> Any:
    """How many cells of the window that begins there are counted."""
    if padded:
        return np.float32(w[KERNEL] * w[KERNEL + 1] * w[KERNEL + 2])
    n0 = min(i0 + w[KERNEL], w[SIZE]) - max(i0, 0)
    n1 = min(i1 + w[KERNEL + 1], w[SIZE + 1]) - max(i1, 0)
    n2 = min(i2 + w[KERNEL + 2], w[SIZE + 2]) - max(i2, 0)
    return np.float32(n0 * n1 * n2)


def _windows(device: Device, sizes: Any, counts: Any, kernel: Any, stride: Any, padding: Any) -> Any:
    return windows(device, tuple(sizes), tuple(counts), tuple(kernel), stride, padding, (1,) * len(kernel))


def max_pool(device: Device, types: Types, x: DeviceBuffer, kernel: Any, stride: Any, padding: Any) -> Any:
    out, index = device.empty(types[0]), device.empty(types[1])
    rank = len(kernel)
    w = _windows(device, x.shape[-rank:], out.shape[-rank:], kernel, stride, padding)
    device.each(max_pool_kernel, out.size, out, index, x, w.numbers, np.int32(w.places), np.int32(w.plane))
    return out, index


def max_pool_scatter(
    device: Device,
    types: Types,
    g: DeviceBuffer,
    index: DeviceBuffer,
    shape: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
) -> Any:
    out = device.empty(types[0])
    w = _windows(device, shape, g.shape[-len(kernel) :], kernel, stride, padding)
    device.each(scatter_kernel, out.size, out, g, index, w.numbers, np.int32(w.places), np.int32(w.plane))
    return (out,)


def max_pool_gather(
    device: Device, types: Types, x: DeviceBuffer, index: DeviceBuffer, kernel: Any, stride: Any, padding: Any
) -> Any:
    out, rank = device.empty(types[0]), len(kernel)
    places, plane = math.prod(out.shape[-rank:]), math.prod(x.shape[-rank:])
    device.each(gather_kernel, out.size, out, x, index, np.int32(places), np.int32(plane))
    return (out,)


def avg_pool(
    device: Device, types: Types, x: DeviceBuffer, kernel: Any, stride: Any, padding: Any, count_include_pad: bool
) -> Any:
    out, rank = device.empty(types[0]), len(kernel)
    w = _windows(device, x.shape[-rank:], out.shape[-rank:], kernel, stride, padding)
    numbers = (w.places, w.plane, count_include_pad)
    device.each(avg_pool_kernel, out.size, out, x, w.numbers, *map(np.int32, numbers))
    return (out,)


def avg_pool_grad(
    device: Device,
    types: Types,
    g: DeviceBuffer,
    shape: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    count_include_pad: bool,
) -> Any:
    out = device.empty(types[0])
    w = _windows(device, shape, g.shape[-len(kernel) :], kernel, stride, padding)
    numbers = (w.places, w.plane, count_include_pad)
    device.each(avg_pool_grad_kernel, out.size, out, g, w.numbers, *map(np.int32, numbers))
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    MAX_POOL: max_pool,
    MAX_POOL_SCATTER: max_pool_scatter,
    MAX_POOL_GATHER: max_pool_gather,
    AVG_POOL: avg_pool,
    AVG_POOL_GRAD: avg_pool_grad,
}
