"""What many entries of the kernel tables share: each element of one output from the same place of the operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops.types import DType, TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import steps
from ...gpu.device.interface import Device
from ...gpu.language import cuda, device_function

Kernel = Callable[..., None]
Entry = Callable[..., tuple[DeviceBuffer, ...]]
Types = tuple[TensorType, ...]


def unary_kernel(formula: Callable[[Any], Any]) -> Kernel:
    """out[i] = formula(x[i])."""
    f = device_function(formula)

    def kernel(count: Any, out: Any, x: Any) -> None:
        for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
            out[i] = f(x[i])

    return named(kernel, formula)


def binary_kernel(formula: Callable[[Any, Any], Any]) -> Kernel:
    """out[i] = formula(x[i], y[i])."""
    f = device_function(formula)

    def kernel(count: Any, out: Any, x: Any, y: Any) -> None:
        for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
            out[i] = f(x[i], y[i])

    return named(kernel, formula)


def ternary_kernel(formula: Callable[[Any, Any, Any], Any]) -> Kernel:
    """out[i] = formula(x[i], y[i], z[i])."""
    f = device_function(formula)

    def kernel(count: Any, out: Any, x: Any, y: Any, z: Any) -> None:
        for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
            out[i] = f(x[i], y[i], z[i])

    return named(kernel, formula)


def parametric_kernel(formula: Callable[[Any, Any], Any]) -> Kernel:
    """out[i] = formula(x[i], c), with a number c that is the same for all."""
    f = device_function(formula)

    def kernel(count: Any, out: Any, x: Any, c: Any) -> None:
        for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
            out[i] = f(x[i], c)

    return named(kernel, formula)


def named(kernel: Kernel, formula: Callable[..., Any]) -> Kernel:
    """The kernel under the name of its formula, by which errors and profiles call it."""
    kernel.__name__ = kernel.__qualname__ = formula.__name__
    return kernel


def called(name: str, formula: Any) -> Any:
    """The formula under a name of its own, where its factory has left none."""
    formula.__name__ = formula.__qualname__ = name
    return formula


def elementwise(kernel: Kernel) -> Entry:
    """The entry of an op whose output has the shape of its operands."""

    def entry(device: Device, types: Types, *xs: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
        out = device.empty(types[0])
        device.each(kernel, out.size, out, *xs)
        return (out,)

    return entry


def scalar(value: Any, dtype: DType) -> Any:
    """A static number as a kernel takes it: rounded once to the dtype of the tensor that it meets."""
    if dtype.kind == "f":
        return dtype.type(float(value))
    return dtype.type(int(value)) if dtype.kind != "b" else np.uint8(bool(value))
