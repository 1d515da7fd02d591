"""Convolutions as matrix products: the windows of x are the columns of a matrix (im2col).

Seen from conv, for each group of channels,

    rows (outputs, windows) = kernel (outputs, depth) · columns (depth, windows)

where a row has one channel of the result for all windows of all images, and a column the `depth` numbers of x in a
window. conv is that product; its adjoint computes columns, kernelᵀ·rows, and each cell of its result sums its
occurrences in them (col2im, as a gather: every sum is computed by one thread, in a fixed order); the kernel's gradient
is rows·columnsᵀ. Windows are processed in runs, so that the two matrices need at most WORKSPACE. If windows are single
cells, images already are columns. Chellapilla et al., High performance convolutional neural networks for document
processing, 2006.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer, MatrixLayout
from ....compiler.gpu.device import WARP, Device
from ....compiler.gpu.language import cuda, device_function, quotient, remainder, steps
from ....ops.types import FLOAT32, TensorType
from .elementwise import Kernel
from .windows import Windows, over_cells, over_windows, padded_indices, window_begins

WORKSPACE = 256 << 20
"""Bytes of columns and rows at once. A GPU with 3 TB/s writes and reads that much in about 0.2 ms, compared to which
the few µs of three launches are small, and a product of that size occupies all multiprocessors. More would take memory
from tensors without a gain."""

FEWEST_MULTIPLICATIONS = 1 << 22
"""Below this, the two additional launches of a product (about 4 µs each) cost as much as the whole direct kernel."""

REUSE = 4
"""The number of multiplications per number in rows or columns above which a product is worth its matrices."""

WIDE = 64
"""The number of windows per image above which a separate product per image keeps its tiles full."""

ZERO = np.float32(0)


class ColumnsGeometry(NamedTuple):
    """Sizes of a convolution, named as in conv.

    groups      independent groups of channels
    inputs      channels of x in a group
    outputs     channels of the result in a group
    """

    images: int
    groups: int
    inputs: int
    outputs: int
    w: Windows

    @property
    def depth(self) -> int:
        """Return the numbers of x in an element of the result."""
        return self.inputs * self.w.cells

    @property
    def windows(self) -> int:
        """Return the windows of all images."""
        return self.images * self.w.places


def by_product(geometry: ColumnsGeometry) -> bool:
    """Return whether a convolution, its adjoint or its kernel's gradient is a product, not by the direct kernel.

    Estimated for an H100, not measured. All three need outputs·depth multiplications per window and group. A direct
    kernel reads two numbers per multiplication and computes their addresses in about ten instructions: about 10^12 per
    second. A library's product reaches 2.5·10^13 in float32, but first outputs + depth numbers are written and read
    again, 8 bytes at 3·10^12 per second, in which time the direct kernel does 2.7 multiplications. So the direct kernel
    is used if outputs·depth < 4·(outputs + depth), with few channels per group, as in depthwise convolutions, or if
    there is little work in total.
    """
    outputs, depth = geometry.outputs, geometry.depth
    if geometry.groups * geometry.windows * outputs * depth < FEWEST_MULTIPLICATIONS:
        return False
    return outputs * depth >= REUSE * (outputs + depth)


# Kernels --------------------------------------------------------------------------------------------------------------


@cache
def columns_kernel(rank: int) -> Kernel:
    begins, write_cells = window_begins(rank), over_cells(rank, _write, padding=True)

    def columns(
        count: Any, out: Any, x: Any, w: Any, first: Any, run: Any, channels: Any, places: Any, plane: Any, cells: Any
    ) -> None:
        """out[c, j, i] = x[n, c, cell j of place p], or 0 in the padding, where n, p is window first + i.

        A thread writes the cells of one window in one channel, so that neighbours write neighbours.
        """
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            c = quotient(t, run)
            i = t - c * run
            n = quotient(first + i, places)
            place = first + i - n * places
            data = out, x, c * cells * run + i, run, (n * channels + c) * plane
            write_cells(np.int32(0), np.int32(0), np.int32(0), begins(place, w), w, data)

    return columns


@device_function
def _write(state: Any, at: Any, cell: Any, begins: Any, w: Any, data: Any) -> Any:
    out, x, to, run, source = data
    out[to + cell * run] = x[source + at] if at >= 0 else ZERO
    return state


@cache
def sums_kernel(rank: int, dilated: bool) -> Kernel:
    indices, add_windows = padded_indices(rank), over_windows(rank, _add, dilated=dilated)

    def sums(
        count: Any,
        out: Any,
        columns: Any,
        bias: Any,
        biased: Any,
        w: Any,
        first: Any,
        run: Any,
        image: Any,
        channels: Any,
        places: Any,
        plane: Any,
        cells: Any,
    ) -> None:
        """Compute out[n, c, a] = bias[c] + Σ columns[c, j, i] over all windows first + i of n with cell j at a.

        Images are counted from `image` on. The sums for an image of an earlier run are added to it.
        """
        for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
            channel = quotient(t, plane)
            at = t - channel * plane
            which = quotient(channel, channels)
            c = channel - which * channels
            n = image + which
            target = (n * channels + c) * plane + at
            total = ZERO
            if first > n * places:
                total = out[target]
            elif biased != 0:
                total = bias[c]
            data = columns, c * cells, run, n * places - first
            out[target] = add_windows(total, np.int32(0), np.int32(0), indices(at, w), w, data)

    return sums


@device_function
def _add(total: Any, place: Any, cell: Any, indices: Any, w: Any, data: Any) -> Any:
    columns, row, run, before = data
    i = before + place
    return total + columns[(row + cell) * run + i] if i >= 0 and i < run else total


def bias_kernel(count: Any, out: Any, bias: Any, channels: Any, places: Any) -> None:
    """Compute out[n, o, p] += bias[o]."""
    for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[t] += bias[remainder(quotient(t, places), channels)]


def place_kernel(
    count: Any, out: Any, rows: Any, bias: Any, biased: Any, first: Any, run: Any, channels: Any, places: Any
) -> None:
    """Compute out[n, o, p] = rows[o, i] + bias[o], where n, p is window first + i."""
    for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
        o = quotient(t, run)
        window = first + t - o * run
        n = quotient(window, places)
        shift = bias[o] if biased != 0 else ZERO
        out[(n * channels + o) * places + window - n * places] = rows[t] + shift


def add_kernel(count: Any, out: Any, x: Any) -> None:
    """Compute out[i] += x[i]."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] += x[i]


