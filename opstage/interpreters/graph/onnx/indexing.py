"""Gathering entries at indices, and scatter-adding to them.

Mode "zero" appends a row of zeros to x, to which every index out of range is redirected.
"""

from __future__ import annotations

from ....ops.catalogue import indexing
from ....ops.primitive import Primitive
from ....ops.types import INT64, TensorType
from .nodes import OnnxValue
from .rules import OnnxRule
from .writer import Writer

_NOTE = 'with mode="raise" a runtime may count negative indices from the end'


def _gather_rows(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, *, mode: str
) -> tuple[str, ...]:
    x, index = operands
    if mode == "raise":
        return (writer.node("Gather", x, index, axis=0),)
    return (writer.node("Gather", _with_spare_row(writer, x), _or_spare(writer, x, index), axis=0),)


def _scatter_add_rows(
    writer: Writer, operands: tuple[OnnxValue, ...], results: tuple[TensorType, ...], /, *, mode: str
) -> tuple[str, ...]:
    x, v, index = operands
    name, rows = writer.converted(index, INT64) if index.dtype != INT64 else index.name, x.name
    if mode == "zero":
        rows, name = _with_spare_row(writer, x), _or_spare(writer, x, index)
    places = writer.node("Unsqueeze", name, writer.ints(len(index.shape)))
    out = writer.node("ScatterND", rows, places, v, reduction="add")
    if mode == "zero":
        out = writer.node("Slice", out, writer.ints(0), writer.dims([x.shape[0]]), writer.ints(0))
    return (out,)


def _with_spare_row(writer: Writer, x: OnnxValue) -> str:
    rank = len(x.shape)
    cells = [0] * (2 * rank)
    cells[rank] = 1
    return writer.node("Pad", x, writer.ints(*cells), writer.number(0, x.dtype))


def _or_spare(writer: Writer, x: OnnxValue, index: OnnxValue) -> str:
    """Return the index as int64, with the appended row's index where it is out of range: x may be longer than int32
    allows."""
    wide = index.name if index.dtype == INT64 else writer.converted(index, INT64)
    count = writer.number(x.shape[0], INT64)
    inside = writer.node(
        "And",
        writer.node("LessOrEqual", writer.number(0, INT64), wide),
        writer.node("Less", wide, count),
    )
    return writer.node("Where", inside, wide, count)


RULES: dict[Primitive, OnnxRule] = {
    indexing.GATHER_ROWS: OnnxRule(_gather_rows, _NOTE),
    indexing.GATHER_VEC: OnnxRule(_gather_rows, _NOTE),
    indexing.SCATTER_ADD_ROWS: OnnxRule(_scatter_add_rows, _NOTE),
    indexing.SCATTER_ADD_VEC: OnnxRule(_scatter_add_rows, _NOTE),
}
