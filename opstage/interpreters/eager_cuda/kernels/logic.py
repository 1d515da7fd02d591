"""Kernels: dtypes, and creation of tensors. A mask is a byte, 0 or 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.catalogue.logic import CAST, DETACH, FULL, IOTA
from ....ops.primitive import Primitive
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda
from .launches import Entry, Types, scalar
from .pointwise import pointwise

YES, NO = np.uint8(1), np.uint8(0)


def fill_kernel(count: Any, out: Any, value: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = value


def iota_kernel(count: Any, out: Any, extent: Any, inner: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = remainder(quotient(i, inner), extent)


_cast = pointwise(CAST)


def cast(device: Device, types: Types, x: DeviceBuffer, dtype: str) -> tuple[DeviceBuffer, ...]:
    return (x,) if x.dtype == types[0].dtype else _cast(device, types, x, dtype=dtype)


def full(device: Device, types: Types, shape: Any, value: Any, dtype: str) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(fill_kernel, out.size, out, scalar(value, out.dtype))
    return (out,)


def iota(device: Device, types: Types, shape: Any, axis: int, dtype: str) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(iota_kernel, out.size, out, np.int32(shape[axis]), np.int32(math.prod(shape[axis + 1 :])))
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    CAST: cast,
    DETACH: lambda device, types, x: (x,),
    FULL: full,
    IOTA: iota,
}
