"""Kernels: optimizer updates, generated from their decompositions, with the same bits.

Updates are deferred, and one launch runs those of all parameters of a step. Their pointers are in a table on the
device: as kernel parameters there would be hundreds, each selected by comparisons, and every number of tensors would
need its own kernel. Learning rates and bias corrections are read on the device too, so nothing waits for them. Muon
spends its time in matrix products, so it runs op by op.
"""

from __future__ import annotations

from typing import Any

from ....compiler.codegen.cuda.pointwise import is_pointwise, of_many, some_of_many
from ....ops.catalogue import update as catalogue
from ....ops.primitive import Primitive
from ...gpu.buffer import DeviceBuffer
from ...gpu.device.interface import Device
from ...tracer import Composite
from .launches import Entry, Types
from .pointwise import Made


def _entry(primitive: Primitive) -> Entry:
    tensors = 1 + len(primitive.outputs)
    made = Made(lambda dtypes, static: of_many(primitive, some_of_many(dtypes, tensors), static))

    def update(device: Device, types: Types, *operands: DeviceBuffer, **static: Any) -> tuple[DeviceBuffer, ...]:
        """Compute new values and state of p, from p, g, the state and scalars."""
        new = tuple(map(device.empty, types))
        kernel, numbers = made(operands, static)
        device.defer(kernel, new, operands[:tensors], *operands[tensors:], *numbers)
        return new

    return update


def of_composite(composite: Composite) -> Entry | None:
    """Return an update written in plain ops, deferred like the others; None if it contains other ops."""
    body = composite.body
    if not is_pointwise(body):
        return None
    kernel, numbers = of_many(composite, body.input_types, {})
    shape = body.output_types[0].shape

    def update(device: Device, types: Types, *operands: DeviceBuffer) -> tuple[DeviceBuffer, ...]:
        new = tuple(map(device.empty, types))
        tensors = tuple([x for x in operands if x.shape == shape])
        device.defer(kernel, new, tensors, *[x for x in operands if x.shape != shape], *numbers)
        return new

    return update


KERNELS: dict[Primitive, Entry] = {
    value: _entry(value)
    for value in vars(catalogue).values()
    if isinstance(value, Primitive) and value is not catalogue.MUON_UPDATE
}
