"""Kernels: matrix products by the device's method, with rows of any length by way of matrices with padded rows."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np

from ....compiler.gpu.buffer import LARGEST, DeviceBuffer, MatrixLayout, layout_of
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import ZERO, cuda, quotient, remainder, steps, unrolled_steps
from ....ops.matmul import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from .elementwise import Entry, Types
from .layout import copy, fill_kernel

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
    """Whether rows that start anywhere are to be moved apart, where each number is used so often."""
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


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Entry] = {
    MATMUL: product,
    BMM: product,
    LINEAR: linear,
}
