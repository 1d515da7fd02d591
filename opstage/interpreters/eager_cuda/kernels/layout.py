"""Kernels: shapes, axes and the order of elements, slices, casts and constants."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cuda, quotient, remainder, steps
from ....ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ....ops.logic import CAST, DETACH, FULL, IOTA
from ....ops.primitive import Primitive
from ....ops.slicing import CONCAT, PAD, SLICE
from .elementwise import Entry, Types, pointwise, scalar

# Casts and constants --------------------------------------------------------------------------------------------------


def fill_kernel(count: Any, out: Any, value: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = value


def iota_kernel(count: Any, out: Any, extent: Any, inner: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = remainder(quotient(i, inner), extent)


_cast = pointwise(CAST)


def cast(device: Device, types: Types, x: DeviceBuffer, dtype: str) -> tuple[DeviceBuffer, ...]:
    return (x,) if x.dtype == types[0].dtype else _cast(device, types, x, dtype=dtype)


def full(device: Device, types: Types, shape: Any, value: Any, dtype: str) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(fill_kernel, out.size, out, scalar(value, out.dtype))
    return (out,)


def iota(device: Device, types: Types, shape: Any, axis: int, dtype: str) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(iota_kernel, out.size, out, np.int32(shape[axis]), np.int32(math.prod(shape[axis + 1 :])))
    return (out,)


# Strided copies -------------------------------------------------------------------------------------------------------


def row_major(shape: tuple[int, ...]) -> list[int]:
    """Return the row-major strides in elements."""
    return [*accumulate(shape[:0:-1], mul, initial=1)][::-1] if shape else []


def copy_kernel(count: Any, out: Any, x: Any, to: Any, start: Any, rank: Any, axes: Any) -> None:
    """Compute out[to + Σ tₖ·iₖ] = x[start + Σ sₖ·iₖ] for every index i of a box; `axes` are (nₖ, tₖ, sₖ) for each of
    its sides, last first."""
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        rest, target, source = cell, to, start
        for k in range(rank):
            n = axes[3 * k]
            i = remainder(rest, n)
            rest = quotient(rest, n)
            target += i * axes[3 * k + 1]
            source += i * axes[3 * k + 2]
        out[target] = x[source]


def copy(
    device: Device,
    box: tuple[int, ...],
    out: DeviceBuffer,
    x: DeviceBuffer,
    *,
    to: int = 0,
    out_strides: list[int] | None = None,
    start: int = 0,
    strides: list[int],
) -> None:
    """Copy a box of x to out; strides are in elements, those of out row-major by default."""
    axes = _axes(box, tuple(row_major(out.shape) if out_strides is None else out_strides), tuple(strides))
    rank = np.int32(len(axes) // 3)
    device.each(copy_kernel, math.prod(box), out, x, np.int32(to), np.int32(start), rank, device.numbers(*axes))


@lru_cache(maxsize=4096)
def _axes(box: tuple[int, ...], targets: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes of a copy as its kernel takes them."""
    axes = _merged([(n, t, s) for n, t, s in zip(box, targets, strides, strict=True) if n != 1])
    return tuple([number for axis in reversed(axes) for number in axis])


def _merged(axes: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Merge adjacent axes if both sides have constant strides over them."""
    result: list[tuple[int, int, int]] = []
    for n, t, s in axes:
        if result and result[-1][1] == n * t and result[-1][2] == n * s:
            result[-1] = (result[-1][0] * n, t, s)
        else:
            result.append((n, t, s))
    return result


# Layout ---------------------------------------------------------------------------------------------------------------


def broadcast_to(device: Device, types: Types, x: DeviceBuffer, shape: tuple[int, ...]) -> tuple[DeviceBuffer, ...]:
    if x.shape == tuple(shape):
        return (x,)
    out = device.empty(types[0])
    added = len(shape) - len(x.shape)
    steps = row_major(x.shape)
    strides = [0] * added + [0 if n == 1 else step for n, step in zip(x.shape, steps)]
    copy(device, out.shape, out, x, strides=strides)
    return (out,)


def reshape(device: Device, types: Types, x: DeviceBuffer, shape: Any) -> tuple[DeviceBuffer, ...]:
    return (x.reshaped(types[0].shape),)  # type: ignore[arg-type]  # an executed shape has no symbolic dims


def permute(device: Device, types: Types, x: DeviceBuffer, axes: tuple[int, ...]) -> tuple[DeviceBuffer, ...]:
    steps = row_major(x.shape)
    moved = [axis for axis in axes if x.shape[axis] != 1]
    if moved == sorted(moved):
        return (x.reshaped(types[0].shape),)  # type: ignore[arg-type]
    out = device.empty(types[0])
    copy(device, out.shape, out, x, strides=[steps[axis] for axis in axes])
    return (out,)


def concat(device: Device, types: Types, *xs: DeviceBuffer, axis: int) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    steps, at = row_major(out.shape), 0
    for x in xs:
        copy(device, x.shape, out, x, to=at * steps[axis], strides=row_major(x.shape))
        at += x.shape[axis]
    return (out,)


def take_slice(
    device: Device, types: Types, x: DeviceBuffer, axis: int, start: int, length: int, step: int
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    strides = row_major(x.shape)
    first = start * strides[axis]
    strides[axis] *= step
    copy(device, out.shape, out, x, start=first, strides=strides)
    return (out,)


def pad(
    device: Device,
    types: Types,
    x: DeviceBuffer,
    padding: tuple[tuple[int, int], ...],
    value: Any,
    interior: tuple[int, ...],
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(fill_kernel, out.size, out, scalar(value, out.dtype))
    steps = row_major(out.shape)
    to = sum(before * step for (before, _), step in zip(padding, steps))
    spread = [step * (between + 1) for step, between in zip(steps, interior)]
    copy(device, x.shape, out, x, to=to, out_strides=spread, strides=row_major(x.shape))
    return (out,)


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Entry] = {
    CAST: cast,
    DETACH: lambda device, types, x: (x,),
    FULL: full,
    IOTA: iota,
    BROADCAST_TO: broadcast_to,
    RESHAPE: reshape,
    PERMUTE: permute,
    CONCAT: concat,
    SLICE: take_slice,
    PAD: pad,
}
