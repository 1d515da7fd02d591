"""Kernels: optimizer updates, generated from their programs, with the same bits.

Updates are deferred, and one launch runs those of all parameters of a step. Their pointers are in a table on the
device: as kernel parameters there would be hundreds, each selected by comparisons, and every number of tensors would
need its own kernel. Learning rates and bias corrections are read on the device too, so nothing waits for them. Muon
spends its time in matrix products, so it runs op by op.
"""

from __future__ import annotations

from functools import lru_cache

from ....compiler.codegen.cuda.pointwise import is_pointwise, of_many
from ....ops.primitive import Primitive
from ...gpu.buffer import DeviceBuffer
from ...gpu.device.interface import Device
from ...tracer import Composite
from .launches import Entry, Types


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
