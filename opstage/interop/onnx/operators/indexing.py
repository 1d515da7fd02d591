"""Reading and writing at indices: import and export.

The export of mode "zero" appends a row of zeros to x, to which every index out of range is redirected.
"""

from __future__ import annotations

from typing import Any

from ....ops import indexing
from ....ops.advanced_indexing import gather_nd, put_along_axis, scatter_nd, take_along_axis
from ....ops.arrangement import take
from ....ops.errors import UnsupportedError
from ....ops.types import INT64
from ...values import KnownValue, Value
from ..call import NodeCall, rule
from ..writer import OnnxValue, OnnxWriter, exports


@rule("Gather")
def _gather(call: NodeCall[Any]) -> Value:
    ops, x, axis = call.ops, call.x(), call.axis(0)
    places = call.value(1)
    if isinstance(places, KnownValue) and places.array.ndim == 0 and axis >= 0:
        place = places.array.item()
        place = place if not isinstance(place, int) or place >= 0 else place + x.shape[axis]
        return call.give(ops.squeeze(ops.slice(x, axis=axis, start=place, length=1), axis=axis))
    index = call.positive(call.value(1), x.shape[axis])
    return call.give(take(ops, x, index, axis=axis))


@rule("GatherElements")
def _gather_elements(call: NodeCall[Any]) -> Value:
    axis = call.axis(0)
    index = call.positive(call.value(1), call.shape()[axis])
    return call.give(take_along_axis(call.ops, call.x(), index, axis=axis))


@rule("GatherND")
def _gather_nd(call: NodeCall[Any]) -> Value:
    """Gather slices at index tuples, the last axis of the indices; leading `batch_dims` axes are shared."""
    batch = int(call.attribute("batch_dims", 0))
    index = _counted(call, 1, call.shape()[batch : batch + _depth(call, 1)])
    return call.give(gather_nd(call.ops, call.x(), index, batch=batch))


@rule("ScatterElements", "Scatter")
def _scatter_elements(call: NodeCall[Any]) -> Value:
    axis = call.axis(0)
    index = call.positive(call.value(1), call.shape()[axis])
    return call.give(put_along_axis(call.ops, call.x(), index, call.x(2), axis=axis, reduce=_reduction(call)))


@rule("ScatterND")
def _scatter_nd(call: NodeCall[Any]) -> Value:
    index = _counted(call, 1, call.shape()[: _depth(call, 1)])
    return call.give(scatter_nd(call.ops, call.x(), index, call.x(2), reduce=_reduction(call)))


def _reduction(call: NodeCall[Any]) -> str:
    """Return how updates are combined with existing values."""
    word = str(call.attribute("reduction", "none"))
    return "set" if word == "none" else word


def _depth(call: NodeCall[Any], i: int) -> int:
    """Return the number of axes addressed by the index tuples, input i."""
    depth = call.shape(i)[-1]
    if not isinstance(depth, int):
        raise UnsupportedError("how many axes its indices index is not known")
    return depth


def _counted(call: NodeCall[Any], i: int, sizes: Any) -> Any:
    """Return index tuples counted from the front, each entry by the size of its own axis."""
    ops, index = call.ops, call.ops.cast(call.x(i), dtype="int64")
    behind = ops.concat([ops.full(shape=(1,), value=size, dtype="int64") for size in sizes], axis=0)
    moved = ops.add(index, ops.broadcast_to(behind, shape=index.shape))
    return ops.select(ops.less(index, ops.full(shape=index.shape, value=0, dtype="int64")), moved, index)


# Export --------------------------------------------------------------------------------------------------------------

_NOTE = 'with mode="raise" a runtime may count negative indices from the end'


@exports(indexing.GATHER_ROWS, indexing.GATHER_VEC, note=_NOTE)
def _write_gather_rows(writer: OnnxWriter, x: OnnxValue, index: OnnxValue, *, mode: str) -> str:
    if mode == "raise":
        return writer.node("Gather", x, index, axis=0)
    return writer.node("Gather", _write_with_spare_row(writer, x), _write_or_spare(writer, x, index), axis=0)


@exports(indexing.SCATTER_ADD_ROWS, indexing.SCATTER_ADD_VEC, note=_NOTE)
def _write_scatter_add_rows(writer: OnnxWriter, x: OnnxValue, v: OnnxValue, index: OnnxValue, *, mode: str) -> str:
    name, rows = writer.converted(index, INT64) if index.dtype != INT64 else index.name, x.name
    if mode == "zero":
        rows, name = _write_with_spare_row(writer, x), _write_or_spare(writer, x, index)
    places = writer.node("Unsqueeze", name, writer.ints(len(index.shape)))
    out = writer.node("ScatterND", rows, places, v, reduction="add")
    if mode == "zero":
        out = writer.node("Slice", out, writer.ints(0), writer.dims([x.shape[0]]), writer.ints(0))
    return out


def _write_with_spare_row(writer: OnnxWriter, x: OnnxValue) -> str:
    rank = len(x.shape)
    cells = [0] * (2 * rank)
    cells[rank] = 1
    return writer.node("Pad", x, writer.ints(*cells), writer.number(0, x.dtype))


def _write_or_spare(writer: OnnxWriter, x: OnnxValue, index: OnnxValue) -> str:
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
