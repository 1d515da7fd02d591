"""Kernels: convolutions, by a matrix product or directly.

The direct kernels are used if `by_product` returns False: each element of the result is a sum over windows or over the
cells of one, in an order that depends only on sizes. A padding cell is a zero that is multiplied, as in a product: with
an infinite weight it gives nan. conv's adjoint has no such cells.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import (
    MOST_WARPS,
    ZERO,
    cuda,
    device_function,
    quotient,
    remainder,
    steps,
    sum_lanes,
    unrolled_steps,
)
from ....ops.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE
from ....ops.primitive import Primitive
from .columns import ColumnsGeometry, by_product, conv_by_product, kernel_grad_by_product, transpose_by_product
from .elementwise import Entry, Kernel, Types
from .windows import locate_cell, over_cells, over_windows, padded_indices, window_begins, windows

NOTHING = np.int32(0)

# Sizes are named as in `ColumnsGeometry`, so x has groups·inputs channels and conv's result groups·outputs.


@cache
def conv_kernel(rank: int) -> Kernel:
    begins, add_cells = window_begins(rank), over_cells(rank, _add_cell, padding=True)

    def conv(
        count: Any,
        out: Any,
        kernel: Any,
        x: Any,
        bias: Any,
        biased: Any,
        w: Any,
        groups: Any,
        inputs: Any,
        outputs: Any,
        places: Any,
        plane: Any,
        cells: Any,
    ) -> None:
        """Compute out[n, o, i] = bias[o] + Σ kernel[o, c, j]·x[n, c, i·stride + j·dilation - padding]."""
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            row = quotient(t, places)
            n = quotient(row, groups * outputs)
            o = row - n * groups * outputs
            source = (n * groups + quotient(o, outputs)) * inputs * plane
            data = kernel, o * inputs * cells, cells, x, source, plane, inputs
            total = bias[o] if biased != 0 else ZERO
            out[t] = add_cells(total, NOTHING, NOTHING, begins(t - row * places, w), w, data)

    return conv


@device_function
def _add_cell(total: Any, at: Any, cell: Any, begins: Any, w: Any, data: Any) -> Any:
    kernel, weight, cells, x, source, plane, inputs = data
    for c in range(inputs):
        value = x[source + c * plane + at] if at >= 0 else ZERO
        total += kernel[weight + c * cells + cell] * value
    return total


@cache
def conv_transpose_kernel(rank: int, dilated: bool) -> Kernel:
    indices, add_windows = padded_indices(rank), over_windows(rank, _add_window, dilated=dilated)

    def conv_transpose(
        count: Any,
        out: Any,
        kernel: Any,
        x: Any,
        bias: Any,
        biased: Any,
        w: Any,
        groups: Any,
        inputs: Any,
        outputs: Any,
        places: Any,
        plane: Any,
        cells: Any,
    ) -> None:
        """Compute out[n, c, a] = bias[c] + Σ kernel[o, c, j]·x[n, o, i] over all i·stride + j·dilation - padding =
        a."""
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            row = quotient(t, plane)
            n = quotient(row, groups * inputs)
            c = row - n * groups * inputs
            group = quotient(c, inputs)
            weight = (group * outputs * inputs + c - group * inputs) * cells
            data = kernel, weight, inputs * cells, x, (n * groups + group) * outputs * places, places, outputs
            total = bias[c] if biased != 0 else ZERO
            out[t] = add_windows(total, NOTHING, NOTHING, indices(t - row * plane, w), w, data)

    return conv_transpose


@device_function
def _add_window(total: Any, place: Any, cell: Any, indices: Any, w: Any, data: Any) -> Any:
    kernel, weight, step, x, source, places, outputs = data
    for o in range(outputs):
        total += kernel[weight + o * step + cell] * x[source + o * places + place]
    return total


@cache
def kernel_grad_kernel(rank: int) -> Kernel:
    at_cell = locate_cell(rank)

    def conv_kernel_grad(
        rows: Any,
        lanes: Any,
        out: Any,
        x: Any,
        g: Any,
        w: Any,
        images: Any,
        groups: Any,
        inputs: Any,
        outputs: Any,
        places: Any,
        plane: Any,
        cells: Any,
    ) -> None:
        """Compute out[o, c, j] = Σ g[n, o, i]·x[n, c, i·stride + j·dilation - padding], with lanes as suits the number
        of windows."""
        parts = cuda.shared.array(MOST_WARPS, np.float32)
        lane = remainder(cuda.threadIdx.x, lanes)
        for row in steps(quotient(cuda.grid(1), lanes), rows, quotient(cuda.gridsize(1), lanes)):
            channel = quotient(row, cells)
            cell = row - channel * cells
            o = quotient(channel, inputs)
            c = channel - o * inputs + quotient(o, outputs) * inputs
            total = ZERO
            for window in unrolled_steps(lane, images * places, lanes):
                n = quotient(window, places)
                place = window - n * places
                at = at_cell(place, cell, w)
                value = x[(n * groups * inputs + c) * plane + at] if at >= 0 else ZERO
                total += g[(n * groups * outputs + o) * places + place] * value
            total = sum_lanes(total, parts, cuda.threadIdx.x, lanes)
            if lane == 0:
                out[row] = total

    return conv_kernel_grad


def conv(device: Device, types: Types, *operands: DeviceBuffer, has_bias: bool, groups: int, **window: Any) -> Any:
    kernel, *bias, x = operands
    out = device.empty(types[0])
    g = _geometry(device, x, out, kernel.shape, groups, window)
    if by_product(g):
        conv_by_product(device, g, out, kernel, x, bias[0] if bias else None)
    else:
        _each(device, conv_kernel(g.w.rank), out, kernel, x, bias, g)
    return (out,)


def conv_transpose(
    device: Device,
    types: Types,
    *operands: DeviceBuffer,
    has_bias: bool,
    groups: int,
    output_padding: Any,
    **window: Any,
) -> Any:
    kernel, *bias, x = operands
    out = device.empty(types[0])
    g = _geometry(device, out, x, kernel.shape, groups, window)
    if by_product(g):
        transpose_by_product(device, g, out, kernel, x, bias[0] if bias else None)
    else:
        _each(device, conv_transpose_kernel(g.w.rank, g.w.dilated), out, kernel, x, bias, g)
    return (out,)


def conv_kernel_grad(
    device: Device, types: Types, x: DeviceBuffer, g: DeviceBuffer, kernel: Any, groups: int, **window: Any
) -> Any:
    out = device.empty(types[0])
    geometry = _geometry(device, x, g, out.shape, groups, window)
    if by_product(geometry):
        kernel_grad_by_product(device, geometry, out, x, g)
    else:
        numbers = geometry.images, *_numbers(geometry)
        operands = out, x, g, geometry.w.numbers, *map(np.int32, numbers)
        device.each_row(kernel_grad_kernel(geometry.w.rank), out.size, geometry.windows, *operands)
    return (out,)


def _geometry(
    device: Device, x: DeviceBuffer, result: DeviceBuffer, kernel: tuple[int, ...], groups: int, window: Any
) -> ColumnsGeometry:
    """Return the geometry of the conv from x to result with a kernel of that shape, for any of the three."""
    outputs, inputs, *sizes = kernel
    rank = len(sizes)
    w = windows(device, x.shape[-rank:], result.shape[-rank:], tuple(sizes), **window)
    images = x.shape[0] if len(x.shape) == rank + 2 else 1
    return ColumnsGeometry(images, groups, inputs, outputs // groups, w)


def _each(device: Device, kernel: Kernel, out: Any, weight: Any, x: Any, bias: Any, g: ColumnsGeometry) -> None:
    given = bias[0] if bias else weight  # an unused pointer
    biased = np.int32(bool(bias))
    device.each(kernel, out.size, out, weight, x, given, biased, g.w.numbers, *map(np.int32, _numbers(g)))


def _numbers(g: ColumnsGeometry) -> tuple[int, ...]:
    return g.groups, g.inputs, g.outputs, g.w.places, g.w.plane, g.w.cells


KERNELS: dict[Primitive, Entry] = {CONV: conv, CONV_TRANSPOSE: conv_transpose, CONV_KERNEL_GRAD: conv_kernel_grad}
