"""Shapes, axes, the order of elements, indices, sequences, and creation of tensors: import and export."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ....ops import indexing, layout, slicing
from ....ops.advanced_indexing import gather_nd, put_along_axis, scatter_nd, take_along_axis
from ....ops.arrangement import eye, pad, take, tile, tril, triu
from ....ops.dims import Dim, DimFloat, floor_div, is_zero, maximum, prod
from ....ops.errors import UnsupportedError
from ....ops.rule_helpers import whole
from ....ops.types import FLOAT32, INT64, Shape
from ....ops.windows import depth_to_space, pixel_shuffle, pixel_unshuffle, space_to_depth
from ...values import KnownValue, TensorValue, Value, common_shape, held, known, padded, ref_of, sliced, stretched
from ..file import dtype_of
from ..graph import NodeCall, rule
from ..writer import OnnxValue, OnnxWriter, direct, exports


@rule("Shape")
def _shape_of(call: NodeCall[Any]) -> Value:
    shape = call.shape()
    return known(list(shape[slice(int(call.attribute("start", 0)), call.attribute("end"))]))


@rule("Size")
def _size(call: NodeCall[Any]) -> Value:
    return known(prod(call.shape()))


@rule("Constant")
def _constant(call: NodeCall[Any]) -> Value:
    """Return the value of a Constant node, from whichever attribute holds it."""
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        if name in call.node.attributes:
            return known(call.attribute(name), INT64 if "int" in name else FLOAT32)
    value = call.attribute("value")
    if value is None:
        raise UnsupportedError("its value is of a kind that is not read: text or sparse")
    return KnownValue(value, value.dtype)


@rule("Reshape", known=(1,))
def _reshape(call: NodeCall[Any]) -> Value:
    shape = call.shape()
    sizes = call.ints(1, "shape") if call.has(1) else call.attribute("shape")
    if sizes is None:
        raise UnsupportedError("it says no shape")
    if not call.attribute("allowzero", 0):
        if any(isinstance(size, int) and size == 0 and i >= len(shape) for i, size in enumerate(sizes)):
            raise UnsupportedError(f"its shape {sizes} keeps an axis that x, of {len(shape)} axes, has not")
        sizes = [shape[i] if isinstance(size, int) and size == 0 else size for i, size in enumerate(sizes)]
    elif any(isinstance(size, int) and size == 0 for size in sizes) and -1 in sizes:
        raise UnsupportedError(f"its shape {sizes} has a size of 0 and one to be inferred")
    return call.give(call.ops.reshape(call.x(), shape=tuple(sizes)))


@rule("Flatten")
def _flatten(call: NodeCall[Any]) -> Value:
    shape = call.shape()
    axis = int(call.attribute("axis", 1))
    axis = axis + len(shape) if axis < 0 else axis
    return call.give(call.ops.reshape(call.x(), shape=(prod(shape[:axis]), prod(shape[axis:]))))


@rule("Transpose")
def _transpose(call: NodeCall[Any]) -> Value:
    order = call.attribute("perm", list(range(call.rank()))[::-1])
    return call.give(call.ops.permute(call.x(), axes=order)) if order else call.give(call.x())


@rule("Squeeze", known=(1,))
def _squeeze(call: NodeCall[Any]) -> Value:
    axes = call.axes(None)
    return call.give(call.ops.squeeze(call.x(), axis=None if axes is None else tuple(int(a) for a in axes)))


@rule("Unsqueeze", known=(1,))
def _unsqueeze(call: NodeCall[Any]) -> Value:
    axes = [int(axis) for axis in call.axes([]) or []]
    rank = call.rank() + len(axes)
    x = call.x()
    for axis in sorted(axis % rank for axis in axes):
        x = call.ops.unsqueeze(x, axis=axis)
    return call.give(x)


@rule("Concat")
def _concat(call: NodeCall[Any]) -> Value:
    axis = int(call.attribute("axis", 1))
    return call.give(call.ops.concat(call.xs(), axis=axis))


@rule("Split", known=(1,))
def _split(call: NodeCall[Any]) -> tuple[Value, ...]:
    axis = call.axis(0)
    size = call.shape()[axis]
    given = call.attribute("split")
    if given is None and call.has(1):
        given = call.ints(1, "split")
    if given is None:
        count = int(call.attribute("num_outputs", len(call.node.outputs)))
        if isinstance(size, int):
            each = -(-size // count)
            given = [min(each, max(size - i * each, 0)) for i in range(count)]
        else:
            part = floor_div(size + (count - 1), count)
            given = [*[part] * (count - 1), size - part * (count - 1)]
    return tuple(call.give(part) for part in call.ops.split(call.x(), sizes=given, axis=axis))


@rule("Slice", known=(1, 2, 3, 4))
def _slice(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    starts = call.ints(1, "starts") if call.has(1) else call.attribute("starts", [])
    ends = call.ints(2, "ends") if call.has(2) else call.attribute("ends", [])
    axes = call.axes(range(len(starts)), at=3) or []
    steps = call.ints(4, "steps") if call.has(4) else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        x = sliced(ops, x, int(axis) % len(x.shape), start, end, step)
    return call.give(x)


@rule("Expand", known=(1,))
def _expand(call: NodeCall[Any]) -> Value:
    shape = common_shape([call.shape(), tuple(call.ints(1, "shape"))])
    return call.give(stretched(call.ops, call.x(), shape))


@rule("Tile", known=(1,))
def _tile(call: NodeCall[Any]) -> Value:
    return call.give(tile(call.ops, call.x(), repeats=call.ints(1, "repeats")))


@rule("ConstantOfShape", known=(0,))
def _constant_of_shape(call: NodeCall[Any]) -> Value:
    value = call.attribute("value", np.zeros(1, np.float32))
    number = value.reshape(-1)[0].item()
    sizes = tuple(call.ints(0, "shape"))
    return TensorValue(call.ops.full(shape=sizes, value=number, dtype=held(value.dtype, call.ops)), value.dtype)


@rule("Range", known=(0, 1, 2))
def _range(call: NodeCall[Any]) -> Value:
    ops, dtype = call.ops, call.dtype()
    start, limit, delta = (_whole(call.number(i, name)) for i, name in enumerate(("start", "limit", "delta")))
    if all(isinstance(each, (int, float)) for each in (start, limit, delta)):
        count: Dim = max(math.ceil((limit - start) / delta), 0)
    elif (
        isinstance(delta, int) and delta > 0 and not any(isinstance(each, (float, DimFloat)) for each in (start, limit))
    ):
        count = floor_div(maximum(limit - start, 0) + (delta - 1), delta) if delta > 1 else maximum(limit - start, 0)
    else:
        raise UnsupportedError(f"a range from {start} to {limit} in steps of {delta} has no length that is known")
    target = held(dtype, ops)
    steps = ops.iota(shape=(count,), dtype="int64")
    steps = ops.cast(steps, dtype=target) if target != steps.dtype else steps
    scaled = ops.mul(steps, ops.full(shape=(count,), value=delta, dtype=target))
    return TensorValue(ops.add(scaled, whole(ops, (count,), start, target)), dtype)


def _whole(number: Any) -> Any:
    """Convert an integral float to int; sizes stay symbolic when a node casts them to floats."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


