"""Matrix products by a kernel, for devices without a library: tile by tile through shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from ..buffer import DeviceBuffer
from ..counting import quotient, remainder
from ..language import cuda
from .interface import Device
from .matrices import MatrixLayout, layout_of

ZERO = np.float32(0)


@cache
def product_kernel(x_transposed: bool, y_transposed: bool, side: int) -> Callable[..., None]:
    """Return the kernel of out[b] = x[b]·y[b] + bias, in tiles of side² elements; operands may be stored transposed."""
    width = side + 1  # of a tile row in shared memory, so that columns spread over the 32 banks

    def product(
        rows: Any,
        columns: Any,
        extent: Any,
        out: Any,
        out_first: Any,
        out_row: Any,
        out_matrix: Any,
        x: Any,
        x_first: Any,
        x_row: Any,
        x_matrix: Any,
        y: Any,
        y_first: Any,
        y_row: Any,
        y_matrix: Any,
        bias: Any,
        biased: Any,
        tiles: Any,
    ) -> None:
        """Compute a tile: block (matrix, tile of rows, tile of columns), one element per thread.

        Both operands are read along their rows, coalesced, and transposed when written to shared memory.
        """
        left = cuda.shared.array((side, width), np.float32)
        right = cuda.shared.array((side, width), np.float32)
        j, i = cuda.threadIdx.x % side, cuda.threadIdx.x // side
        matrix, tile = quotient(cuda.blockIdx.x, tiles), remainder(cuda.blockIdx.x, tiles)
        x_at, y_at = x_first + matrix * x_matrix, y_first + matrix * y_matrix
        across = (columns + side - 1) // side
        row, column = quotient(tile, across) * side, remainder(tile, across) * side
        total = ZERO
        for first in range(0, extent, side):
            if x_transposed:
                inside_x = first + i < extent and row + j < rows
                left[j, i] = x[x_at + (first + i) * x_row + row + j] if inside_x else ZERO
            else:
                inside_x = row + i < rows and first + j < extent
                left[i, j] = x[x_at + (row + i) * x_row + first + j] if inside_x else ZERO
            if y_transposed:
                inside_y = column + i < columns and first + j < extent
                right[j, i] = y[y_at + (column + i) * y_row + first + j] if inside_y else ZERO
            else:
                inside_y = first + i < extent and column + j < columns
                right[i, j] = y[y_at + (first + i) * y_row + column + j] if inside_y else ZERO
            cuda.syncthreads()
            for k in range(side):
                total += left[i, k] * right[k, j]
            cuda.syncthreads()
        if row + i < rows and column + j < columns:
            if biased != 0:
                total += bias[column + j]
            out[out_first + matrix * out_matrix + (row + i) * out_row + column + j] = total

    return product


def launch_product(
    device: Device,
    out: DeviceBuffer,
    x: DeviceBuffer,
    y: DeviceBuffer,
    *,
    x_transposed: bool = False,
    y_transposed: bool = False,
    x_layout: MatrixLayout | None = None,
    y_layout: MatrixLayout | None = None,
    out_layout: MatrixLayout | None = None,
    matrices: int | None = None,
    bias: DeviceBuffer | None = None,
) -> None:
    """Compute out = x·y + bias, see `Device.product`."""
    to = layout_of(out, out_layout)
    rows, columns = to.rows, to.columns
    left, right = layout_of(x, x_layout), layout_of(y, y_layout)
    extent = left.rows if x_transposed else left.columns
    side = math.isqrt(device.block)
    tiles = -(-rows // side) * -(-columns // side)
    blocks = tiles * (matrices or math.prod(out.shape[:-2]))
    numbers = np.int32(rows), np.int32(columns), np.int32(extent)
    given = *_given(out, to), *_given(x, left), *_given(y, right)
    epilogue = x if bias is None else bias, np.int32(bias is not None)  # x is a pointer that is not read
    kernel = product_kernel(x_transposed, y_transposed, side)
    device.launch(kernel, blocks, side * side, *numbers, *given, *epilogue, np.int32(tiles))


def _given(operand: DeviceBuffer, layout: MatrixLayout) -> tuple[Any, ...]:
    return operand, np.int32(layout.first), np.int32(layout.row), np.int32(layout.matrix)
