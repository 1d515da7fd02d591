"""Matrix products, by the device's method."""

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
"""Numbers below which launching the copy, some µs, takes longer than it saves."""


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
        by_even_rows(device, out, x, y, x_transposed=x_transposed, y_transposed=y_transposed, bias=bias)
    elif bias is None:
        device.each(fill_kernel, out.size, out, np.float32(0))
    else:
        copy(device, out.shape, out, bias, strides=[0] * (len(out.shape) - 1) + [1])


def by_even_rows(device: Device, out: DeviceBuffer, x: DeviceBuffer, y: DeviceBuffer, **more: Any) -> None:
    """Compute `Device.product`, with rows padded to a multiple of EVEN and then packed, if they have another length.

    A library writes four float32 at a time if every row starts at a multiple of four, and else one at a time, at half
    the rate, as for the head of a language model with any vocabulary size. The copy moves each number twice, a few
    percent of the time of a product of hundreds of terms per number. The padded rows are freed right after it.
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
    """Compute x·weightᵀ + bias, with one product for all leading axes of x."""
    out, x = device.empty(types[0]), rest[-1]
    (columns, extent), rows = weight.shape, math.prod(x.shape[:-1])
    matrices = out.reshaped((rows, columns)), x.reshaped((rows, extent))
    multiply(device, *matrices, weight, y_transposed=True, bias=rest[0] if has_bias else None)
    return (out,)


KERNELS: dict[Primitive, Entry] = {MATMUL: product, BMM: product, LINEAR: linear}
