"""Kernels: reading rows at indices, and adding to them. An index out of range sets the device's flag, if it matters."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.indexing import GATHER_ROWS, SCATTER_ADD_ROWS
from ....ops.primitive import Primitive
from ..buffer import DeviceBuffer
from ..device.interface import Device
from ..language import cuda
from .launches import Entry, Types
from .strided import copy, row_major

NOBODY = np.int32(0)
"""In place of a number to set the flag to: nobody asks for an error."""


def gather_kernel(count: Any, out: Any, x: Any, idx: Any, rows: Any, width: Any, flag: Any, asked: Any) -> None:
    """out[i, j] = x[idx[i], j], and 0 where there is no such row."""
    for cell in range(cuda.grid(1), count, cuda.gridsize(1)):
        i = cell // width
        row = idx[i]
        if row >= 0 and row < rows:
            out[cell] = x[row * width + cell - i * width]
        else:
            out[cell] = 0
            if asked != NOBODY and flag[0] == NOBODY:
                flag[0] = asked


def scatter_add_kernel(count: Any, out: Any, v: Any, idx: Any, updates: Any, rows: Any, flag: Any, asked: Any) -> None:
    """out[idx[i], j] += v[i, j]: a thread for each j goes through the updates in order, so sums have one order."""
    for j in range(cuda.grid(1), count, cuda.gridsize(1)):
        for i in range(updates):
            row = idx[i]
            if row >= 0 and row < rows:
                out[row * count + j] += v[i * count + j]
            elif asked != NOBODY and flag[0] == NOBODY:
                flag[0] = asked


def gather_rows(
    device: Device, types: Types, x: DeviceBuffer, idx: DeviceBuffer, mode: str
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    rows, width = np.int32(x.shape[0]), np.int32(math.prod(x.shape[1:]))
    device.each(gather_kernel, out.size, out, x, idx, rows, width, device.flag, _asked(device, mode, x, idx))
    return (out,)


def scatter_add_rows(
    device: Device, types: Types, x: DeviceBuffer, v: DeviceBuffer, idx: DeviceBuffer, mode: str
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    copy(device, x.shape, out, x, strides=row_major(x.shape))
    rows, width = np.int32(x.shape[0]), math.prod(x.shape[1:])
    asked = _asked(device, mode, x, idx)
    device.each(scatter_add_kernel, width, out, v, idx, np.int32(idx.size), rows, device.flag, asked)
    return (out,)


def _asked(device: Device, mode: str, x: DeviceBuffer, idx: DeviceBuffer) -> Any:
    return np.int32(device.watched(x.shape, idx)) if mode == "raise" else NOBODY


KERNELS: dict[Primitive, Entry] = {GATHER_ROWS: gather_rows, SCATTER_ADD_ROWS: scatter_add_rows}
