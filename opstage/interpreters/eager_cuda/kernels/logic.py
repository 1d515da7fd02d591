"""Kernels: masks, dtypes, and tensors made from nothing. A mask is a byte, 0 or 1."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from ....ops.catalogue.logic import (
    CAST,
    DETACH,
    EQUAL,
    FULL,
    IOTA,
    LESS,
    LESS_EQUAL,
    LOGICAL_AND,
    LOGICAL_NOT,
    SELECT,
)
from ....ops.primitive import Primitive
from ....ops.types import DType, as_dtype
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import quotient, remainder, steps
from ...gpu.device.interface import Device, pointer_type
from ...gpu.language import cuda
from .launches import Entry, Kernel, Types, binary_kernel, elementwise, scalar, ternary_kernel, unary_kernel

YES, NO = np.uint8(1), np.uint8(0)


def less(x: Any, y: Any) -> Any:
    return YES if x < y else NO


def less_equal(x: Any, y: Any) -> Any:
    return YES if x <= y else NO


def equal(x: Any, y: Any) -> Any:
    return YES if x == y else NO


def logical_and(x: Any, y: Any) -> Any:
    return x & y


def logical_not(x: Any) -> Any:
    return x ^ YES


def select(mask: Any, x: Any, y: Any) -> Any:
    return x if mask else y


def fill_kernel(count: Any, out: Any, value: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = value


def iota_kernel(count: Any, out: Any, extent: Any, inner: Any) -> None:
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = remainder(quotient(i, inner), extent)


def to_mask(x: Any) -> Any:
    return YES if x != 0 else NO


@cache
def _cast_kernel(dtype: DType) -> Kernel:
    target = pointer_type(dtype).type

    def cast(x: Any) -> Any:
        return target(x)

    return unary_kernel(cast)


_TO_MASK = unary_kernel(to_mask)


def cast(device: Device, types: Types, x: DeviceBuffer, dtype: str) -> tuple[DeviceBuffer, ...]:
    target = as_dtype(dtype)
    if target == x.dtype:
        return (x,)
    out = device.empty(types[0])
    device.each(_TO_MASK if target.kind == "b" else _cast_kernel(target), out.size, out, x)
    return (out,)


def full(device: Device, types: Types, shape: Any, value: Any, dtype: str) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(fill_kernel, out.size, out, scalar(value, out.dtype))
    return (out,)


def iota(device: Device, types: Types, shape: Any, axis: int, dtype: str) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(iota_kernel, out.size, out, np.int32(shape[axis]), np.int32(math.prod(shape[axis + 1 :])))
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    LESS: elementwise(binary_kernel(less)),
    LESS_EQUAL: elementwise(binary_kernel(less_equal)),
    EQUAL: elementwise(binary_kernel(equal)),
    LOGICAL_AND: elementwise(binary_kernel(logical_and)),
    LOGICAL_NOT: elementwise(unary_kernel(logical_not)),
    SELECT: elementwise(ternary_kernel(select)),
    CAST: cast,
    DETACH: lambda device, types, x: (x,),
    FULL: full,
    IOTA: iota,
}
