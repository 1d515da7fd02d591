"""Kernels: reading and adding to rows at indices, such as those of embeddings and of their gradients.

An index out of range sets the device's flag, if required.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cuda, quotient, steps
from ....ops.indexing import GATHER_ROWS, SCATTER_ADD_ROWS
from ....ops.primitive import Primitive
from ....ops.types import BOOL, INT32, TensorType
from .elementwise import Entry, Types
from .layout import copy, fill_kernel, row_major

YES, NO = np.uint8(1), np.uint8(0)

MOST_UPDATES = 8192
"""The number of updates that are searched for those of one row; more are added in further passes."""

NO_MORE = np.int32(-1)
NOBODY = np.int32(0)
"""Instead of a number for the flag: no error is required."""


def gather_kernel(count: Any, out: Any, x: Any, idx: Any, rows: Any, width: Any, flag: Any, asked: Any) -> None:
    """Compute out[i, j] = x[idx[i], j], or 0 for an index out of range."""
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        i = quotient(cell, width)
        row = idx[i]
        if row >= 0 and row < rows:
            out[cell] = x[row * width + cell - i * width]
        else:
            out[cell] = 0
            if asked != NOBODY and flag[0] == NOBODY:
                flag[0] = asked


def chain_kernel(count: Any, after: Any, preceded: Any, idx: Any, first: Any, rows: Any, flag: Any, asked: Any) -> None:
    """Set `after` of each of `count` updates, from `first` on, to the next one of its row, or NO_MORE; that one is
    preceded. An update without a row is marked as preceded, so that it is never added."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        row, found = idx[first + i], NO_MORE
        if row >= 0 and row < rows:
            for k in range(i + 1, count):
                if idx[first + k] == row:
                    found = np.int32(k)
                    break
            if found != NO_MORE:
                preceded[found] = YES
        else:
            preceded[i] = YES
            if asked != NOBODY and flag[0] == NOBODY:
                flag[0] = asked
        after[i] = found


def scatter_add_kernel(
    count: Any, out: Any, v: Any, idx: Any, after: Any, preceded: Any, first: Any, width: Any
) -> None:
    """Compute out[idx[i], j] += v[i, j]: one thread adds all updates of a row and column, in order."""
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        i = quotient(cell, width)
        j = cell - i * width
        if preceded[i] == NO:
            place = idx[first + i] * width + j
            total = out[place]
            while i != NO_MORE:
                total += v[(first + i) * width + j]
                i = after[i]
            out[place] = total


def gather_rows(
    device: Device, types: Types, x: DeviceBuffer, idx: DeviceBuffer, mode: str
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    rows, width = np.int32(x.shape[0]), np.int32(math.prod(x.shape[1:]))
    device.each(gather_kernel, out.size, out, x, idx, rows, width, device.flag, _watched_number(device, mode, x, idx))
    return (out,)


def scatter_add_rows(
    device: Device, types: Types, x: DeviceBuffer, v: DeviceBuffer, idx: DeviceBuffer, mode: str
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    copy(device, x.shape, out, x, strides=row_major(x.shape))
    rows, width = np.int32(x.shape[0]), math.prod(x.shape[1:])
    asked = _watched_number(device, mode, x, idx)
    longest = min(idx.size, MOST_UPDATES)
    after, preceded = device.empty(TensorType((longest,), INT32)), device.empty(TensorType((longest,), BOOL))
    for start in range(0, idx.size, MOST_UPDATES):
        count, first = min(MOST_UPDATES, idx.size - start), np.int32(start)
        device.each(fill_kernel, count, preceded, NO)
        device.each(chain_kernel, count, after, preceded, idx, first, rows, device.flag, asked)
        device.each(scatter_add_kernel, count * width, out, v, idx, after, preceded, first, np.int32(width))
    return (out,)


def _watched_number(device: Device, mode: str, x: DeviceBuffer, idx: DeviceBuffer) -> Any:
    return np.int32(device.watched(x.shape, idx)) if mode == "raise" else NOBODY


KERNELS: dict[Primitive, Entry] = {GATHER_ROWS: gather_rows, SCATTER_ADD_ROWS: scatter_add_rows}