@rule("EyeLike")
def _eye_like(call: NodeCall[Any]) -> Value:
    dtype = dtype_of(int(call.attribute("dtype"))) if "dtype" in call.node.attributes else call.dtype()
    rows, columns = call.shape()
    return call.give(eye(call.ops, rows, columns, k=int(call.attribute("k", 0)), dtype=held(dtype, call.ops)), dtype)


@rule("Trilu", known=(1,))
def _trilu(call: NodeCall[Any]) -> Value:
    triangle = triu if call.attribute("upper", 1) else tril
    return call.give(triangle(call.ops, call.x(), k=call.number(1, "k", 0)))


@rule("OneHot", known=(1, 2))
def _one_hot(call: NodeCall[Any]) -> Value:
    ops = call.ops
    depth = call.number(1, "depth")
    depth = int(depth) if isinstance(depth, float) else depth
    index = call.positive(call.value(0), depth)
    axis = int(call.attribute("axis", -1)) % (call.rank() + 1)
    shape = (*index.shape[:axis], depth, *index.shape[axis:])
    spread = stretched(ops, ops.unsqueeze(index, axis=axis), shape)
    own = ops.equal(spread, ops.iota(shape=shape, axis=axis))
    halves = ops.split(call.x(2), sizes=(1, 1), axis=0)
    off, on = (stretched(ops, ops.reshape(part, shape=()), shape) for part in halves)
    return call.give(ops.select(own, on, off), call.dtype(2))


