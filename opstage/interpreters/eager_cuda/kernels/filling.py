"""Kernels: initial values of parameters, computed on the device, with the bits of `opstage.init`.

An element is computed in float64 and rounded once, as on the host. A compiler may fuse a product and a sum into one
instruction with one rounding. So that a uniform value has the host's bits either way, its product is a sum of two exact
ones: an integer below 2^24 times the upper 29 and times the lower 24 bits of the width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ....init.schemes import Constant, Elementary, Normal, Uniform
from ....ops.types import FLOAT32, TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import steps
from ...gpu.device.interface import Device
from ...gpu.language import cos, cuda, device_function, log, sqrt
from ...scalar import random as formulas
from .launches import scalar
from .logic import fill_kernel

Fill = Callable[[Device, Any, tuple[int, ...]], DeviceBuffer]

_integer = device_function(formulas.uniform_integer(np.uint64, device_function(formulas.splitmix64(np.uint64))))
_UNIT = 2.0**-24
_TURN = 2.0 * math.pi
_TWO, _ONE = np.uint64(2), np.uint64(1)


def uniform_fill_kernel(count: Any, out: Any, key: Any, low: Any, upper: Any, lower: Any) -> None:
    """Compute out[i] = low + (upper + lower) * u_i, with u_i an integer of 24 bits."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        u = np.float64(_integer(key, np.uint64(i)))
        out[i] = np.float32((u * upper + u * lower) + low)


def normal_fill_kernel(count: Any, out: Any, key: Any, mean: Any, std: Any) -> None:
    """Compute out[i] = mean + std * z_i, by Box and Muller's transform of elements 2i and 2i + 1 of the uniform
    stream."""
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        first = np.uint64(i) * _TWO
        radius = sqrt(-2.0 * log(1.0 - np.float64(_integer(key, first)) * _UNIT))
        angle = np.float64(_integer(key, first + _ONE)) * _UNIT * _TURN
        out[i] = np.float32(mean + std * (radius * cos(angle)))


def constant(device: Device, scheme: Constant, shape: tuple[int, ...]) -> DeviceBuffer:
    out = device.empty(TensorType(shape, FLOAT32))
    device.each(fill_kernel, out.size, out, scalar(scheme.value, FLOAT32))
    return out


def uniform(device: Device, scheme: Uniform, shape: tuple[int, ...]) -> DeviceBuffer:
    width = np.float64(scheme.high - scheme.low)
    upper = (width.view(np.uint64) >> np.uint64(24) << np.uint64(24)).view(np.float64)
    out = device.empty(TensorType(shape, FLOAT32))
    parts = upper * _UNIT, (width - upper) * _UNIT
    device.each(uniform_fill_kernel, out.size, out, np.uint64(scheme.key), np.float64(scheme.low), *parts)
    return out


def normal(device: Device, scheme: Normal, shape: tuple[int, ...]) -> DeviceBuffer:
    out = device.empty(TensorType(shape, FLOAT32))
    numbers = np.float64(scheme.mean), np.float64(scheme.std)
    device.each(normal_fill_kernel, out.size, out, np.uint64(scheme.key), *numbers)
    return out


FILLS: Mapping[type[Elementary], Fill] = MappingProxyType({Constant: constant, Uniform: uniform, Normal: normal})
"""The functions that fill float32 memory for each scheme; one without an entry, such as `Flat`, runs on the host."""
