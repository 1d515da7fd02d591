"""Kernels: linear systems, and the Cholesky factor. One thread per matrix, or per column of a triangular system.

So stacks of small matrices are fast, but one large matrix is not. `x - x != 0` tests for nan or infinity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.solving import CHOLESKY, SOLVE, TRIANGULAR_SOLVE
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda, sqrt
from .launches import Entry, Types
from .strided import copy, row_major

NAN = np.float32(np.nan)


def cholesky_kernel(count: Any, out: Any, x: Any, n: Any, nan: Any) -> None:
    for m in steps(cuda.grid(1), count, cuda.gridsize(1)):
        base = m * n * n
        definite = True
        for j in range(n):
            for i in range(n):
                if i < j:
                    out[base + i * n + j] = 0
                else:
                    total = x[base + i * n + j]
                    if total - total != 0:
                        definite = False
                    for k in range(j):
                        total -= out[base + i * n + k] * out[base + j * n + k]
                    if i == j:
                        if not total > 0:
                            definite = False
                            total = nan
                        out[base + i * n + j] = sqrt(total)
                    else:
                        out[base + i * n + j] = total / out[base + j * n + j]
        if not definite:
            for i in range(n * n):
                out[base + i] = nan


def triangular_solve_kernel(
    count: Any, out: Any, a: Any, b: Any, n: Any, columns: Any, forward: Any, transpose: Any
) -> None:
    for cell in steps(cuda.grid(1), count, cuda.gridsize(1)):
        m = quotient(cell, columns)
        base, first = m * n * n, m * n * columns + cell - m * columns
        for s in range(n):
            i = s if forward else n - 1 - s
            total = b[first + i * columns]
            for t in range(s):
                j = t if forward else n - 1 - t
                total -= a[base + (j * n + i if transpose else i * n + j)] * out[first + j * columns]
            out[first + i * columns] = total / a[base + i * n + i]


def solve_kernel(count: Any, out: Any, a: Any, n: Any, columns: Any, nan: Any) -> None:
    """Eliminate with row exchanges, overwriting `a`, and b, which is in `out` at first."""
    for m in steps(cuda.grid(1), count, cuda.gridsize(1)):
        base, first = m * n * n, m * n * columns
        regular = True
        for i in range(n * n):
            if a[base + i] - a[base + i] != 0:
                regular = False
        for j in range(n):
            best = j
            for i in range(j + 1, n):
                if abs(a[base + i * n + j]) > abs(a[base + best * n + j]):
                    best = i
            if a[base + best * n + j] == 0:
                regular = False
            else:
                for k in range(n):
                    upper, lower = base + j * n + k, base + best * n + k
                    held = a[upper]
                    a[upper] = a[lower]
                    a[lower] = held
                for k in range(columns):
                    upper, lower = first + j * columns + k, first + best * columns + k
                    held = out[upper]
                    out[upper] = out[lower]
                    out[lower] = held
                for i in range(j + 1, n):
                    factor = a[base + i * n + j] / a[base + j * n + j]
                    for k in range(j + 1, n):
                        a[base + i * n + k] -= factor * a[base + j * n + k]
                    for k in range(columns):
                        out[first + i * columns + k] -= factor * out[first + j * columns + k]
        for s in range(n):
            i = n - 1 - s
            for k in range(columns):
                total = out[first + i * columns + k]
                for j in range(i + 1, n):
                    total -= a[base + i * n + j] * out[first + j * columns + k]
                out[first + i * columns + k] = total / a[base + i * n + i] if regular else nan


def cholesky(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(cholesky_kernel, math.prod(x.shape[:-2]), out, x, np.int32(x.shape[-1]), NAN)
    return (out,)


def triangular_solve(
    device: Device, types: Types, a: DeviceBuffer, b: DeviceBuffer, lower: bool, transpose: bool
) -> tuple[DeviceBuffer, ...]:
    out, columns = device.empty(types[0]), b.shape[-1]
    numbers = [np.int32(n) for n in (a.shape[-1], columns, lower != transpose, transpose)]
    device.each(triangular_solve_kernel, math.prod(b.shape[:-2]) * columns, out, a, b, *numbers)
    return (out,)


def solve(device: Device, types: Types, a: DeviceBuffer, b: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out, work = device.empty(types[0]), device.empty(TensorType(a.shape, a.dtype))
    copy(device, b.shape, out, b, strides=row_major(b.shape))
    copy(device, a.shape, work, a, strides=row_major(a.shape))
    numbers = np.int32(a.shape[-1]), np.int32(b.shape[-1])
    device.each(solve_kernel, math.prod(a.shape[:-2]), out, work, *numbers, NAN)
    return (out,)


KERNELS: dict[Primitive, Entry] = {SOLVE: solve, TRIANGULAR_SOLVE: triangular_solve, CHOLESKY: cholesky}