@rule("DepthToSpace")
def _depth_to_space(call: NodeCall[Any]) -> Value:
    ops, x, block = call.ops, call.x(), int(call.attribute("blocksize"))
    if call.attribute("mode", "DCR") == "DCR":
        return call.give(depth_to_space(ops, x, block=block))
    return call.give(pixel_shuffle(ops, x, factor=block))


@rule("SpaceToDepth")
def _space_to_depth(call: NodeCall[Any]) -> Value:
    ops, x, block = call.ops, call.x(), int(call.attribute("blocksize"))
    if call.attribute("mode", "DCR") == "DCR":
        return call.give(space_to_depth(ops, x, block=block))
    return call.give(pixel_unshuffle(ops, x, factor=block))


@rule("Pad", known=(1, 3))
def _pad(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    rank = len(x.shape)
    pads = call.ints(1, "pads") if call.has(1) else call.attribute("pads", call.attribute("paddings"))
    axes = [int(a) % rank for a in call.ints(3, "axes")] if call.has(3) else list(range(rank))
    mode = call.attribute("mode", "constant")
    pairs: list[tuple[Dim, Dim]] = [(0, 0)] * rank
    for i, axis in enumerate(axes):
        pairs[axis] = (pads[i], pads[i + len(axes)])
    if mode == "constant":
        cells = call.value(2) if call.has(2) else None
        if isinstance(cells, TensorValue):  # computed: written to the padding
            there = pad(ops, ops.full(shape=x.shape, value=1, dtype="int64"), padding=pairs)
            wide = pad(ops, x, padding=pairs)
            inside = ops.equal(there, ops.full(shape=there.shape, value=1, dtype="int64"))
            return call.give(ops.select(inside, wide, stretched(ops, ops.reshape(cells.ref, shape=()), wide.shape)))
        value = call.number(2, "constant_value", call.attribute("value", 0.0))
        return call.give(padded(ops, x, padding=pairs, value=value))
    return call.give(pad(ops, x, padding=pairs, mode=mode))


# Shapes and axes: export ----------------------------------------------------------------------------------------------


exports(layout.BROADCAST_TO)(lambda writer, x, shape: writer.expanded(x, x.shape, shape))
exports(layout.RESHAPE, layout.FLATTEN)(lambda writer, x, **_: writer.reshaped(x, x.shape, writer.out.shape))
exports(layout.SQUEEZE)(lambda writer, x, axes: writer.node("Squeeze", x, writer.ints(*axes)) if axes else x.name)
exports(layout.UNSQUEEZE)(lambda writer, x, axis: writer.node("Unsqueeze", x, writer.ints(axis)))
exports(slicing.CONCAT)(direct("Concat", "axis"))


@exports(layout.SWAP_ADJACENT_AT_DEPTH)
def _write_swap_adjacent(writer: OnnxWriter, x: OnnxValue, *, depth: int) -> str:
    axes = (*range(depth), depth + 1, depth, *range(depth + 2, len(x.shape)))
    return writer.node("Transpose", x, perm=axes)


@exports(layout.PERMUTE)
def _write_permute(writer: OnnxWriter, x: OnnxValue, *, axes: tuple[int, ...]) -> str:
    return x.name if axes == tuple(range(len(axes))) else writer.node("Transpose", x, perm=axes)


@exports(slicing.SLICE)
def _write_slice(writer: OnnxWriter, x: OnnxValue, *, axis: int, start: Dim, length: Dim, step: int) -> str:
    end = start + length if step == 1 or is_zero(length) else start + (length - 1) * step + 1
    return writer.node("Slice", x, writer.dims([start]), writer.dims([end]), writer.ints(axis), writer.ints(step))


@exports(slicing.PAD)
def _write_pad(
    writer: OnnxWriter, x: OnnxValue, *, padding: tuple[tuple[Dim, Dim], ...], value: Any, interior: tuple[int, ...]
) -> str:
    name, shape = x.name, x.shape
    for axis, between in enumerate(interior):
        if between:
            name, shape = _write_spread(writer, name, shape, axis, between, value, x)
    sizes = [before for before, _ in padding] + [after for _, after in padding]
    if not all(map(is_zero, sizes)):
        name = writer.node("Pad", name, writer.dims(sizes), writer.number(value, x.dtype))
    return name


def _write_spread(
    writer: OnnxWriter, name: str, shape: Shape, axis: int, between: int, value: Any, x: OnnxValue
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


for _primitive, _axes in (
    (layout.TRANSPOSE2D, (1, 0)),
    (layout.TRANSPOSE3D_FIRST_TO_LAST, (1, 2, 0)),
    (layout.TRANSPOSE3D_LAST_TO_FIRST, (2, 0, 1)),
    (layout.TRANSPOSE3D_LAST_TWO, (0, 2, 1)),
):
    exports(_primitive)(partial(_write_permute, axes=_axes))


# Indices --------------------------------------------------------------------------------------------------------------


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
    return ops.select(ops.less(index, 0), moved, index)


# Indices: export ------------------------------------------------------------------------------------------------------
#
# The export of mode "zero" appends a row of zeros to x, to which every index out of range is redirected.

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
        "And", writer.node("LessOrEqual", writer.number(0, INT64), wide), writer.node("Less", wide, count)
    )
    return writer.node("Where", inside, wide, count)


# Sequences: lists of values while the model runs ----------------------------------------------------------------------


def _sequence(call: NodeCall[Any]) -> list[Any]:
    value = call.inputs[0]
    if not isinstance(value, list):
        raise UnsupportedError("its first input is not a sequence")
    return value


@rule("SequenceEmpty")
def _empty(call: NodeCall[Any]) -> tuple[Any]:
    return ([],)


@rule("SequenceConstruct")
def _construct(call: NodeCall[Any]) -> tuple[Any]:
    return (list(call.inputs),)


@rule("SequenceLength")
def _length(call: NodeCall[Any]) -> Value:
    return known(len(_sequence(call)))


def _place(call: NodeCall[Any], i: int, count: int) -> int:
    place = call.number(i, "position")
    if not isinstance(place, int) or not -count <= place <= count:
        raise UnsupportedError(f"its position {place} is not one of {count}")
    return place + count if place < 0 else place


@rule("SequenceAt", known=(1,))
def _at(call: NodeCall[Any]) -> Value:
    entries = _sequence(call)
    found: Value = entries[_place(call, 1, len(entries))]
    return found


@rule("SequenceInsert", known=(2,))
def _insert(call: NodeCall[Any]) -> tuple[Any]:
    entries = list(_sequence(call))
    entries.insert(_place(call, 2, len(entries)) if call.has(2) else len(entries), call.inputs[1])
    return (entries,)


@rule("SequenceErase", known=(1,))
def _erase(call: NodeCall[Any]) -> tuple[Any]:
    entries = list(_sequence(call))
    del entries[_place(call, 1, len(entries)) if call.has(1) else -1]
    return (entries,)


@rule("ConcatFromSequence")
def _concat_sequence(call: NodeCall[Any]) -> Value:
    values = _sequence(call)
    if any(isinstance(value, list) for value in values):
        raise UnsupportedError("its sequence is one of sequences; tensors are expected")
    refs = [ref_of(call.ops, value) for value in values]
    axis = int(call.attribute("axis"))
    joined = call.ops.stack(refs, axis=axis) if call.attribute("new_axis", 0) else call.ops.concat(refs, axis=axis)
    return TensorValue(joined, values[0].dtype)


@rule("SplitToSequence", known=(1,))
def _split_to_sequence(call: NodeCall[Any]) -> tuple[Any]:
    ops, x, axis = call.ops, call.x(), call.axis(0)
    size = x.shape[axis]
    if not isinstance(size, int):
        raise UnsupportedError("how many parts there are is not known before a run")
    keep = bool(call.attribute("keepdims", 1))
    if call.has(1) and call.rank(1) == 1:
        sizes = call.ints(1, "split")
    else:
        each = int(call.number(1, "split", 1))
        sizes = [min(each, size - at) for at in range(0, size, each)]
    parts = ops.split(x, sizes=sizes, axis=axis)
    if not keep and not call.has(1):
        parts = tuple(ops.squeeze(part, axis=axis) for part in parts)
    return ([call.give(part) for part in parts],)
