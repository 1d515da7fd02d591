"""Kernels: elementwise ops of all families, generated from their formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, final

from ....compiler.codegen.cuda.pointwise import Pointwise, of_one
from ....compiler.codegen.formulas import FORMULAS
from ....ops.kinds import Kind
from ....ops.primitive import Primitive, distinct
from ....ops.types import DType
from ...gpu.buffer import DeviceBuffer
from ...gpu.device.interface import Device
from .launches import Entry, Types

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


KERNELS: dict[Primitive, Entry] = {
    primitive: pointwise(primitive) for primitive in FORMULAS if primitive.kind is Kind.POINTWISE
}
