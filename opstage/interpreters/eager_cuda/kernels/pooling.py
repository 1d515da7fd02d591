"""Kernels: maxima and means over windows. In the gradients, each cell is summed by one thread, in order."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cuda, device_function, quotient, steps
from ....ops.index_checks import require_cells
from ....ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.primitive import Primitive
from .elementwise import Entry, Kernel, Types
from .windows import OUTSIDE, Windows, cells_inside, over_cells, over_windows, padded_indices, window_begins, windows

ZERO, ONE = np.float32(0), np.float32(1)
NOTHING = np.int32(0)


@cache
def max_pool_kernel(rank: int) -> Kernel:
    begins, greatest = window_begins(rank), over_cells(rank, _greater)

    def max_pool(count: Any, out: Any, index: Any, x: Any, w: Any, places: Any, plane: Any) -> None:
        """Compute the maximum of each window and its index in its channel's plane; the first one, but the last nan."""
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            channel = quotient(t, places)
            start, data = begins(t - channel * places, w), (x, channel * plane)
            out[t], index[t] = greatest((ZERO, OUTSIDE), NOTHING, NOTHING, start, w, data)

    return max_pool


@device_function
def _greater(state: Any, at: Any, cell: Any, begins: Any, w: Any, data: Any) -> Any:
    (best, where), (x, first) = state, data
    value = x[first + at]
    if where == OUTSIDE or value > best or value != value:  # the last of several nan, as on the CPU
        return value, at
    return best, where


@cache
def scatter_kernel(rank: int) -> Kernel:
    indices, add_windows = padded_indices(rank), over_windows(rank, _add_where_chosen, dilated=False)

    def max_pool_scatter(
        count: Any, out: Any, g: Any, index: Any, number: Any, w: Any, places: Any, plane: Any, flag: Any, asked: Any
    ) -> None:
        """out[cell] = Σ g over the windows whose index is that cell. Of the `number` of windows all are looked at for
        an index outside of its plane."""
        for window in steps(cuda.grid(1), number, cuda.gridsize(1)):
            if (index[window] < 0 or index[window] >= plane) and flag[0] == NOTHING:
                flag[0] = asked
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            channel = quotient(t, plane)
            at = t - channel * plane
            data = g, index, channel * places, at
            out[t] = add_windows(ZERO, NOTHING, NOTHING, indices(at, w), w, data)

    return max_pool_scatter


@device_function
def _add_where_chosen(total: Any, place: Any, cell: Any, indices: Any, w: Any, data: Any) -> Any:
    g, index, first, at = data
    return total + g[first + place] if index[first + place] == at else total


def gather_kernel(count: Any, out: Any, x: Any, index: Any, places: Any, plane: Any, flag: Any, asked: Any) -> None:
    """out[window] = x at the window's index, and 0 where that is outside of the plane."""
    for window in steps(cuda.grid(1), count, cuda.gridsize(1)):
        at = index[window]
        if at >= 0 and at < plane:
            out[window] = x[quotient(window, places) * plane + at]
        else:
            out[window] = ZERO
            if flag[0] == NOTHING:
                flag[0] = asked


@cache
def avg_pool_kernel(rank: int) -> Kernel:
    begins, add_cells = window_begins(rank), over_cells(rank, _add_cell)

    def avg_pool(count: Any, out: Any, x: Any, w: Any, places: Any, plane: Any, counted: Any) -> None:
        """Compute the mean of each window: over `counted` cells, with padding as 0; or, if that is 0, over cells
        inside."""
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            channel = quotient(t, places)
            start, data = begins(t - channel * places, w), (x, channel * plane)
            total, inside = add_cells((ZERO, NOTHING), NOTHING, NOTHING, start, w, data)
            out[t] = total / np.float32(counted if counted else inside)

    return avg_pool


@device_function
def _add_cell(state: Any, at: Any, cell: Any, begins: Any, w: Any, data: Any) -> Any:
    (total, inside), (x, first) = state, data
    return total + x[first + at], np.int32(inside + 1)


