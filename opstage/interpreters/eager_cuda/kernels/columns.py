"""Convolutions as products of matrices: the windows of x are the columns of one (im2col).

Seen from conv, for each group of channels,

    rows (outputs, windows) = kernel (outputs, depth) · columns (depth, windows)

where a row has what one channel of the result has at each window of each image, and a column the `depth` numbers that a
window reads of x. conv is that product; its adjoint makes columns, kernelᵀ·rows, and each cell of its result adds up
what it is in the columns of (col2im, as a gather: every sum is of one thread, in one order); the kernel's gradient is
rows·columnsᵀ. Windows go through this in runs, so that the two matrices take no more than WORKSPACE. Where windows are
single cells, images are columns as they lie.
Chellapilla et al., High performance convolutional neural networks for document processing, 2006.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....ops.types import FLOAT32, TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps
from ...gpu.device.grid import WARP
from ...gpu.device.interface import Device
from ...gpu.device.matrices import MatrixLayout
from ...gpu.language import cuda, device_function
from .launches import Kernel
from .windows import Windows, over_cells, over_windows, padded_indices, window_begins

WORKSPACE = 256 << 20
"""Bytes of columns and rows at once. A GPU that moves 3 TB/s writes and reads as much in about 0.2 ms, beside which the
few µs of three launches are little, and a product of that size is work for all its multiprocessors. More would take
memory from tensors for nothing."""

FEWEST_MULTIPLICATIONS = 1 << 22
"""Below, the two launches that a product takes more (about 4 µs each) cost what the direct kernel takes in all."""

REUSE = 4
"""How often a number of rows or columns is multiplied, from which on a product is worth its matrices."""

WIDE = 64
"""Windows of an image, from which on a product of its own has no less work for each of its tiles."""

ZERO = np.float32(0)


class ColumnsGeometry(NamedTuple):
    """Sizes of a convolution, seen from conv.

    groups      of channels, which have nothing to do with each other
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
        """Numbers of x that an element of the result is computed from."""
        return self.inputs * self.w.cells

    @property
    def windows(self) -> int:
        """Of all images."""
        return self.images * self.w.places


def by_product(geometry: ColumnsGeometry) -> bool:
    """Whether a convolution, its adjoint or its kernel's gradient is computed by a product, not by the direct kernel.

    In numbers for an H100, reckoned and not measured. All three multiply outputs·depth times for a window and group.
    A direct kernel reads two numbers for each multiplication and finds their place by some ten instructions: about
    10^12 a second. A library's product has 2.5·10^13 in float32, but first outputs + depth numbers are written and
    read again, 8 bytes at 3·10^12 a second, in which time the direct kernel would do 2.7 multiplications. So it is the
    direct kernel where outputs·depth < 4·(outputs + depth): few channels a group, as in depthwise convolutions; or
    where there is little to do at all.
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
        """out[n, c, a] = bias[c] + Σ columns[c, j, i] over all windows first + i of n whose cell j is at a.

        Images are counted from `image` on. To one that an earlier run has begun, this one is added.
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
    """out[n, o, p] += bias[o]."""
    for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[t] += bias[remainder(quotient(t, places), channels)]


def place_kernel(
    count: Any, out: Any, rows: Any, bias: Any, biased: Any, first: Any, run: Any, channels: Any, places: Any
) -> None:
    """out[n, o, p] = rows[o, i] + bias[o], where n, p is window first + i."""
    for t in steps(cuda.grid(1), count, cuda.gridsize(1)):
        o = quotient(t, run)
        window = first + t - o * run
        n = quotient(window, places)
        shift = bias[o] if biased != 0 else ZERO
        out[(n * channels + o) * places + window - n * places] = rows[t] + shift


def add_kernel(count: Any, out: Any, x: Any) -> None:
    """out[i] += x[i]."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] += x[i]


# Products -------------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """Windows from `first` on, `length` of them, of the windows of all images in turn."""

    first: int
    length: int


def runs(geometry: ColumnsGeometry) -> Iterator[Run]:
    """All windows: as many at a time as WORKSPACE has room for, whole images if it has room for one."""
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
            device.each(place_kernel, rows.size, out, rows, *_given(bias, rows), *map(np.int32, numbers))
        del columns, rows  # before the next run has its own


def transpose_by_product(
    device: Device,
    g: ColumnsGeometry,
    out: DeviceBuffer,
    kernel: DeviceBuffer,
    x: DeviceBuffer,
    bias: DeviceBuffer | None,
) -> None:
    """The adjoint: `x` has the sizes of conv's result, `out` those of its x."""
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
        operands = (out, columns, *_given(bias, columns), w.numbers, *map(np.int32, numbers))
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
    """Whether conv and its adjoint need no columns: windows are single cells in order, and an image, as it lies, is a
    matrix wide enough for a product of its own."""
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
    """out[n] = kernel·x[n] + bias, or kernelᵀ·x[n] + bias."""
    to, of = (g.inputs, g.outputs) if transposed else (g.outputs, g.inputs)
    results, images = (each.reshaped((g.images, n, g.w.places)) for each, n in ((out, to), (x, of)))
    same_for_all = MatrixLayout(g.outputs, g.inputs, row=g.inputs, matrix=0)
    device.product(results, kernel, images, x_transposed=transposed, x_layout=same_for_all)
    if bias is not None:
        device.each(bias_kernel, out.size, out, bias, np.int32(to), np.int32(g.w.places))


def _columns(device: Device, g: ColumnsGeometry, x: DeviceBuffer, run: Run) -> DeviceBuffer:
    """(groups, depth, windows) of a run of windows."""
    return _gathered(device, g, g.inputs, x, run, g.w)


def _rows(device: Device, g: ColumnsGeometry, y: DeviceBuffer, run: Run) -> DeviceBuffer:
    """(groups, outputs, windows) of what has conv's result's sizes: the columns of windows of one cell."""
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


def _given(bias: DeviceBuffer | None, other: DeviceBuffer) -> tuple[Any, ...]:
    """The bias and whether it is one; else a pointer that is not read."""
    return (other if bias is None else bias), np.int32(bias is not None)
