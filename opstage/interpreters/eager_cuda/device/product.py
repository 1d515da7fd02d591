"""Products of matrices by a kernel, where there is no library: tile by tile through the memory of a block."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..buffer import DeviceBuffer
from ..language import cuda
from .interface import Device

TILE = 16
ZERO = np.float32(0)


def product_kernel(rows: Any, columns: Any, extent: Any, out: Any, x: Any, y: Any, tiles: Any) -> None:
    """out[b] = x[b]·y[b]: block (tile of columns, tile of rows, matrix); each thread adds up one element."""
    left = cuda.shared.array((TILE, TILE), np.float32)
    right = cuda.shared.array((TILE, TILE), np.float32)
    j, i = cuda.threadIdx.x % TILE, cuda.threadIdx.x // TILE
    matrix = cuda.blockIdx.x // tiles
    tile = cuda.blockIdx.x % tiles
    across = (columns + TILE - 1) // TILE
    row, column = tile // across * TILE + i, tile % across * TILE + j
    total = ZERO
    for first in range(0, extent, TILE):
        inside_x = row < rows and first + j < extent
        left[i, j] = x[(matrix * rows + row) * extent + first + j] if inside_x else ZERO
        inside_y = column < columns and first + i < extent
        right[i, j] = y[(matrix * extent + first + i) * columns + column] if inside_y else ZERO
        cuda.syncthreads()
        for k in range(TILE):
            total += left[i, k] * right[k, j]
        cuda.syncthreads()
    if row < rows and column < columns:
        out[(matrix * rows + row) * columns + column] = total


def launch_product(device: Device, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer) -> None:
    """out = x·y, as `Device.product` says."""
    (rows, extent), columns = x.shape[-2:], y.shape[-1]
    tiles = -(-rows // TILE) * -(-columns // TILE)
    blocks = tiles * math.prod(x.shape[:-2])
    numbers = np.int32(rows), np.int32(columns), np.int32(extent)
    device.launch(product_kernel, blocks, TILE * TILE, *numbers, out, x, y, np.int32(tiles))
