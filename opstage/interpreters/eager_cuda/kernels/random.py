"""Kernels: random tensors and initial values of parameters, with the same bits on every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ....compiler import scalar as formulas
from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cos, cos_pi, cuda, device_function, log, sqrt, steps
from ....init.schemes import Constant, Elementary, Normal, Uniform
from ....ops.primitive import Primitive
from ....ops.random import BERNOULLI_MASK, RAND_NORMAL, RAND_UNIFORM
from ....ops.splitmix import splitmix64 as splitmix64_of_host
from ....ops.types import FLOAT32, TensorType
from .elementwise import Entry, Kernel, Types, scalar
from .layout import fill_kernel

# Random tensors -------------------------------------------------------------------------------------------------------

_mix = device_function(formulas.splitmix64(np.uint64))
_integer = device_function(formulas.uniform_integer(np.uint64, _mix))
_UNIT = np.float32(2.0**-24)
ZERO, ONE = np.float32(0), np.float32(1)
MINUS_TWO, TWO = np.float32(-2), np.float32(2)
_KEY = TensorType((1,), np.dtype(np.int64))  # 64 bits, of any meaning


def key_kernel(key: Any, start: Any, step: Any, site: Any) -> None:
    """Compute key = mix(mix(start + step) + site), with start = mix(seed)."""
    key[0] = np.int64(_mix(_mix(start + np.uint64(step[0])) + site))


def next_key_kernel(key: Any, before: Any, iteration: Any) -> None:
    """Compute the key of one iteration of a loop."""
    key[0] = np.int64(_mix(np.uint64(before[0]) + np.uint64(iteration[0])))


def uniform_kernel(count: Any, out: Any, key: Any) -> None:
    stream = np.uint64(key[0])
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = np.float32(_integer(stream, np.uint64(i))) * _UNIT


def normal_kernel(count: Any, out: Any, key: Any) -> None:
    """Compute √(-2 log(1 - u1))·cos(2π·u2), from uniform numbers 2i and 2i + 1 (Box & Muller 1958)."""
    stream = np.uint64(key[0])
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        u1 = np.float32(_integer(stream, np.uint64(2 * i))) * _UNIT
        u2 = np.float32(_integer(stream, np.uint64(2 * i + 1))) * _UNIT
        out[i] = sqrt(MINUS_TWO * log(ONE - u1)) * cos_pi(TWO * u2)


def bernoulli_kernel(count: Any, out: Any, key: Any, keep_prob: Any) -> None:
    """Write 1 where the random number is less than keep_prob, else 0."""
    stream, limit = np.uint64(key[0]), keep_prob[0]
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = ONE if np.float32(_integer(stream, np.uint64(i))) * _UNIT < limit else ZERO


def _key(device: Device, step: DeviceBuffer, iterations: tuple[DeviceBuffer, ...], seed: int, site: int) -> Any:
    """Compute the key of a stream on the device, without reading a number back."""
    key = device.empty(_KEY)
    device.launch(key_kernel, 1, 1, key, np.uint64(splitmix64_of_host(seed)), step, np.uint64(site))
    for iteration in iterations:
        before, key = key, device.empty(_KEY)
        device.launch(next_key_kernel, 1, 1, key, before, iteration)
    return key


def _draw(kernel: Kernel) -> Entry:
    """Return the entry whose result has element i of the op's stream."""

    def entry(
        device: Device, types: Types, step: DeviceBuffer, *iterations: DeviceBuffer, seed: int, site: int, **static: Any
    ) -> Any:
        out = device.empty(types[0])
        device.each(kernel, out.size, out, _key(device, step, iterations, seed, site))
        return (out,)

    return entry


def bernoulli_mask(
    device: Device,
    types: Types,
    keep_prob: DeviceBuffer,
    step: DeviceBuffer,
    *iterations: DeviceBuffer,
    shape: Any,
    seed: int,
    site: int,
) -> tuple[DeviceBuffer, ...]:
    out = device.empty(types[0])
    device.each(bernoulli_kernel, out.size, out, _key(device, step, iterations, seed, site), keep_prob)
    return (out,)


KERNELS: dict[Primitive, Entry] = {
    RAND_UNIFORM: _draw(uniform_kernel),
    RAND_NORMAL: _draw(normal_kernel),
    BERNOULLI_MASK: bernoulli_mask,
}


# Initial values -------------------------------------------------------------------------------------------------------

# An element is computed in float64 and rounded once, as on the host. A compiler may fuse a product and a sum into one
# instruction with one rounding. So that a uniform value has the host's bits either way, its product is a sum of two
# exact ones: an integer below 2^24 times the upper 29 and times the lower 24 bits of the width.

Fill = Callable[[Device, Any, tuple[int, ...]], DeviceBuffer]

_UNIT64 = 2.0**-24
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
        radius = sqrt(-2.0 * log(1.0 - np.float64(_integer(key, first)) * _UNIT64))
        angle = np.float64(_integer(key, first + _ONE)) * _UNIT64 * _TURN
        out[i] = np.float32(mean + std * (radius * cos(angle)))


def constant(device: Device, scheme: Constant, shape: tuple[int, ...]) -> DeviceBuffer:
    out = device.empty(TensorType(shape, FLOAT32))
    device.each(fill_kernel, out.size, out, scalar(scheme.value, FLOAT32))
    return out


def uniform(device: Device, scheme: Uniform, shape: tuple[int, ...]) -> DeviceBuffer:
    width = np.float64(scheme.high - scheme.low)
    upper = (width.view(np.uint64) >> np.uint64(24) << np.uint64(24)).view(np.float64)
    out = device.empty(TensorType(shape, FLOAT32))
    parts = upper * _UNIT64, (width - upper) * _UNIT64
    device.each(uniform_fill_kernel, out.size, out, np.uint64(scheme.key), np.float64(scheme.low), *parts)
    return out


def normal(device: Device, scheme: Normal, shape: tuple[int, ...]) -> DeviceBuffer:
    out = device.empty(TensorType(shape, FLOAT32))
    numbers = np.float64(scheme.mean), np.float64(scheme.std)
    device.each(normal_fill_kernel, out.size, out, np.uint64(scheme.key), *numbers)
    return out


FILLS: Mapping[type[Elementary], Fill] = MappingProxyType({Constant: constant, Uniform: uniform, Normal: normal})
"""The functions that fill float32 memory for each scheme; one without an entry, such as `Flat`, runs on the host."""
