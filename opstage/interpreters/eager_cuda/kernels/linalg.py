"""Matrix products, by the device's method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from ...gpu.buffer import DeviceBuffer
from ...gpu.device.interface import Device
from . import padded
from .launches import Entry, Types
from .logic import fill_kernel
from .strided import copy


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
        padded.product(device, out, x, y, x_transposed=x_transposed, y_transposed=y_transposed, bias=bias)
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


KERNELS: dict[Primitive, Entry] = {MATMUL: product, BMM: product, LINEAR: linear}
