"""Products of matrices, by what the device has for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from ....ops.types import TensorType
from ...gpu.buffer import LARGEST, DeviceBuffer
from ...gpu.device.interface import Device
from ...gpu.device.matrices import MatrixLayout
from .launches import Entry, Types
from .logic import fill_kernel
from .strided import copy

EVEN = 4
"""Numbers that a library reads and writes at once: 16 bytes."""
NARROW = 64
"""Columns below which a product is less work than the copy."""
SMALL = 1 << 12
"""Numbers below which the launch of the copy, some µs, is longer than what it spares."""


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
    """`Device.product`, of matrices that may be empty."""
    if not out.size:
        return
    if x.size:
        by_even_rows(device, out, x, y, x_transposed=x_transposed, y_transposed=y_transposed, bias=bias)
    elif bias is None:
        device.each(fill_kernel, out.size, out, np.float32(0))
    else:
        copy(device, out.shape, out, bias, strides=[0] * (len(out.shape) - 1) + [1])


def by_even_rows(device: Device, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
    """`Device.product`, whose rows are written EVEN apart and copied together where they are of another length.

    A library writes float32 four at a time where every row begins at a multiple of four, and one at a time elsewhere,
    at half the rate: so it is with the head of a language model, whose vocabulary may have any size. The copy moves
    each number twice, a few percent of what a product of hundreds of numbers for each takes. The rows that lie apart
    are given back right after it.
    """
    *batch, rows, columns = out.shape
    apart = columns + -columns % EVEN
    few = columns < NARROW or out.size < SMALL
    if apart == columns or few or out.size // columns * apart > LARGEST:
        device.product(out, x, y, **more)
        return
    wide = device.empty(TensorType((*batch, rows, apart), out.dtype))
    device.product(wide, x, y, out_layout=MatrixLayout(rows, columns, apart, rows * apart), **more)
    copy(device, (math.prod((*batch, rows)), columns), out, wide, out_strides=[columns, 1], strides=[apart, 1])


def product(device: Device, types: Types, x: DeviceBuffer, y: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    multiply(device, out, x, y)
    return (out,)


def linear(device: Device, types: Types, weight: DeviceBuffer, *rest: DeviceBuffer, has_bias: bool) -> Any:
    """x·weightᵀ + bias, with one product for all leading axes of x."""
    out, x = device.empty(types[0]), rest[-1]
    (columns, extent), rows = weight.shape, math.prod(x.shape[:-1])
    matrices = out.reshaped((rows, columns)), x.reshaped((rows, extent))
    multiply(device, *matrices, weight, y_transposed=True, bias=rest[0] if has_bias else None)
    return (out,)


KERNELS: dict[Primitive, Entry] = {MATMUL: product, BMM: product, LINEAR: linear}
