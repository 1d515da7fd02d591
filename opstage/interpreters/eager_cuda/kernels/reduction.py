"""Kernels: reductions along axes. The axes are brought to the end, and a block of threads reduces a row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.reduction import ARGMAX, REDUCE_MAX, REDUCE_SUM
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from ..buffer import DeviceBuffer
from ..device.interface import Device
from ..language import cuda
from .launches import Entry, Types
from .layout import permute
from .logic import fill_kernel

WARP = 32
ALL = 0xFFFFFFFF

# Sums of integers are taken in int64, those of floats in float32, by what `zero` is.


def row_sum_kernel(extent: Any, out: Any, x: Any, zero: Any) -> None:
    """out[row] = Σ x[row, :], a warp a row: a butterfly of the lanes' sums leaves the total in each of them."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    total = zero
    for j in range(lane, extent, WARP):
        total += x[row * extent + j]
    width = WARP // 2
    while width > 0:
        total += cuda.shfl_xor_sync(ALL, total, width)
        width = width // 2
    if lane == 0:
        out[row] = total


def row_max_kernel(extent: Any, out: Any, x: Any) -> None:
    """out[row] = the greatest of x[row, :], nan if there is one."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    best = x[row * extent]
    for j in range(lane, extent, WARP):
        value = x[row * extent + j]
        best = value if value > best or value != value else best
    width = WARP // 2
    while width > 0:
        other = cuda.shfl_xor_sync(ALL, best, width)
        best = other if other > best or other != other else best
        width = width // 2
    if lane == 0:
        out[row] = best


def row_argmax_kernel(extent: Any, out: Any, x: Any) -> None:
    """out[row] = the index of the first of the greatest of x[row, :]; nan is greater than any number."""
    row, lane = cuda.blockIdx.x, cuda.threadIdx.x
    best, at = x[row * extent], np.int32(0)
    for j in range(lane, extent, WARP):
        value = x[row * extent + j]
        if best == best and (value > best or value != value):
            best, at = value, np.int32(j)
    width = WARP // 2
    while width > 0:
        other = cuda.shfl_xor_sync(ALL, best, width)
        place = cuda.shfl_xor_sync(ALL, at, width)
        nan, other_nan = best != best, other != other
        greater = (other_nan and not nan) or (not nan and other > best)
        ties = (nan and other_nan) or other == best
        if greater or (ties and place < at):
            best, at = other, place
        width = width // 2
    if lane == 0:
        out[row] = at


def _rows(device: Device, x: DeviceBuffer, axes: tuple[int, ...]) -> tuple[DeviceBuffer, int, int]:
    """x with `axes` last, the number of its rows and their length."""
    kept = [axis for axis in range(len(x.shape)) if axis not in axes]
    order = (*kept, *axes)
    moved = TensorType(tuple(x.shape[axis] for axis in order), x.dtype)
    (rows,) = permute(device, (moved,), x, axes=order)
    return rows, math.prod(x.shape[axis] for axis in kept), math.prod(x.shape[axis] for axis in axes)


def reduce_sum(
    device: Device, types: Types, x: DeviceBuffer, axes: tuple[int, ...], keepdims: bool
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    rows, count, extent = _rows(device, x, axes)
    zero = out.dtype.type(0)
    if not extent:
        device.each(fill_kernel, out.size, out, zero)
    elif count:
        device.launch(row_sum_kernel, count, WARP, np.int32(extent), out, rows, zero)
    return (out,)


def reduce_max(
    device: Device, types: Types, x: DeviceBuffer, axes: tuple[int, ...], keepdims: bool
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    rows, count, extent = _rows(device, x, axes)
    if count:
        device.launch(row_max_kernel, count, WARP, np.int32(extent), out, rows)
    return (out,)


def argmax(device: Device, types: Types, x: DeviceBuffer, axis: int, keepdims: bool) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    rows, count, extent = _rows(device, x, (axis,))
    if count:
        device.launch(row_argmax_kernel, count, WARP, np.int32(extent), out, rows)
    return (out,)


KERNELS: dict[Primitive, Entry] = {REDUCE_SUM: reduce_sum, REDUCE_MAX: reduce_max, ARGMAX: argmax}
