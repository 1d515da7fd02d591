"""Kernels: random tensors, with the bits that every other interpreter draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops.catalogue.random import RAND_UNIFORM
from ....ops.primitive import Primitive
from ....ops.splitmix import splitmix64 as splitmix64_of_host
from ....ops.types import TensorType
from ...scalar import random as formulas
from ..buffer import DeviceBuffer
from ..device.interface import Device
from ..language import cuda, device_function
from .launches import Entry, Types

_mix = device_function(formulas.splitmix64(np.uint64))
_integer = device_function(formulas.uniform_integer(np.uint64, _mix))
_UNIT = np.float32(2.0**-24)
_KEY = TensorType((1,), np.dtype(np.int64))  # 64 bits, whatever they mean


def key_kernel(key: Any, start: Any, step: Any, site: Any) -> None:
    """key = mix(mix(start + step) + site), start being mix(seed)."""
    key[0] = np.int64(_mix(_mix(start + np.uint64(step[0])) + site))


def next_key_kernel(key: Any, before: Any, iteration: Any) -> None:
    """The key of one iteration of a loop."""
    key[0] = np.int64(_mix(np.uint64(before[0]) + np.uint64(iteration[0])))


def uniform_kernel(count: Any, out: Any, key: Any) -> None:
    stream = np.uint64(key[0])
    for i in range(cuda.grid(1), count, cuda.gridsize(1)):
        out[i] = np.float32(_integer(stream, np.uint64(i))) * _UNIT


def rand_uniform(
    device: Device,
    types: Types,
    step: DeviceBuffer,
    *iterations: DeviceBuffer,
    shape: Any,
    seed: int,
    site: int,
    dtype: str,
) -> tuple[DeviceBuffer, ...]:
    out, key = device.empty(types[0]), device.empty(_KEY)
    device.launch(key_kernel, 1, 1, key, np.uint64(splitmix64_of_host(seed)), step, np.uint64(site))
    for iteration in iterations:
        before, key = key, device.empty(_KEY)
        device.launch(next_key_kernel, 1, 1, key, before, iteration)
    device.each(uniform_kernel, out.size, out, key)
    return (out,)


KERNELS: dict[Primitive, Entry] = {RAND_UNIFORM: rand_uniform}
