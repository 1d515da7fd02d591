"""Kernels: elementwise ops of all families, and optimizer updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, final

import numpy as np

from ....compiler.codegen.cuda.kernels import Pointwise, is_pointwise, of_many, of_one
from ....compiler.codegen.formulas import FORMULAS
from ....compiler.gpu.buffer import DeviceBuffer
from ....compiler.gpu.device import Device
from ....ops.primitive import Kind, Primitive, distinct
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


# Tables ---------------------------------------------------------------------------------------------------------------

KERNELS: dict[Primitive, Entry] = {
    **({primitive: pointwise(primitive) for primitive in FORMULAS if primitive.kind is Kind.POINTWISE}),
}