@cache
def avg_pool_grad_kernel(rank: int) -> Kernel:
    begins, inside = window_begins(rank), cells_inside(rank)

    @device_function
    def add_window(total: Any, place: Any, cell: Any, indices: Any, w: Any, data: Any) -> Any:
        g, first, counted = data
        cells = counted if counted else inside(begins(place, w), w)
        return total + g[first + place] / np.float32(cells)

    indices, add_windows = padded_indices(rank), over_windows(rank, add_window, dilated=False)

    def avg_pool_grad(count: Any, out: Any, g: Any, w: Any, places: Any, plane: Any, counted: Any) -> None:
        """Compute out[cell] = Σ g/cells over the windows that contain the cell; `counted` as in avg_pool."""
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            channel = quotient(t, plane)
            data = g, channel * places, counted
            out[t] = add_windows(ZERO, NOTHING, NOTHING, indices(t - channel * plane, w), w, data)

    return avg_pool_grad


def _windows(device: Device, sizes: Any, counts: Any, kernel: Any, stride: Any, padding: Any) -> Windows:
    return windows(device, tuple(sizes), tuple(counts), tuple(kernel), stride, padding, (1,) * len(kernel))


def _planes(w: Windows) -> tuple[Any, ...]:
    return w.numbers, np.int32(w.places), np.int32(w.plane)


def _counted(w: Windows, padding: Any, count_include_pad: bool) -> Any:
    """Return the number of cells of every mean; 0 if it varies, because windows extend into the padding."""
    return np.int32(w.cells if count_include_pad or not any(padding) else 0)


def max_pool(device: Device, types: Types, x: DeviceBuffer, kernel: Any, stride: Any, padding: Any) -> Any:
    out, index = device.empty(types[0]), device.empty(types[1])
    rank = len(kernel)
    w = _windows(device, x.shape[-rank:], out.shape[-rank:], kernel, stride, padding)
    device.each(max_pool_kernel(rank), out.size, out, index, x, *_planes(w))
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
    out, rank = device.empty(types[0]), len(kernel)
    w = _windows(device, shape, g.shape[-rank:], kernel, stride, padding)
    asked = np.int32(device.watched(tuple(shape), index, require_cells))
    device.each(scatter_kernel(rank), out.size, out, g, index, np.int32(index.size), *_planes(w), device.flag, asked)
    return (out,)


def max_pool_gather(
    device: Device, types: Types, x: DeviceBuffer, index: DeviceBuffer, kernel: Any, stride: Any, padding: Any
) -> Any:
    out, rank = device.empty(types[0]), len(kernel)
    places, plane = np.int32(math.prod(out.shape[-rank:])), np.int32(math.prod(x.shape[-rank:]))
    asked = np.int32(device.watched(x.shape[-rank:], index, require_cells))
    device.each(gather_kernel, out.size, out, x, index, places, plane, device.flag, asked)
    return (out,)


def avg_pool(
    device: Device, types: Types, x: DeviceBuffer, kernel: Any, stride: Any, padding: Any, count_include_pad: bool
) -> Any:
    out, rank = device.empty(types[0]), len(kernel)
    w = _windows(device, x.shape[-rank:], out.shape[-rank:], kernel, stride, padding)
    counted = _counted(w, padding, count_include_pad)
    device.each(avg_pool_kernel(rank), out.size, out, x, *_planes(w), counted)
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
    out, rank = device.empty(types[0]), len(kernel)
    w = _windows(device, shape, g.shape[-rank:], kernel, stride, padding)
    counted = _counted(w, padding, count_include_pad)
    device.each(avg_pool_grad_kernel(rank), out.size, out, g, *_planes(w), counted)
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    MAX_POOL: max_pool,
    MAX_POOL_SCATTER: max_pool_scatter,
    MAX_POOL_GATHER: max_pool_gather,
    AVG_POOL: avg_pool,
    AVG_POOL_GRAD: avg_pool_grad,
}
