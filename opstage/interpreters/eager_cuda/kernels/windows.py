"""Windows over any number of spatial axes: the positions of their cells, for convolutions and pools.

A *place* is the index of a window in one channel of one image, a *cell* the index of a cell in a window, and *at* the
index of a cell in the channel's plane; all three are row-major. Cell j of window i is at i·stride + j·dilation -
padding along each axis.

The functions here are specialised for a number of axes, so that the machine code has no loop over axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import device_function, quotient

SIZE, COUNT, KERNEL, STRIDE, PADDING, DILATION = range(6)
FIELDS = 6
"""Numbers per axis, in this order, first axis first."""

OUTSIDE = np.int32(-1)
"""The position of a padding cell."""

Visit = Callable[..., Any]


class Windows(NamedTuple):
    """The windows of x (images, channels, *sizes): their number along each axis, and their layout.

    numbers     on the device: the six fields of each axis
    rank        the number of axes
    plane       elements of x in one channel of one image
    places      windows in one channel of one image
    cells       of one window
    dilated     whether the cells of a window are not adjacent
    same        whether the windows equal the plane: each is one cell, in order
    """

    numbers: DeviceBuffer
    rank: int
    plane: int
    places: int
    cells: int
    dilated: bool
    same: bool


def windows(
    device: Device,
    sizes: tuple[int, ...],
    counts: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Windows:
    axes = list(zip(sizes, counts, kernel, stride, padding, dilation, strict=True))
    numbers = device.numbers(*(number for axis in axes for number in axis))
    plane, places, cells = map(math.prod, (sizes, counts, kernel))
    same = cells == 1 and max(stride) == 1 and not any(padding) and sizes == counts
    return Windows(numbers, len(axes), plane, places, cells, max(dilation) > 1, same)


# Between numbers and axes ---------------------------------------------------------------------------------------------


@cache
def window_begins(rank: int) -> Visit:
    """Return `(place, w)`: the first cell of a window along each axis, negative in the padding."""
    axis = FIELDS * (rank - 1)

    def along_one(place: Any, w: Any) -> Any:
        return (np.int32(place * w[STRIDE] - w[PADDING]),)

    if rank == 1:
        return device_function(along_one)
    above = window_begins(rank - 1)

    def along_all(place: Any, w: Any) -> Any:
        before = quotient(place, w[axis + COUNT])
        i = place - before * w[axis + COUNT]
        return above(before, w) + (np.int32(i * w[axis + STRIDE] - w[axis + PADDING]),)  # noqa: RUF005 (numba adds)

    return device_function(along_all)


@cache
def padded_indices(rank: int) -> Visit:
    """Return `(at, w)`: the index along each axis of a cell of the plane, counted from the first padding cell."""
    axis = FIELDS * (rank - 1)

    def along_one(at: Any, w: Any) -> Any:
        return (np.int32(at + w[PADDING]),)

    if rank == 1:
        return device_function(along_one)
    above = padded_indices(rank - 1)

    def along_all(at: Any, w: Any) -> Any:
        before = quotient(at, w[axis + SIZE])
        i = at - before * w[axis + SIZE]
        return above(before, w) + (np.int32(i + w[axis + PADDING]),)  # noqa: RUF005

    return device_function(along_all)


@cache
def locate_cell(rank: int) -> Visit:
    """Return `(place, cell, w)`: the position of a window's cell in the plane, or OUTSIDE."""
    axis = FIELDS * (rank - 1)

    def along_one(place: Any, cell: Any, w: Any) -> Any:
        a = np.int32(place * w[STRIDE] + cell * w[DILATION] - w[PADDING])
        return a if a >= 0 and a < w[SIZE] else OUTSIDE

    if rank == 1:
        return device_function(along_one)
    above = locate_cell(rank - 1)

    def along_all(place: Any, cell: Any, w: Any) -> Any:
        place_before, cell_before = quotient(place, w[axis + COUNT]), quotient(cell, w[axis + KERNEL])
        i, j = place - place_before * w[axis + COUNT], cell - cell_before * w[axis + KERNEL]
        a = i * w[axis + STRIDE] + j * w[axis + DILATION] - w[axis + PADDING]
        before = above(place_before, cell_before, w)
        return np.int32(before * w[axis + SIZE] + a) if before >= 0 and a >= 0 and a < w[axis + SIZE] else OUTSIDE

    return device_function(along_all)