# Products -------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """A run of `length` windows from `first` on, counted over all images."""

    first: int
    length: int


def runs(geometry: ColumnsGeometry) -> Iterator[Run]:
    """Yield runs over all windows, each as long as WORKSPACE allows, with whole images if one fits."""
    each = geometry.groups * (geometry.depth + geometry.outputs) * FLOAT32.itemsize
    most = max(1, WORKSPACE // each)
    unit = next(unit for unit in (geometry.w.places, WARP, 1) if unit <= most)
    step = most // unit * unit
    for first in range(0, geometry.windows, step):
        yield Run(first, min(step, geometry.windows - first))


def conv_by_product(
    device: Device,
    g: ColumnsGeometry,
    out: DeviceBuffer,
    kernel: DeviceBuffer,
    x: DeviceBuffer,
    bias: DeviceBuffer | None,
) -> None:
    if images_are_columns(g):
        return _each_image(device, g, out, kernel, x, bias, transposed=False)
    weight = kernel.reshaped((g.groups, g.outputs, g.depth))
    for run in runs(g):
        columns = _columns(device, g, x, run)
        shape = g.groups, g.outputs, run.length
        whole = g.images == 1 and run.length == g.windows and bias is None
        rows = out.reshaped(shape) if whole else _matrices(device, shape)
        device.product(rows, weight, columns)
        if not whole:
            numbers = (run.first, run.length, g.groups * g.outputs, g.w.places)
            device.each(place_kernel, rows.size, out, rows, *_bias_arguments(bias, rows), *map(np.int32, numbers))
        del columns, rows  # before the next run allocates its own


def transpose_by_product(
    device: Device,
    g: ColumnsGeometry,
    out: DeviceBuffer,
    kernel: DeviceBuffer,
    x: DeviceBuffer,
    bias: DeviceBuffer | None,
) -> None:
    """Compute the adjoint: `x` has the sizes of conv's result, `out` those of its x."""
    if images_are_columns(g):
        return _each_image(device, g, out, kernel, x, bias, transposed=True)
    weight = kernel.reshaped((g.groups, g.outputs, g.depth))
    channels, w = g.groups * g.inputs, g.w
    for run in runs(g):
        columns = _matrices(device, (g.groups, g.depth, run.length))
        device.product(columns, weight, _rows(device, g, x, run), x_transposed=True)
        image = run.first // w.places
        images = (run.first + run.length - 1) // w.places + 1 - image
        numbers = (run.first, run.length, image, channels, w.places, w.plane, w.cells)
        operands = (out, columns, *_bias_arguments(bias, columns), w.numbers, *map(np.int32, numbers))
        device.each(sums_kernel(w.rank, w.dilated), images * channels * w.plane, *operands)
        del columns, operands


def kernel_grad_by_product(
    device: Device, g: ColumnsGeometry, out: DeviceBuffer, x: DeviceBuffer, cotangent: DeviceBuffer
) -> None:
    total = out.reshaped((g.groups, g.outputs, g.depth))
    for run in runs(g):
        part = _matrices(device, total.shape) if run.first else total
        device.product(part, _rows(device, g, cotangent, run), _columns(device, g, x, run), y_transposed=True)
        if run.first:
            device.each(add_kernel, total.size, total, part)
        del part


def images_are_columns(g: ColumnsGeometry) -> bool:
    """Return whether conv and its adjoint need no columns: windows are single cells in order, and images are wide
    enough for a separate product."""
    return g.w.same and g.groups == 1 and (g.images == 1 or g.w.places >= WIDE)


def _each_image(
    device: Device,
    g: ColumnsGeometry,
    out: DeviceBuffer,
    kernel: DeviceBuffer,
    x: DeviceBuffer,
    bias: DeviceBuffer | None,
    *,
    transposed: bool,
) -> None:
    """Compute out[n] = kernel·x[n] + bias, or kernelᵀ·x[n] + bias."""
    to, of = (g.inputs, g.outputs) if transposed else (g.outputs, g.inputs)
    results, images = (each.reshaped((g.images, n, g.w.places)) for each, n in ((out, to), (x, of)))
    same_for_all = MatrixLayout(g.outputs, g.inputs, row=g.inputs, matrix=0)
    device.product(results, kernel, images, x_transposed=transposed, x_layout=same_for_all)
    if bias is not None:
        device.each(bias_kernel, out.size, out, bias, np.int32(to), np.int32(g.w.places))


def _columns(device: Device, g: ColumnsGeometry, x: DeviceBuffer, run: Run) -> DeviceBuffer:
    """Return (groups, depth, windows) for a run of windows."""
    return _gathered(device, g, g.inputs, x, run, g.w)


def _rows(device: Device, g: ColumnsGeometry, y: DeviceBuffer, run: Run) -> DeviceBuffer:
    """Return (groups, outputs, windows) of a tensor with the sizes of conv's result: the columns of windows of one
    cell."""
    places = g.w.places
    numbers = device.numbers(places, places, 1, 1, 0, 1)
    return _gathered(device, g, g.outputs, y, run, Windows(numbers, 1, places, places, 1, dilated=False, same=True))


def _gathered(device: Device, g: ColumnsGeometry, channels: int, x: DeviceBuffer, run: Run, w: Windows) -> DeviceBuffer:
    shape = g.groups, channels * w.cells, run.length
    if w.same and g.images == 1 and run.length == g.windows:
        return x.reshaped(shape)
    out, channels = _matrices(device, shape), channels * g.groups
    numbers = (run.first, run.length, channels, w.places, w.plane, w.cells)
    device.each(columns_kernel(w.rank), channels * run.length, out, x, w.numbers, *map(np.int32, numbers))
    return out


def _matrices(device: Device, shape: tuple[int, ...]) -> DeviceBuffer:
    return device.empty(TensorType(shape, FLOAT32))


def _bias_arguments(bias: DeviceBuffer | None, other: DeviceBuffer) -> tuple[Any, ...]:
    """Return the bias and whether there is one; without one, an unused pointer."""
    return (other if bias is None else bias), np.int32(bias is not None)
