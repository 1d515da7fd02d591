"""Kernels: random tensors, with the same bits as every other interpreter."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.catalogue.random import BERNOULLI_MASK, RAND_NORMAL, RAND_UNIFORM
from ....ops.primitive import Primitive
from ....ops.splitmix import splitmix64 as splitmix64_of_host
from ....ops.types import TensorType
from ...gpu.buffer import DeviceBuffer
from ...gpu.counting import steps
from ...gpu.device.interface import Device
from ...gpu.language import cos_pi, cuda, device_function, log, sqrt
from ...scalar import random as formulas
from .launches import Entry, Kernel, Types

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
    """Compute √(-2 log(1 - u1))·cos(2π·u2), with draws 2i and 2i + 1 (Box & Muller 1958)."""
    stream = np.uint64(key[0])
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        u1 = np.float32(_integer(stream, np.uint64(2 * i))) * _UNIT
        u2 = np.float32(_integer(stream, np.uint64(2 * i + 1))) * _UNIT
        out[i] = sqrt(MINUS_TWO * log(ONE - u1)) * cos_pi(TWO * u2)


def bernoulli_kernel(count: Any, out: Any, key: Any, keep_prob: Any) -> None:
    """Write 1 where the draw is less than keep_prob, else 0."""
    stream, limit = np.uint64(key[0]), keep_prob[0]
    for i in steps(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = ONE if np.float32(_integer(stream, np.uint64(i))) * _UNIT < limit else ZERO


def _key(device: Device, step: DeviceBuffer, iterations: tuple[DeviceBuffer, ...], seed: int, site: int) -> Any:
    """Compute the key of a draw on the device, without reading a number back."""
    key = device.empty(_KEY)
    device.launch(key_kernel, 1, 1, key, np.uint64(splitmix64_of_host(seed)), step, np.uint64(site))
    for iteration in iterations:
        before, key = key, device.empty(_KEY)
        device.launch(next_key_kernel, 1, 1, key, before, iteration)
    return key


def _drawn(kernel: Kernel) -> Entry:
    """Return the entry whose result has element i of the stream of the draw's key."""

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
    RAND_UNIFORM: _drawn(uniform_kernel),
    RAND_NORMAL: _drawn(normal_kernel),
    BERNOULLI_MASK: bernoulli_mask,
}
