"""Kernels: elementwise ops of all families, optimizer updates, and random tensors with the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, final

import numpy as np

from ....compiler import scalar as formulas
from ....compiler.codegen.cuda.kernels import Pointwise, is_pointwise, of_many, of_one
from ....compiler.codegen.formulas import FORMULAS
from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....compiler.gpu.language import cos_pi, cuda, device_function, log, sqrt, steps
from ....ops.primitive import Kind, Primitive, distinct
from ....ops.random import BERNOULLI_MASK, RAND_NORMAL, RAND_UNIFORM
from ....ops.splitmix import splitmix64 as splitmix64_of_host
from ....ops.types import DType, TensorType
from ....transforms.tracer import Composite

# Entries --------------------------------------------------------------------------------------------------------------

Kernel = Callable[..., None]
Entry = Callable[..., tuple[DeviceBuffer, ...]]
Types = tuple[TensorType, ...]


def scalar(value: Any, dtype: DType) -> Any:
    """Convert a static number to a kernel argument, rounded once to the dtype of its tensor."""
    if dtype.kind == "f":
        return dtype.type(float(value))
    return dtype.type(int(value)) if dtype.kind != "b" else np.uint8(bool(value))


# Elementwise ops ------------------------------------------------------------------------------------------------------

_KNOWN_LIMIT = 1 << 10
_dtype = attrgetter("dtype")


@final
class Made:
    """The kernels of one op by dtypes of operands and static parameters, generated on first use."""

    __slots__ = ("_write", "_known")

    def __init__(self, write: Callable[[Sequence[DType], Mapping[str, Any]], Pointwise]):
        self._write = write
        self._known: dict[Any, Pointwise] = {}

    def __call__(self, operands: Sequence[DeviceBuffer], static: Mapping[str, Any]) -> Pointwise:
        dtypes = tuple(map(_dtype, operands))
        key = (*dtypes, *distinct(static)) if static else dtypes
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= _KNOWN_LIMIT:
                self._known.clear()
            known = self._known[key] = self._write(dtypes, static)
        return known


def pointwise(primitive: Primitive) -> Entry:
    """Return the entry of an op with a formula; its output has the shape of its operands."""
    made = Made(lambda dtypes, static: of_one(primitive, dtypes, static))

    def entry(device: Device, types: Types, *xs: DeviceBuffer, **static: Any) -> tuple[DeviceBuffer, ...]:
        kernel, numbers = made(xs, static)
        out = device.empty(types[0])
        device.each(kernel, out.size, out, *xs, *numbers)
        return (out,)

    return entry


# Optimizer updates ----------------------------------------------------------------------------------------------------

# Updates are deferred, and one launch runs those of all parameters of a step. Their pointers are in a table on the
# device: as kernel parameters there would be hundreds, each selected by comparisons, and every number of tensors
# would need its own kernel. Learning rates and bias corrections are read on the device too, so nothing waits for
# them. Muon spends its time in matrix products, so it runs op by op.


@lru_cache(1 << 12)
def update_kernel(primitive: Primitive) -> Entry | None:
    """Return a small elementwise program as an entry that defers its launch; None for any other op."""
    if type(primitive) is not Composite:
        return None
    body = primitive.elements or primitive.body
    if not is_pointwise(body):
        return None
    made = Composite(primitive.name, body)
    kernel, numbers = of_many(made, body.input_types, {})
    sizes = [type_.size for type_ in body.input_types]

    def update(device: Device, types: Types, *operands: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
        new = tuple(map(device.empty, types))
        tensors = tuple([x for x, size in zip(operands, sizes) if size != 1])
        device.defer(kernel, new, tensors, *[x for x, size in zip(operands, sizes) if size == 1], *numbers)
        return new

    return update


# Draws ----------------------------------------------------------------------------------------------------------------

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


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Entry] = {
    **({primitive: pointwise(primitive) for primitive in FORMULAS if primitive.kind is Kind.POINTWISE}),
    RAND_UNIFORM: _drawn(uniform_kernel),
    RAND_NORMAL: _drawn(normal_kernel),
    BERNOULLI_MASK: bernoulli_mask,
}
