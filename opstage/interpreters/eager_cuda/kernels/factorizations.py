"""Kernels: orthogonal factors. One thread per matrix, so stacks of small ones are fast, but a large one is not.

Uses rotations (Jacobi; Golub and Van Loan, section 8.5) until none is needed. Matrices are first divided by their
largest entry, so that no square overflows. `x - x != 0` tests for nan or infinity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cuda, device_function, sqrt, steps
from ....ops.factorization import EIGH, QR, SVD
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .elementwise import Entry, Types
from .layout import copy, row_major

NAN, ZERO, ONE, TWO = (np.float32(x) for x in (np.nan, 0, 1, 2))
LEADING = np.float32(0.618)
CLOSE = np.float32(2.0**-27)
"""The fraction of both diagonal entries that an off-diagonal entry must exceed to be rotated."""
TINY = np.float32(1e-18)
"""The fraction of the largest entry below which a column counts as 0, since its square loses digits."""
SWEEPS = np.int32(40)
"""The limit of sweeps of rotations; about ten are needed."""


@device_function
def tangent(x: Any, y: Any, between: Any, zero: Any, one: Any, two: Any) -> Any:
    """Return the tangent of the smaller angle that diagonalises [[x, between], [between, y]]."""
    ratio = (y - x) / (two * between)
    root = sqrt(one + ratio * ratio)
    return one / (ratio + root) if ratio >= zero else one / (ratio - root)


@device_function
def negative(vectors: Any, first: Any, step: Any, count: Any, leading: Any, zero: Any) -> Any:
    """Return whether the first large entry of a vector is negative."""
    greatest, found, below = zero, False, False
    for i in range(count):
        greatest = max(greatest, abs(vectors[first + i * step]))
    for i in range(count):
        if not found and abs(vectors[first + i * step]) >= leading * greatest:
            found, below = True, vectors[first + i * step] < 0
    return below


def eigh_kernel(
    count: Any,
    values: Any,
    vectors: Any,
    a: Any,
    n: Any,
    sweeps: Any,
    close: Any,
    leading: Any,
    nan: Any,
    zero: Any,
    one: Any,
    two: Any,
) -> None:
    """Compute eigenvalues and vectors, reading the lower triangle of `a` and overwriting it."""
    for m in steps(cuda.grid(1), count, cuda.gridsize(1)):
        base = m * n * n
        finite, greatest = True, zero
        for i in range(n):
            for j in range(n):
                vectors[base + i * n + j] = one if i == j else zero
            for j in range(i + 1):
                entry = a[base + i * n + j]
                if entry - entry != 0:
                    finite = False
                greatest = max(greatest, abs(entry))
        moved = finite and greatest > 0
        if moved:
            for i in range(n):
                for j in range(i + 1):
                    entry = a[base + i * n + j] / greatest
                    a[base + i * n + j] = entry
                    a[base + j * n + i] = entry
        for _ in range(sweeps):
            if not moved:
                break
            moved = False
            for p in range(n):
                for q in range(p + 1, n):
                    x, y, between = a[base + p * n + p], a[base + q * n + q], a[base + p * n + q]
                    if abs(between) > close * min(abs(x), abs(y)):
                        moved = True
                        t = tangent(x, y, between, zero, one, two)
                        c = one / sqrt(one + t * t)
                        s = t * c
                        a[base + p * n + p] = x - t * between
                        a[base + q * n + q] = y + t * between
                        a[base + p * n + q] = zero
                        a[base + q * n + p] = zero
                        for r in range(n):
                            if r != p and r != q:
                                x, y = a[base + r * n + p], a[base + r * n + q]
                                a[base + r * n + p] = c * x - s * y
                                a[base + p * n + r] = c * x - s * y
                                a[base + r * n + q] = s * x + c * y
                                a[base + q * n + r] = s * x + c * y
                            x, y = vectors[base + r * n + p], vectors[base + r * n + q]
                            vectors[base + r * n + p] = c * x - s * y
                            vectors[base + r * n + q] = s * x + c * y
        for j in range(n):
            best = j
            for i in range(j + 1, n):
                if a[base + i * n + i] < a[base + best * n + best]:
                    best = i
            held = a[base + best * n + best]
            a[base + best * n + best] = a[base + j * n + j]
            values[m * n + j] = held * greatest if finite else nan
            for r in range(n):
                held = vectors[base + r * n + best]
                vectors[base + r * n + best] = vectors[base + r * n + j]
                vectors[base + r * n + j] = held
            below = negative(vectors, base + j, n, n, leading, zero)
            for r in range(n):
                if not finite:
                    vectors[base + r * n + j] = nan
                elif below:
                    vectors[base + r * n + j] = -vectors[base + r * n + j]


@device_function
def reflect(x: Any, at: Any, width: Any, v: Any, first: Any, step: Any, count: Any, factor: Any) -> None:
    """Apply x - factor·v·(vᵀ·x) to a column x; the entry at `at` corresponds to the first of v, which is 1."""
    total = x[at]
    for i in range(1, count):
        total += v[first + i * step] * x[at + i * width]
    total *= factor
    x[at] -= total
    for i in range(1, count):
        x[at + i * width] -= total * v[first + i * step]


def qr_kernel(
    count: Any, q: Any, r: Any, a: Any, factors: Any, rows: Any, columns: Any, nan: Any, zero: Any, one: Any
) -> None:
    """Factor by reflections (Householder; Golub and Van Loan, section 5.2), overwriting `a` with them and R."""
    k = min(rows, columns)
    for m in steps(cuda.grid(1), count, cuda.gridsize(1)):
        base, of_q, of_r = m * rows * columns, m * rows * k, m * k * columns
        finite = True
        for i in range(rows * columns):
            if a[base + i] - a[base + i] != 0:
                finite = False
        for j in range(k):
            at, greatest, square = base + j * columns + j, zero, zero
            for i in range(rows - j):
                greatest = max(greatest, abs(a[at + i * columns]))
            below = False
            for i in range(rows - j):
                entry = a[at + i * columns] / greatest if greatest > 0 else zero
                square += entry * entry
                if i > 0 and entry != 0:
                    below = True
            factors[m * k + j] = zero
            if below:
                size = greatest * sqrt(square)
                pivot = a[at]
                if pivot > 0:
                    size = -size
                factors[m * k + j] = (size - pivot) / size
                for i in range(1, rows - j):
                    a[at + i * columns] /= pivot - size
                a[at] = size
                for c in range(j + 1, columns):
                    reflect(a, base + j * columns + c, columns, a, at, columns, rows - j, factors[m * k + j])
        for i in range(rows):
            for j in range(k):
                q[of_q + i * k + j] = one if i == j else zero
        for s in range(k):
            j = k - 1 - s
            for c in range(j, k):
                at = base + j * columns + j
                reflect(q, of_q + j * k + c, k, a, at, columns, rows - j, factors[m * k + j])
        for j in range(k):
            turned = a[base + j * columns + j] < 0
            for i in range(rows):
                entry = q[of_q + i * k + j]
                q[of_q + i * k + j] = nan if not finite else -entry if turned else entry
            for c in range(columns):
                entry = a[base + j * columns + c] if c >= j else zero
                r[of_r + j * columns + c] = nan if not finite else -entry if turned and c >= j else entry


@device_function
def complete(x: Any, base: Any, down: Any, across: Any, rows: Any, j: Any, zero: Any, one: Any) -> None:
    """Set column j of x to a unit vector orthogonal to those before: from the axis with the least projection, twice."""
    axis, least = 0, one + one
    for i in range(rows):
        along = zero
        for c in range(j):
            entry = x[base + i * down + c * across]
            along += entry * entry
        if along < least:
            axis, least = i, along
    at = base + j * across
    for i in range(rows):
        x[at + i * down] = one if i == axis else zero
    for _ in range(2):
        for c in range(j):
            along = zero
            for i in range(rows):
                along += x[base + i * down + c * across] * x[at + i * down]
            for i in range(rows):
                x[at + i * down] -= along * x[base + i * down + c * across]
        square = zero
        for i in range(rows):
            square += x[at + i * down] * x[at + i * down]
        for i in range(rows):
            x[at + i * down] /= sqrt(square)


def svd_kernel(
    count: Any,
    x: Any,
    values: Any,
    v: Any,
    a: Any,
    rows: Any,
    columns: Any,
    tall: Any,
    sweeps: Any,
    close: Any,
    tiny: Any,
    leading: Any,
    nan: Any,
    zero: Any,
    one: Any,
    two: Any,
) -> None:
    """Rotate pairs of columns (one-sided Jacobi) of the matrix, or of its transpose if it is not tall.

    So it has at least as many rows as columns. `a` is overwritten; x is the factor of its size, U or Vᵀ, v the other.
    """
    down, across = (columns, 1) if tall else (1, rows)
    of_v, step = (1, columns) if tall else (columns, 1)
    for m in steps(cuda.grid(1), count, cuda.gridsize(1)):
        base, square = m * rows * columns, m * columns * columns
        finite, greatest = True, zero
        for i in range(rows * columns):
            if a[base + i] - a[base + i] != 0:
                finite = False
            greatest = max(greatest, abs(a[base + i]))
        moved = finite and greatest > 0
        if moved:
            for i in range(rows * columns):
                a[base + i] /= greatest
        for i in range(columns):
            for j in range(columns):
                v[square + i * of_v + j * step] = one if i == j else zero
        for _ in range(sweeps):
            if not moved:
                break
            moved = False
            for p in range(columns):
                for q in range(p + 1, columns):
                    first, second, between = zero, zero, zero
                    for i in range(rows):
                        y, z = a[base + i * down + p * across], a[base + i * down + q * across]
                        first += y * y
                        second += z * z
                        between += y * z
                    if abs(between) > close * sqrt(first) * sqrt(second):
                        moved = True
                        t = tangent(first, second, between, zero, one, two)
                        c = one / sqrt(one + t * t)
                        s = t * c
                        for i in range(rows):
                            y, z = a[base + i * down + p * across], a[base + i * down + q * across]
                            a[base + i * down + p * across] = c * y - s * z
                            a[base + i * down + q * across] = s * y + c * z
                        for i in range(columns):
                            y, z = v[square + i * of_v + p * step], v[square + i * of_v + q * step]
                            v[square + i * of_v + p * step] = c * y - s * z
                            v[square + i * of_v + q * step] = s * y + c * z
        for j in range(columns):
            total = zero
            for i in range(rows):
                total += a[base + i * down + j * across] * a[base + i * down + j * across]
            values[m * columns + j] = sqrt(total)
        for j in range(columns):
            best = j
            for c in range(j + 1, columns):
                if values[m * columns + c] > values[m * columns + best]:
                    best = c
            size = values[m * columns + best]
            values[m * columns + best] = values[m * columns + j]
            values[m * columns + j] = size * greatest if finite else nan
            for i in range(columns):
                held = v[square + i * of_v + best * step]
                v[square + i * of_v + best * step] = v[square + i * of_v + j * step]
                v[square + i * of_v + j * step] = held
            for i in range(rows):
                held = a[base + i * down + best * across]
                a[base + i * down + best * across] = a[base + i * down + j * across]
                x[base + i * down + j * across] = held / size if size > tiny else zero
            if not size > tiny:
                complete(x, base, down, across, rows, j, zero, one)
            if tall:
                below = negative(x, base + j * across, down, rows, leading, zero)
            else:
                below = negative(v, square + j * step, of_v, columns, leading, zero)
            for i in range(columns):
                at = square + i * of_v + j * step
                v[at] = nan if not finite else -v[at] if below else v[at]
            for i in range(rows):
                at = base + i * down + j * across
                x[at] = nan if not finite else -x[at] if below else x[at]


def work(device: Device, x: DeviceBuffer) -> DeviceBuffer:
    """Return a copy to overwrite."""
    out = device.empty(TensorType(x.shape, x.dtype))
    copy(device, x.shape, out, x, strides=row_major(x.shape))
    return out


def eigh(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    values, vectors = (device.empty(each) for each in types)
    numbers = np.int32(x.shape[-1]), SWEEPS, CLOSE, LEADING, NAN, ZERO, ONE, TWO
    device.each(eigh_kernel, math.prod(x.shape[:-2]), values, vectors, work(device, x), *numbers)
    return values, vectors


def qr(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    q, r = (device.empty(each) for each in types)
    factors = device.empty(TensorType((*x.shape[:-2], q.shape[-1]), x.dtype))
    numbers = np.int32(x.shape[-2]), np.int32(x.shape[-1]), NAN, ZERO, ONE
    device.each(qr_kernel, math.prod(x.shape[:-2]), q, r, work(device, x), factors, *numbers)
    return q, r


def svd(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    u, s, vh = (device.empty(each) for each in types)
    m, n = x.shape[-2:]
    tall, rows, columns = m >= n, max(m, n), min(m, n)
    close = np.float32(2.0**-22 * math.sqrt(rows))  # sums of that many products are no more exact
    numbers = np.int32(rows), np.int32(columns), np.int32(tall), SWEEPS, close, TINY, LEADING, NAN, ZERO, ONE, TWO
    factors = (u, s, vh) if tall else (vh, s, u)
    device.each(svd_kernel, math.prod(x.shape[:-2]), *factors, work(device, x), *numbers)
    return u, s, vh


KERNELS: dict[Primitive, Entry] = {EIGH: eigh, QR: qr, SVD: svd}