@cache
def cells_inside(rank: int) -> Visit:
    """Return `(begins, w)`: the number of cells of the window that are not padding; without dilation."""
    axis = FIELDS * (rank - 1)

    def along_one(begins: Any, w: Any) -> Any:
        return min(begins[0] + w[KERNEL], w[SIZE]) - max(begins[0], 0)

    if rank == 1:
        return device_function(along_one)
    above = cells_inside(rank - 1)

    def along_all(begins: Any, w: Any) -> Any:
        begin = begins[rank - 1]
        return above(begins, w) * (min(begin + w[axis + KERNEL], w[axis + SIZE]) - max(begin, 0))

    return device_function(along_all)


# Loops ----------------------------------------------------------------------------------------------------------------


@cache
def over_cells(rank: int, visit: Visit, *, padding: bool = False, _axis: int = 0) -> Visit:
    """Return `(state, 0, 0, begins, w, data)`: the state after calls of `visit(state, at, cell, begins, w, data)`,
    which returns the next state, for each cell of a window in order; cells OUTSIDE are skipped, unless `padding` is
    set.

    begins      of `window_begins`
    data        further arguments of `visit`, a tuple
    """
    inner = visit if _axis + 1 == rank else over_cells(rank, visit, padding=padding, _axis=_axis + 1)
    axis = FIELDS * _axis

    def cells(state: Any, at: Any, cell: Any, begins: Any, w: Any, data: Any) -> Any:
        n, k, step = w[axis + SIZE], w[axis + KERNEL], w[axis + DILATION]
        begin = begins[_axis]
        for j in range(k):
            a = begin + j * step
            inside = a >= 0 and a < n
            if padding:
                target = np.int32(at * n + a) if inside and at >= 0 else OUTSIDE
                state = inner(state, target, np.int32(cell * k + j), begins, w, data)
            elif inside:
                state = inner(state, np.int32(at * n + a), np.int32(cell * k + j), begins, w, data)
        return state

    return device_function(cells)


@cache
def over_windows(rank: int, visit: Visit, *, dilated: bool, _axis: int = 0) -> Visit:
    """Return `(state, 0, 0, indices, w, data)`: the state after calls of `visit(state, place, cell, indices, w, data)`,
    which returns the next state, for each window that contains a cell of the plane, in order; `cell` is its index in
    the window.

    indices     of `padded_indices`
    data        further arguments of `visit`, a tuple
    """
    inner = visit if _axis + 1 == rank else over_windows(rank, visit, dilated=dilated, _axis=_axis + 1)
    axis = FIELDS * _axis

    def windows(state: Any, place: Any, cell: Any, indices: Any, w: Any, data: Any) -> Any:
        index, k, step, count = indices[_axis], w[axis + KERNEL], w[axis + STRIDE], w[axis + COUNT]
        reach = (k - 1) * w[axis + DILATION] if dilated else k - 1
        first = quotient(index - reach + step - 1, step) if index > reach else 0
        for i in range(first, min(quotient(index, step) + 1, count)):
            j = index - i * step
            if dilated:
                apart = w[axis + DILATION]
                whole = quotient(j, apart)
                if whole * apart == j:
                    target, within = np.int32(place * count + i), np.int32(cell * k + whole)
                    state = inner(state, target, within, indices, w, data)
            else:
                state = inner(state, np.int32(place * count + i), np.int32(cell * k + j), indices, w, data)
        return state

    return device_function(windows)
