"""Kernels: shapes, axes and the order of elements, casts, constants, initial values of parameters, and reading or
adding to rows at indices. An index out of range sets the device's flag, if required."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import accumulate
from operator import mul
from types import MappingProxyType
from typing import Any

import numpy as np

from ....compiler import scalar as formulas
from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cos, cuda, device_function, log, quotient, remainder, sqrt, steps
from ....init.schemes import Constant, Elementary, Normal, Uniform
from ....ops.indexing import GATHER_ROWS, SCATTER_ADD_ROWS
from ....ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ....ops.logic import CAST, DETACH, FULL, IOTA
from ....ops.primitive import Primitive
from ....ops.slicing import CONCAT, PAD, SLICE
from ....ops.types import BOOL, FLOAT32, INT32, TensorType
from .elementwise import Entry, Types, pointwise, scalar

# Casts and constants --------------------------------------------------------------------------------------------------

YES, NO = np.uint8(1), np.uint8(0)


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


# Initial values -------------------------------------------------------------------------------------------------------

# An element is computed in float64 and rounded once, as on the host. A compiler may fuse a product and a sum into one
# instruction with one rounding. So that a uniform value has the host's bits either way, its product is a sum of two
# exact ones: an integer below 2^24 times the upper 29 and times the lower 24 bits of the width.

Fill = Callable[[Device, Any, tuple[int, ...]], DeviceBuffer]

_integer = device_function(formulas.uniform_integer(np.uint64, device_function(formulas.splitmix64(np.uint64))))
_UNIT = 2.0**-24
_TURN = 2.0 * math.pi
_TWO, _ONE = np.uint64(2), np.uint64(1)


def uniform_fill_kernel(count: Any, out: Any, key: Any, low: Any, upper: Any, lower: Any) -> None:
    """Compute out[i] = low + (upper + lower) * u_i, with u_i an integer of 24 bits."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        u = np.float64(_integer(key, np.uint64(i)))
        out[i] = np.float32((u * upper + u * lower) + low)


def normal_fill_kernel(count: Any, out: Any, key: Any, mean: Any, std: Any) -> None:
    """Compute out[i] = mean + std * z_i, by Box and Muller's transform of elements 2i and 2i + 1 of the uniform
    stream."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        first = np.uint64(i) * _TWO
        radius = sqrt(-2.0 * log(1.0 - np.float64(_integer(key, first)) * _UNIT))
        angle = np.float64(_integer(key, first + _ONE)) * _UNIT * _TURN
        out[i] = np.float32(mean + std * (radius * cos(angle)))


def constant(device: Device, scheme: Constant, shape: tuple[int, ...]) -> DeviceBuffer:
    out = device.empty(TensorType(shape, FLOAT32))
    device.each(fill_kernel, out.size, out, scalar(scheme.value, FLOAT32))
    return out


def uniform(device: Device, scheme: Uniform, shape: tuple[int, ...]) -> DeviceBuffer:
    width = np.float64(scheme.high - scheme.low)
    upper = (width.view(np.uint64) >> np.uint64(24) << np.uint64(24)).view(np.float64)
    out = device.empty(TensorType(shape, FLOAT32))
    parts = upper * _UNIT, (width - upper) * _UNIT
    device.each(uniform_fill_kernel, out.size, out, np.uint64(scheme.key), np.float64(scheme.low), *parts)
    return out


def normal(device: Device, scheme: Normal, shape: tuple[int, ...]) -> DeviceBuffer:
    out = device.empty(TensorType(shape, FLOAT32))
    numbers = np.float64(scheme.mean), np.float64(scheme.std)
    device.each(normal_fill_kernel, out.size, out, np.uint64(scheme.key), *numbers)
    return out


FILLS: Mapping[type[Elementary], Fill] = MappingProxyType({Constant: constant, Uniform: uniform, Normal: normal})
"""The functions that fill float32 memory for each scheme; one without an entry, such as `Flat`, runs on the host."""


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


# Indexing -------------------------------------------------------------------------------------------------------------

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
    GATHER_ROWS: gather_rows,
    SCATTER_ADD_ROWS: scatter_add_rows,
}
