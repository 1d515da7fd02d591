"""Kernels: matrix products, by the device's method, and linear systems, Cholesky factors, determinants and cofactors,
by one thread per matrix or column.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from ....compiler.gpu.buffer import LARGEST, DeviceBuffer, MatrixLayout, layout_of
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cuda, log, quotient, remainder, sqrt, steps, unrolled_steps
from ....ops.linalg import CHOLESKY, COFACTOR, DET, SLOGDET, SOLVE, TRIANGULAR_SOLVE
from ....ops.matmul import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .elementwise import Entry, Types
from .layout import copy, fill_kernel, row_major

NAN, ZERO, ONE, INF = (np.float32(x) for x in (np.nan, 0, 1, np.inf))


# Padded rows ----------------------------------------------------------------------------------------------------------

# A library reads and writes four float32 at a time where rows have a multiple of four, start at one and have no rest,
# and else one at a time. On an H100 a product of (8192, 768) and (768, 50257), as of the head of a language model,
# and those of its cotangents then take 2.5 to 8 times as long with tensor cores, and their best kernels in float32
# are left out. The copies move each number twice, a few percent of the time of a product of hundreds of terms per
# number. Padded matrices are freed right after the product.

_Operand: TypeAlias = tuple[DeviceBuffer, MatrixLayout]

EVEN = 4
"""Numbers that a library reads and writes at once: 16 bytes."""
NARROW = 64
"""Length of rows below which a product is less work than the copy."""
OFTEN = 512
"""Uses of a number in a product, from which a copy of it, 8 bytes at 3·10^12 per second, takes less time than is saved,
at least a quarter of 2 operations at 5·10^13 per second for each."""
SMALL = 1 << 12
"""Numbers below which launching the copy, some µs, takes longer than it saves."""


def padded(length: int) -> int:
    """Return the least multiple of EVEN that is at least `length`."""
    return length + -length % EVEN


def rows_kernel(
    count: Any,
    lanes: Any,
    out: Any,
    across: Any,
    tall: Any,
    x: Any,
    first: Any,
    rows: Any,
    columns: Any,
    row: Any,
    matrix: Any,
) -> None:
    """Copy stacked matrices of a layout to contiguous ones of `tall` rows of `across` numbers, `count` rows in total:
    out[b, i, j] = x[b, i, j], and 0 where x has no row i or column j."""
    lane = remainder(cuda.threadIdx.x, lanes)
    for each in steps(quotient(cuda.grid(1), lanes), count, quotient(cuda.gridsize(1), lanes)):
        b = quotient(each, tall)
        i = each - b * tall
        source = first + b * matrix + i * row
        kept = columns if i < rows else 0
        for j in unrolled_steps(lane, across, lanes):
            out[each * across + j] = x[source + j] if j < kept else ZERO


def _copy(device: Device, out: DeviceBuffer, tall: int, across: int, x: DeviceBuffer, layout: MatrixLayout) -> None:
    """Launch `rows_kernel` on all of out."""
    count = out.size // across
    of = layout.first, layout.rows, layout.columns, layout.row, layout.matrix
    device.each_row(rows_kernel, count, across, out, np.int32(across), np.int32(tall), x, *map(np.int32, of))


def _apart(device: Device, x: DeviceBuffer, layout: MatrixLayout, stack: int, rows: int, columns: int) -> _Operand:
    """Copy matrices to ones of `rows` rows and `columns` columns, with zeros where x has none and rows moved apart."""
    across, stack = padded(columns), stack if layout.matrix else 1
    out = device.empty(TensorType((stack, rows, across), x.dtype))
    _copy(device, out, rows, across, x, layout)
    return out, MatrixLayout(rows, columns, across, rows * across if layout.matrix else 0)


def padded_product(
    device: Device,
    out: DeviceBuffer,
    x: DeviceBuffer,
    y: DeviceBuffer,
    *,
    x_transposed: bool = False,
    y_transposed: bool = False,
    x_layout: MatrixLayout | None = None,
    y_layout: MatrixLayout | None = None,
    bias: DeviceBuffer | None = None,
) -> None:
    """Compute `Device.product`, with copies in place of x, y and out where they make it faster."""
    *batch, rows, columns = out.shape
    stack = math.prod(batch)
    of_x, of_y = layout_of(x, x_layout), layout_of(y, y_layout)
    terms = of_x.rows if x_transposed else of_x.columns
    across = padded(columns) if columns >= NARROW and out.size >= SMALL else columns
    wide = across if rows >= OFTEN else columns
    along_rows = x_transposed and not y_transposed  # of both operands, so that no row has a rest of terms
    long = padded(terms) if min(rows, columns) >= OFTEN and terms >= NARROW and not along_rows else terms
    fits = stack * max(rows * across, padded(rows) * long, long * padded(wide)) <= LARGEST
    if fits and (long != terms or _is_worth_it(of_x, columns)):
        sizes = (long, rows) if x_transposed else (rows, long)
        x, of_x = _apart(device, x, of_x, stack, *sizes)
    if fits and ((long, wide) != (terms, columns) or _is_worth_it(of_y, rows)):
        sizes = (wide, long) if y_transposed else (long, wide)
        y, of_y = _apart(device, y, of_y, stack, *sizes)
    given: dict[str, Any] = {
        "x_transposed": x_transposed,
        "y_transposed": y_transposed,
        "x_layout": of_x,
        "y_layout": of_y,
    }
    if not fits or across == columns:
        device.product(out, x, y, bias=bias, **given)
        return
    if bias is not None and wide != columns:
        bias, _ = _apart(device, bias, MatrixLayout(1, columns, columns, columns), 1, 1, wide)
    far = device.empty(TensorType((*batch, rows, across), out.dtype))
    device.product(far, x, y, bias=bias, out_layout=MatrixLayout(rows, wide, across, rows * across), **given)
    _copy(device, out, stack * rows, columns, far, MatrixLayout(stack * rows, columns, across, 0))


def _is_worth_it(layout: MatrixLayout, uses: int) -> bool:
    """Return whether rows that start anywhere are to be moved apart, where each number is used so often."""
    return layout.row % EVEN != 0 and uses >= OFTEN and layout.rows * layout.columns >= SMALL


# Ops ------------------------------------------------------------------------------------------------------------------


def multiply(
    device: Device,
    out: DeviceBuffer,
    x: DeviceBuffer,
    y: DeviceBuffer,
    *,
    x_transposed: bool = False,
    y_transposed: bool = False,
    bias: DeviceBuffer | None = None,
) -> None:
    """Compute `Device.product` for matrices that may be empty."""
    if not out.size:
        return
    if x.size:
        padded_product(device, out, x, y, x_transposed=x_transposed, y_transposed=y_transposed, bias=bias)
    elif bias is None:
        device.each(fill_kernel, out.size, out, np.float32(0))
    else:
        copy(device, out.shape, out, bias, strides=[0] * (len(out.shape) - 1) + [1])


def product(device: Device, types: Types, x: DeviceBuffer, y: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    multiply(device, out, x, y)
    return (out,)


def linear(device: Device, types: Types, weight: DeviceBuffer, *rest: DeviceBuffer, has_bias: bool) -> Any:
    """Compute x·weightᵀ + bias, with one product for all leading axes of x."""
    out, x = device.empty(types[0]), rest[-1]
    (columns, extent), rows = weight.shape, math.prod(x.shape[:-1])
    matrices = out.reshaped((rows, columns)), x.reshaped((rows, extent))
    multiply(device, *matrices, weight, y_transposed=True, bias=rest[0] if has_bias else None)
    return (out,)


# Linear systems -------------------------------------------------------------------------------------------------------

# So stacks of small matrices are fast, but one large matrix is not. `x - x != 0` tests for nan or infinity.

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


# Determinants ---------------------------------------------------------------------------------------------------------

# `x - x != 0` tests for nan or infinity.


def det_kernel(
    count: Any, out: Any, logs: Any, a: Any, n: Any, apart: Any, nan: Any, zero: Any, one: Any, inf: Any
) -> None:
    """Eliminate with row exchanges, overwriting `a`. If `apart`, return the sign, and the logarithm in `logs`."""
    for m in steps(cuda.grid(1), count, cuda.gridsize(1)):
        base = m * n * n
        value, total, finite = one, zero, True
        for i in range(n * n):
            if a[base + i] - a[base + i] != 0:
                finite = False
        for j in range(n):
            best = j
            for i in range(j + 1, n):
                if abs(a[base + i * n + j]) > abs(a[base + best * n + j]):
                    best = i
            pivot = a[base + best * n + j]
            if best != j:
                value = -value
                for k in range(j, n):
                    held = a[base + j * n + k]
                    a[base + j * n + k] = a[base + best * n + k]
                    a[base + best * n + k] = held
            if not apart:
                value *= pivot
            elif pivot == 0:
                value, total = zero, -inf
            else:
                total += log(abs(pivot))
                if pivot < 0:
                    value = -value
            if pivot != 0:
                for i in range(j + 1, n):
                    factor = a[base + i * n + j] / pivot
                    for k in range(j + 1, n):
                        a[base + i * n + k] -= factor * a[base + j * n + k]
        out[m] = value if finite else nan
        if apart:
            logs[m] = total if finite else nan


def cofactor_kernel(count: Any, out: Any, a: Any, rows: Any, swaps: Any, n: Any, nan: Any, zero: Any, one: Any) -> None:
    """Eliminate with full pivoting: R·a·Q = U with det(R·Q) = ±1, so adj(a) = ±Q·adj(U)·R.

    U = [[U₁, u], [0, d]] has the adjugate p·[[d·U₁⁻¹, -U₁⁻¹·u], [0, 1]], p = det(U₁): nothing is divided by d, which
    is 0 for a singular a. `a` is overwritten; R is computed in `rows`, and `swaps` has the exchanged columns.
    """
    for m in steps(cuda.grid(1), count, cuda.gridsize(1)):
        base = m * n * n
        side, finite = one, True
        for i in range(n):
            for j in range(n):
                rows[base + i * n + j] = one if i == j else zero
                if a[base + i * n + j] - a[base + i * n + j] != 0:
                    finite = False
        for j in range(n):
            best, column = j, j
            for i in range(j, n):
                for k in range(j, n):
                    if abs(a[base + i * n + k]) > abs(a[base + best * n + column]):
                        best, column = i, k
            swaps[m * n + j] = column
            if best != j:
                side = -side
                for k in range(n):
                    held = a[base + j * n + k]
                    a[base + j * n + k] = a[base + best * n + k]
                    a[base + best * n + k] = held
                    held = rows[base + j * n + k]
                    rows[base + j * n + k] = rows[base + best * n + k]
                    rows[base + best * n + k] = held
            if column != j:
                side = -side
                for i in range(n):
                    held = a[base + i * n + j]
                    a[base + i * n + j] = a[base + i * n + column]
                    a[base + i * n + column] = held
            pivot = a[base + j * n + j]
            if j < n - 1:
                side *= pivot
            if pivot != 0:
                for i in range(j + 1, n):
                    factor = a[base + i * n + j] / pivot
                    for k in range(j + 1, n):
                        a[base + i * n + k] -= factor * a[base + j * n + k]
                    for k in range(n):
                        rows[base + i * n + k] -= factor * rows[base + j * n + k]
        last = n - 1
        final = a[base + n * n - 1] if n > 0 else zero
        for s in range(last):
            i = last - 1 - s
            for k in range(n):
                if side == 0:
                    rows[base + i * n + k] = zero
                else:
                    total = final * rows[base + i * n + k] - a[base + i * n + last] * rows[base + last * n + k]
                    for j in range(i + 1, last):
                        total -= a[base + i * n + j] * rows[base + j * n + k]
                    rows[base + i * n + k] = total / a[base + i * n + i]
        for s in range(n):
            j = n - 1 - s
            column = int(swaps[m * n + j])
            for k in range(n):
                held = rows[base + j * n + k]
                rows[base + j * n + k] = rows[base + column * n + k]
                rows[base + column * n + k] = held
        for i in range(n):
            for k in range(n):
                out[base + i * n + k] = side * rows[base + k * n + i] if finite else nan


def _work(device: Device, x: DeviceBuffer) -> DeviceBuffer:
    work = device.empty(TensorType(x.shape, x.dtype))
    copy(device, x.shape, work, x, strides=row_major(x.shape))
    return work


def det(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out, work = device.empty(types[0]), _work(device, x)
    numbers = np.int32(x.shape[-1]), np.int32(0), NAN, ZERO, ONE, INF
    device.each(det_kernel, math.prod(x.shape[:-2]), out, out, work, *numbers)
    return (out,)


def slogdet(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    sign, logarithm, work = device.empty(types[0]), device.empty(types[1]), _work(device, x)
    numbers = np.int32(x.shape[-1]), np.int32(1), NAN, ZERO, ONE, INF
    device.each(det_kernel, math.prod(x.shape[:-2]), sign, logarithm, work, *numbers)
    return sign, logarithm


def cofactor(device: Device, types: Types, x: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out, work, rows = device.empty(types[0]), _work(device, x), device.empty(types[0])
    swaps = device.empty(TensorType(x.shape[:-1], x.dtype))
    numbers = np.int32(x.shape[-1]), NAN, ZERO, ONE
    device.each(cofactor_kernel, math.prod(x.shape[:-2]), out, work, rows, swaps, *numbers)
    return (out,)


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Entry] = {
    MATMUL: product,
    BMM: product,
    LINEAR: linear,
    SOLVE: solve,
    TRIANGULAR_SOLVE: triangular_solve,
    CHOLESKY: cholesky,
    DET: det,
    SLOGDET: slogdet,
    COFACTOR: cofactor,
}
