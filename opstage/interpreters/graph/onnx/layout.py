"""Shapes, axes and the order of elements. Symbolic sizes are computed from the inputs."""

from __future__ import annotations

from typing import Any

from ....ops.catalogue import layout, slicing
from ....ops.dims import Dim, is_zero
from ....ops.primitive import Primitive
from ....ops.types import Shape, TensorType
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer

Operands = tuple[OnnxValue, ...]
Results = tuple[TensorType, ...]


def _broadcast_to(writer: Writer, operands: Operands, results: Results, /, *, shape: Shape) -> tuple[str, ...]:
    return (writer.expanded(operands[0], operands[0].shape, shape),)


def _reshape(writer: Writer, operands: Operands, results: Results, /, **static: Any) -> tuple[str, ...]:
    return (writer.reshaped(operands[0], operands[0].shape, results[0].shape),)


def _squeeze(writer: Writer, operands: Operands, results: Results, /, *, axes: tuple[int, ...]) -> tuple[str, ...]:
    (x,) = operands
    return (writer.node("Squeeze", x, writer.ints(*axes)) if axes else x.name,)


def _unsqueeze(writer: Writer, operands: Operands, results: Results, /, *, axis: int) -> tuple[str, ...]:
    return (writer.node("Unsqueeze", *operands, writer.ints(axis)),)


def _transpose(*axes: int) -> OnnxRule:
    def says(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
        return (writer.node("Transpose", *operands, perm=axes),)

    return OnnxRule(says)


def _swap_adjacent(writer: Writer, operands: Operands, results: Results, /, *, depth: int) -> tuple[str, ...]:
    rank = len(operands[0].shape)
    axes = (*range(depth), depth + 1, depth, *range(depth + 2, rank))
    return (writer.node("Transpose", *operands, perm=axes),)


def _permute(writer: Writer, operands: Operands, results: Results, /, *, axes: tuple[int, ...]) -> tuple[str, ...]:
    (x,) = operands
    return (x.name if axes == tuple(range(len(axes))) else writer.node("Transpose", x, perm=axes),)


def _concat(writer: Writer, operands: Operands, results: Results, /, *, axis: int) -> tuple[str, ...]:
    return (writer.node("Concat", *operands, axis=axis),)


def _slice(
    writer: Writer, operands: Operands, results: Results, /, *, axis: int, start: Dim, length: Dim, step: int
) -> tuple[str, ...]:
    end = start + length if step == 1 or is_zero(length) else start + (length - 1) * step + 1
    return (
        writer.node("Slice", *operands, writer.dims([start]), writer.dims([end]), writer.ints(axis), writer.ints(step)),
    )


def _pad(
    writer: Writer,
    operands: Operands,
    results: Results,
    /,
    *,
    padding: tuple[tuple[Dim, Dim], ...],
    value: Any,
    interior: tuple[int, ...],
) -> tuple[str, ...]:
    (x,) = operands
    name, shape = x.name, x.shape
    for axis, between in enumerate(interior):
        if between:
            name, shape = _spread(writer, name, shape, axis, between, value, x)
    sizes = [before for before, _ in padding] + [after for _, after in padding]
    if not all(map(is_zero, sizes)):
        name = writer.node("Pad", name, writer.dims(sizes), writer.number(value, x.dtype))
    return (name,)


def _spread(
    writer: Writer, name: str, shape: Shape, axis: int, between: int, value: Any, x: OnnxValue
) -> tuple[str, Shape]:
    """Insert cells between adjacent entries: `between` cells after each entry, with those after the last one cut."""
    size = shape[axis]
    if type(size) is int and size < 2:
        return name, shape
    rank = len(shape)
    cells = [0] * (2 * rank + 2)
    cells[rank + 1 + axis + 1] = between
    column = writer.node("Unsqueeze", name, writer.ints(axis + 1))
    column = writer.node("Pad", column, writer.ints(*cells), writer.number(value, x.dtype))
    wide = (*shape[: axis + 1], between + 1, *shape[axis + 1 :])
    merged = (*shape[:axis], size * (between + 1), *shape[axis + 1 :])
    flat = writer.reshaped(column, wide, merged)
    end = (size - 1) * (between + 1) + 1
    flat = writer.node("Slice", flat, writer.ints(0), writer.dims([end]), writer.ints(axis))
    return flat, (*shape[:axis], end, *shape[axis + 1 :])


RULES: dict[Primitive, OnnxRule] = {
    layout.BROADCAST_TO: OnnxRule(_broadcast_to),
    layout.RESHAPE: OnnxRule(_reshape),
    layout.FLATTEN: OnnxRule(_reshape),
    layout.SQUEEZE: OnnxRule(_squeeze),
    layout.UNSQUEEZE: OnnxRule(_unsqueeze),
    layout.PERMUTE: OnnxRule(_permute),
    layout.TRANSPOSE2D: _transpose(1, 0),
    layout.TRANSPOSE3D_FIRST_TO_LAST: _transpose(1, 2, 0),
    layout.TRANSPOSE3D_LAST_TO_FIRST: _transpose(2, 0, 1),
    layout.TRANSPOSE3D_LAST_TWO: _transpose(0, 2, 1),
    layout.SWAP_ADJACENT_AT_DEPTH: OnnxRule(_swap_adjacent),
    slicing.CONCAT: OnnxRule(_concat),
    slicing.SLICE: OnnxRule(_slice),
    slicing.PAD: OnnxRule(_pad),
}
