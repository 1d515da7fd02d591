"""Products of matrices, by what the device has for them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.primitive import Primitive
from ..buffer import DeviceBuffer
from ..device.interface import Device
from .launches import Entry, Types
from .logic import fill_kernel
from .strided import copy


def multiply(
    device: Device,
    out: DeviceBuffer,
    x: DeviceBuffer,
    y: DeviceBuffer,
    *,
    x_turned: bool = False,
    y_turned: bool = False,
    bias: DeviceBuffer | None = None,
) -> None:
    """`Device.product`, of matrices that may be empty."""
    if not out.size:
        return
    if x.size:
        device.product(out, x, y, x_turned=x_turned, y_turned=y_turned, bias=bias)
    elif bias is None:
        device.each(fill_kernel, out.size, out, np.float32(0))
    else:
        copy(device, out.shape, out, bias, strides=[0] * (len(out.shape) - 1) + [1])


def product(device: Device, types: Types, x: DeviceBuffer, y: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    multiply(device, out, x, y)
    return (out,)


def linear(device: Device, types: Types, weight: DeviceBuffer, *rest: DeviceBuffer, has_bias: bool) -> Any:
    """x·weightᵀ + bias, with one product for all leading axes of x."""
    out, x = device.empty(types[0]), rest[-1]
    (columns, extent), rows = weight.shape, math.prod(x.shape[:-1])
    matrices = out.reshaped((rows, columns)), x.reshaped((rows, extent))
    multiply(device, *matrices, weight, y_turned=True, bias=rest[0] if has_bias else None)
    return (out,)


KERNELS: dict[Primitive, Entry] = {MATMUL: product, BMM: product, LINEAR: linear}
