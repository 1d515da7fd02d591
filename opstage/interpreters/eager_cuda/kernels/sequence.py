"""Kernels: cumulative sums, recurrences, sorting, and Fourier transforms."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device, pointer_type
from ....compiler.gpu.language import cos_pi, cuda, quotient, remainder, steps
from ....ops.errors import UnsupportedError
from ....ops.fourier import FFT, IRFFT, RFFT
from ....ops.primitive import Primitive
from ....ops.sequence import ARGSORT, CUMSUM, LINEAR_RECURRENCE
from ....ops.types import INT32, DType, TensorType
from .elementwise import Entry, Kernel, Types
from .layout import iota_kernel
from .reduction import along

# Scans and sorting ----------------------------------------------------------------------------------------------------

# A tensor is viewed as (outer, extent, inner), and processed along the middle axis, so no axis is moved.


@cache
def cumsum_kernel(dtype: DType) -> Kernel:
    kind = dtype.type

    def cumsum(rows: Any, out: Any, x: Any, extent: Any, inner: Any, first: Any, step: Any, exclusive: Any) -> None:
        """Accumulate one row per thread, from element `first` on in steps of 1 or -1."""
        for row in steps(cuda.grid(1), rows, cuda.gridsize(1)):
            place = (quotient(row, inner) * extent + first) * inner + remainder(row, inner)
            total = kind(0)
            for _ in range(extent):
                before = total
                total += x[place]
                out[place] = before if exclusive else total
                place += step * inner

    return cumsum


def cumsum(
    device: Device, types: Types, x: DeviceBuffer, axis: int, exclusive: bool, reverse: bool
) -> tuple[DeviceBuffer, ...]:
    out, (outer, extent, inner) = device.empty(types[0]), along(x, axis)
    first, step = (extent - 1, -1) if reverse else (0, 1)
    numbers = [np.int32(n) for n in (extent, inner, first, step, exclusive)]
    device.each(cumsum_kernel(pointer_type(out.dtype)), outer * inner, out, x, *numbers)
    return (out,)


@cache
def linear_recurrence_kernel(dtype: DType) -> Kernel:
    kind = dtype.type

    def linear_recurrence(rows: Any, out: Any, a: Any, b: Any, extent: Any, inner: Any, first: Any, step: Any) -> None:
        """Process one row per thread, from element `first` on in steps of 1 or -1."""
        for row in steps(cuda.grid(1), rows, cuda.gridsize(1)):
            place = (quotient(row, inner) * extent + first) * inner + remainder(row, inner)
            value = kind(0)
            for _ in range(extent):
                value = a[place] * value + b[place]
                out[place] = value
                place += step * inner

    return linear_recurrence


def linear_recurrence(
    device: Device, types: Types, a: DeviceBuffer, b: DeviceBuffer, axis: int, reverse: bool
) -> tuple[DeviceBuffer, ...]:
    out, (outer, extent, inner) = device.empty(types[0]), along(b, axis)
    first, step = (extent - 1, -1) if reverse else (0, 1)
    numbers = [np.int32(n) for n in (extent, inner, first, step)]
    device.each(linear_recurrence_kernel(pointer_type(out.dtype)), outer * inner, out, a, b, *numbers)
    return (out,)


def merge_kernel(
    count: Any, after: Any, before: Any, x: Any, extent: Any, inner: Any, width: Any, descending: Any
) -> None:
    """Merge sorted runs of `width` indices in each row, two by two.

    `before` has, row by row, indices along the axis in the order of each run. Each index counts the elements before it
    in the other run of its pair: lesser ones, and equal ones if that is the first run. nan is greatest.
    """
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        row = quotient(cell, extent)
        k = cell - row * extent
        run = quotient(k, width)
        second = remainder(run, 2)
        pair = (run - second) * width
        low = min(pair, extent) if second else min(pair + width, extent)
        high = min(pair + width, extent) if second else min(pair + width + width, extent)
        other_run = low
        first = quotient(row, inner) * extent * inner + remainder(row, inner)
        own = before[cell]
        value = x[first + own * inner]
        while low < high:
            middle = (low + high) >> 1
            other = x[first + before[row * extent + middle] * inner]
            if descending:
                less = value < other or (other != other and value == value)
                more = other < value or (value != value and other == other)
            else:
                less = other < value or (value != value and other == other)
                more = value < other or (other != other and value == value)
            if less or (second and not more):
                low = middle + 1
            else:
                high = middle
        after[row * extent + pair + (k - run * width) + (low - other_run)] = own


def places_kernel(count: Any, out: Any, order: Any, extent: Any, inner: Any) -> None:
    """Write rows of indices along their axis."""
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        row = quotient(cell, extent)
        k = cell - row * extent
        out[(quotient(row, inner) * extent + k) * inner + remainder(row, inner)] = order[cell]


def argsort(device: Device, types: Types, x: DeviceBuffer, axis: int, descending: bool) -> tuple[DeviceBuffer, ...]:
    out, (_, extent, inner) = device.empty(types[0]), along(x, axis)
    words = TensorType((math.prod(x.shape),), INT32)
    order, spare = device.empty(words), device.empty(words)
    device.each(iota_kernel, out.size, order, np.int32(extent), np.int32(1))
    width = 1
    while width < extent:
        numbers = [np.int32(n) for n in (extent, inner, width, descending)]
        device.each(merge_kernel, out.size, spare, order, x, *numbers)
        order, spare, width = spare, order, 2 * width
    device.each(places_kernel, out.size, out, order, np.int32(extent), np.int32(inner))
    return (out,)


# Fourier transforms ---------------------------------------------------------------------------------------------------

# So a transform of n elements takes n² steps, and n is at most 65535. `x - x` is nan if x is nan or infinite.

HALF, ONE, TWO, ZERO = (np.float32(x) for x in (0.5, 1, 2, 0))


def transform_kernel(
    count: Any,
    out: Any,
    x: Any,
    n: Any,
    entries: Any,
    results: Any,
    inner: Any,
    parts: Any,
    whole: Any,
    sign: Any,
    factor: Any,
    zero: Any,
    half: Any,
    one: Any,
    two: Any,
) -> None:
    """Transform lines of `entries` elements with 1 or 2 `parts` to `results` with 2, or with 1 if x is half of the
    transform of real lines, whose entries count twice (`whole` is 0)."""
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        rest = quotient(cell, inner)
        i = cell - rest * inner
        outer = quotient(rest, results)
        k = rest - outer * results
        real, imaginary, check = zero, zero, zero
        for j in range(entries):
            place = ((outer * entries + j) * inner + i) * parts
            r = remainder(j * k, n)
            turn = two * np.float32(r) / np.float32(n)
            c, s = cos_pi(turn), cos_pi(turn - half)
            if r == 0 or 2 * r == n:
                s = zero
            if 4 * r == n or 4 * r == 3 * n:
                c = zero
            s *= sign
            a = x[place]
            b = x[place + 1] if parts == 2 else zero
            check += (a - a) + (b - b)
            weight = one
            if not whole and j > 0 and 2 * j < n:
                weight = two
            if not whole and weight == one:
                b = zero
            real += weight * (a * c - b * s)
            imaginary += weight * (a * s + b * c)
        if whole:
            out[2 * cell] = real * factor + check
            out[2 * cell + 1] = imaginary * factor + check
        else:
            out[cell] = real * factor + check


def _launch(
    device: Device, types: Types, x: DeviceBuffer, n: int, axis: int, inverse: bool, norm: str, real: tuple[bool, bool]
) -> tuple[DeviceBuffer, ...]:
    """`real` says whether operand and result are real."""
    if n > 65535:
        raise UnsupportedError(
            f"a Fourier transform of {n:,} elements is not supported on device 'cuda', only up to 65,535; use device "
            "'cpu'"
        )
    out = device.empty(types[0])
    lengths = (n, x.shape[axis], out.shape[axis])
    inner = math.prod(x.shape[axis + 1 : len(x.shape) - (not real[0])])
    flags = (1 if real[0] else 2, int(not real[1]))
    power = {"backward": int(inverse), "forward": int(not inverse), "ortho": 0.5}[norm]
    numbers = [np.int32(v) for v in (*lengths, inner, *flags)]
    floats = [np.float32(1 if inverse else -1), np.float32(float(n) ** -power), ZERO, HALF, ONE, TWO]
    device.each(transform_kernel, math.prod(out.shape) // (1 if real[1] else 2), out, x, *numbers, *floats)
    return (out,)


def fft(device: Device, types: Types, x: DeviceBuffer, axis: int, inverse: bool, norm: str) -> tuple[DeviceBuffer, ...]:
    return _launch(device, types, x, x.shape[axis], axis, inverse, norm, (False, False))


def rfft(device: Device, types: Types, x: DeviceBuffer, axis: int, norm: str) -> tuple[DeviceBuffer, ...]:
    return _launch(device, types, x, x.shape[axis], axis, False, norm, (True, False))


def irfft(device: Device, types: Types, x: DeviceBuffer, n: int, axis: int, norm: str) -> tuple[DeviceBuffer, ...]:
    return _launch(device, types, x, n, axis, True, norm, (False, True))


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Entry] = {
    CUMSUM: cumsum,
    LINEAR_RECURRENCE: linear_recurrence,
    ARGSORT: argsort,
    FFT: fft,
    RFFT: rfft,
    IRFFT: irfft,
}
