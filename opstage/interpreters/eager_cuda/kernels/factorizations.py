"""Kernels: orthogonal factors. A thread does a matrix, so stacks of small ones are quick, and one large one is not.

By rotations (Jacobi; Golub and Van Loan, section 8.5) that end when none is left to do. Matrices are divided by their
greatest entry first, so that no square overflows. `x - x != 0` where x is nan or infinite.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.factorizations import EIGH, QR
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda, device_function, sqrt
from .launches import Entry, Types
from .strided import copy, row_major

NAN, ZERO, ONE, TWO = (np.float32(x) for x in (np.nan, 0, 1, 2))
LEADING = np.float32(0.618)
CLOSE = np.float32(2.0**-27)
"""The part of both diagonal entries that an entry between them must exceed to be rotated away."""
SWEEPS = np.int32(40)
"""Of rotations; about ten are needed."""


@device_function
def tangent(x: Any, y: Any, between: Any, zero: Any, one: Any, two: Any) -> Any:
    """Of the lesser angle that makes [[x, between], [between, y]] diagonal."""
    ratio = (y - x) / (two * between)
    root = sqrt(one + ratio * ratio)
    return one / (ratio + root) if ratio >= zero else one / (ratio - root)


@device_function
def negative(vectors: Any, first: Any, step: Any, count: Any, leading: Any, zero: Any) -> Any:
    """Whether the first great entry of a vector is negative."""
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
    """`a`, of which the lower triangle is read, is written over."""
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
    """x - factor·v·(vᵀ·x) of a column x, whose entry beside the first of v, 1, is at `at`."""
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
    """By reflections (Householder; Golub and Van Loan, section 5.2): `a` is written over by them and by R."""
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


def work(device: Device, x: DeviceBuffer) -> DeviceBuffer:
    """A copy to be written over."""
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


KERNELS: dict[Primitive, Entry] = {EIGH: eigh, QR: qr}
