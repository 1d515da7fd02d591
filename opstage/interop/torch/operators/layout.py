"""Shapes, axes, the order of elements, slices and padding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....ops.arrangement import flip, moveaxis, repeat_interleave, roll, take, tile
from ....ops.dims import Dim, DimExpr, floor_div, is_one, minimum, prod
from ....ops.errors import UnsupportedError
from ...values import TensorValue, common_shape, padded, sliced
from ..call import AtenCall, rule


@rule("view.default", "reshape.default", "_unsafe_view.default", "view_copy.default")
def _view(call: AtenCall[Any], x: Any, shape: Any) -> Any:
    sizes = tuple(shape)
    if any(isinstance(size, int) and size == -1 for size in sizes) and any(not _nonzero(d) for d in sizes):
        raise UnsupportedError(f"its shape {list(sizes)} has a size of 0 and one to be inferred")
    return call.give(call.ops.reshape(x.ref, shape=sizes))


def _nonzero(size: Any) -> bool:
    return not isinstance(size, int) or size != 0


@rule("permute.default", "permute_copy.default")
def _permute(call: AtenCall[Any], x: Any, axes: Any) -> Any:
    return call.give(call.ops.permute(x.ref, axes=[axis % len(x.shape) for axis in axes]) if axes else x.ref)


@rule("transpose.int", "t.default", "transpose_copy.int", "numpy_T.default")
def _transpose(call: AtenCall[Any], x: Any, first: int = 0, second: int = 1) -> Any:
    rank = len(x.shape)
    if rank < 2:
        return x
    order = list(range(rank))
    order[first % rank], order[second % rank] = second % rank, first % rank
    return call.give(call.ops.permute(x.ref, axes=order))


@rule("squeeze.default", "squeeze.dim", "squeeze.dims", "squeeze_copy.dims")
def _squeeze(call: AtenCall[Any], x: Any, axes: Any = None) -> Any:
    """Remove axes of size 1; other axes stay, as in PyTorch."""
    gone = tuple(axis for axis in call.counted(axes, len(x.shape), empty_is_all=axes is None) if is_one(x.shape[axis]))
    return call.give(call.ops.squeeze(x.ref, axis=gone)) if gone and x.shape else call.give(x.ref)


@rule("expand.default", "expand_copy.default")
def _expand(call: AtenCall[Any], x: Any, shape: Any) -> Any:
    lead = len(shape) - len(x.shape)
    whole = tuple(x.shape[i - lead] if isinstance(size, int) and size == -1 else size for i, size in enumerate(shape))
    return call.give(call.stretched(x.ref, whole))


@rule("broadcast_tensors.default")
def _broadcast_tensors(call: AtenCall[Any], xs: Any) -> Any:
    shape = common_shape([x.shape for x in xs])
    return [call.give(call.stretched(x.ref, shape), i) for i, x in enumerate(xs)]


@rule("repeat.default")
def _repeat(call: AtenCall[Any], x: Any, repeats: Any) -> Any:
    if all(isinstance(count, int) for count in repeats):
        return call.give(tile(call.ops, x.ref, repeats=repeats))
    ops = call.ops
    shape: tuple[Dim, ...] = (*[1] * (len(repeats) - len(x.shape)), *x.shape)
    apart = ops.reshape(x.ref, shape=tuple(d for size in shape for d in (1, size)))
    wide = call.stretched(apart, tuple(d for pair in zip(repeats, shape) for d in pair))
    return call.give(ops.reshape(wide, shape=tuple(count * size for count, size in zip(repeats, shape))))


@rule("repeat_interleave.self_int")
def _repeat_interleave(call: AtenCall[Any], x: Any, repeats: int, axis: Any, *_: Any) -> Any:
    return call.give(repeat_interleave(call.ops, x.ref, repeats=repeats, axis=axis))


@rule("cat.default")
def _cat(call: AtenCall[Any], xs: Any, axis: int) -> Any:
    kept = [x for x in xs if not (len(x.shape) == 1 and isinstance(x.shape[0], int) and x.shape[0] == 0)] or xs[:1]
    return call.give(call.ops.concat([call.tensor(x, call.dtype()) for x in kept], axis=axis))


@rule("stack.default")
def _stack(call: AtenCall[Any], xs: Any, axis: int) -> Any:
    return call.give(call.ops.stack([call.tensor(x, call.dtype()) for x in xs], axis=axis))


@rule("split_with_sizes.default", "split_with_sizes_copy.default")
def _split_with_sizes(call: AtenCall[Any], x: Any, sizes: Any, axis: int) -> Any:
    parts = call.ops.split(x.ref, sizes=tuple(sizes), axis=axis % len(x.shape))
    return [call.give(part, i) for i, part in enumerate(parts)]


@rule("split.Tensor", "split_copy.Tensor")
def _split(call: AtenCall[Any], x: Any, size: Any, axis: int) -> Any:
    at = axis % len(x.shape)
    count = len(call.node.dtypes)
    last = x.shape[at] - size * (count - 1)
    return _split_with_sizes(call, x, [*[size] * (count - 1), last], at)


@rule("chunk.default")
def _chunk(call: AtenCall[Any], x: Any, chunks: int, axis: int) -> Any:
    n = x.shape[axis % len(x.shape)]
    return _split(call, x, floor_div(n + (chunks - 1), chunks), axis)


@rule("unbind.int")
def _unbind(call: AtenCall[Any], x: Any, axis: int) -> Any:
    ops, at = call.ops, axis % len(x.shape)
    count = len(call.node.dtypes)
    return [call.give(ops.squeeze(ops.slice(x.ref, axis=at, start=i, length=1), axis=at), i) for i in range(count)]


@rule("select.int", "select_copy.int")
def _select(call: AtenCall[Any], x: Any, axis: int, index: Any) -> Any:
    ops, at = call.ops, axis % len(x.shape)
    start = index if not isinstance(index, int) or index >= 0 else x.shape[at] + index
    return call.give(ops.squeeze(ops.slice(x.ref, axis=at, start=start, length=1), axis=at))


@rule("slice.Tensor", "slice_copy.Tensor")
def _slice(call: AtenCall[Any], x: Any, axis: int, start: Any, end: Any, step: Any) -> Any:
    at = axis % len(x.shape)
    end = x.shape[at] if end is None or (isinstance(end, int) and end > 2**31) else end
    return call.give(sliced(call.ops, x.ref, at, 0 if start is None else start, end, step))


@rule("slice_scatter.default")
def _slice_scatter(call: AtenCall[Any], x: Any, source: Any, axis: int, start: Any, end: Any, step: int) -> Any:
    """Return x with `source` written to the slice."""
    ops, at = call.ops, axis % len(x.shape)
    size = x.shape[at]
    start = 0 if start is None else start
    if step != 1:
        raise UnsupportedError("a slice with a step is not written to")
    if isinstance(start, int) and start < 0:
        start = start + size
    return call.give(_written(ops, x.ref, source.ref, at, minimum(start, size)))


@rule("select_scatter.default")
def _select_scatter(call: AtenCall[Any], x: Any, source: Any, axis: int, index: Any) -> Any:
    at = axis % len(x.shape)
    start = index if not isinstance(index, int) or index >= 0 else x.shape[at] + index
    part = call.ops.unsqueeze(call.stretched(source.ref, (*x.shape[:at], *x.shape[at + 1 :])), axis=at)
    return call.give(_written(call.ops, x.ref, part, at, start))


def _written(ops: Any, x: Any, part: Any, axis: int, start: Dim) -> Any:
    """Return x with `part` written along an axis from `start` on."""
    behind = start + part.shape[axis]
    pieces = [
        ops.slice(x, axis=axis, start=0, length=start),
        part if part.dtype == x.dtype else ops.cast(part, dtype=x.dtype),
        ops.slice(x, axis=axis, start=behind, length=x.shape[axis] - behind),
    ]
    return ops.concat([piece for piece in pieces if not _is_zero(piece.shape[axis])], axis=axis)


def _is_zero(size: Dim) -> bool:
    return isinstance(size, int) and size == 0


@rule("flip.default")
def _flip(call: AtenCall[Any], x: Any, axes: Any) -> Any:
    return call.give(flip(call.ops, x.ref, axis=tuple(axes)) if axes else x.ref)


@rule("roll.default")
def _roll(call: AtenCall[Any], x: Any, shifts: Any, axes: Any) -> Any:
    ops, ref = call.ops, x.ref
    if not axes:
        return call.give(ops.reshape(roll(ops, ops.reshape(ref, shape=(-1,)), shift=shifts[0], axis=0), shape=x.shape))
    for shift, axis in zip(shifts, axes):
        ref = roll(ops, ref, shift=shift, axis=axis % len(x.shape))
    return call.give(ref)


@rule("unfold.default", "unfold_copy.default")
def _unfold(call: AtenCall[Any], x: Any, axis: int, size: int, step: int) -> Any:
    """Return windows of `size` entries along an axis, in a new last axis."""
    ops, at = call.ops, axis % len(x.shape)
    shape = (floor_div(x.shape[at] - size, step) + 1, size)
    first = ops.iota(shape=shape, axis=0)
    places = ops.add(first if step == 1 else ops.mul(first, step), ops.iota(shape=shape, axis=1))
    return call.give(moveaxis(ops, take(ops, x.ref, places, axis=at), source=at + 1, target=len(x.shape)))


@rule("constant_pad_nd.default")
def _constant_pad(call: AtenCall[Any], x: Any, amounts: Any, value: Any) -> Any:
    return _padded(call, x, amounts, "constant", value)


@rule("pad.default")
def _pad(call: AtenCall[Any], x: Any, amounts: Any, mode: str, value: Any) -> Any:
    return _padded(call, x, amounts, _MODES[mode], 0 if value is None else value)


_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@rule(*[f"{kind}_pad{n}d.default" for kind in ("reflection", "replication") for n in (1, 2, 3)])
def _border_pad(call: AtenCall[Any], x: Any, amounts: Any) -> Any:
    return _padded(call, x, amounts, "reflect" if "reflection" in call.name else "edge", 0)


def _padded(call: AtenCall[Any], x: Any, amounts: Any, mode: str, value: Any) -> Any:
    """Pad x by pairs for the last axes, in reverse order."""
    ops = call.ops
    pairs = [(amounts[i], amounts[i + 1]) for i in range(0, len(amounts), 2)][::-1]
    padding = [(0, 0)] * (len(x.shape) - len(pairs)) + pairs
    return call.give(padded(ops, x.ref, padding=padding, mode=mode, value=value))


# Creation of tensors --------------------------------------------------------------------------------------------------


@rule("full.default", "new_full.default", "full_like.default", "scalar_tensor.default")
def _full(call: AtenCall[Any], *values: Any) -> Any:
    """Fill a shape with a number; `full_like` has a tensor as its shape, `new_full` an unused one before it."""
    if "scalar_tensor" in call.name:
        return call.full((), values[0])
    if "full_like" in call.name:
        return call.full(values[0].shape, values[1])
    shape, value = values[-2:]
    return call.full(tuple(shape), value)


@rule(*[f"{kind}.default" for kind in ("zeros", "ones", "empty", "new_zeros", "new_ones", "new_empty")])
@rule("empty.memory_format")
def _constant(call: AtenCall[Any], *values: Any) -> Any:
    return call.full(tuple(values[-1]), 1 if "ones" in call.name else 0)


@rule("zeros_like.default", "ones_like.default", "empty_like.default")
def _like(call: AtenCall[Any], x: Any) -> Any:
    return call.full(x.shape, 1 if "ones" in call.name else 0)


@rule("empty_permuted.default")
def _empty_permuted(call: AtenCall[Any], shape: Any, order: Any) -> Any:
    return call.full(tuple(shape), 0)


@rule("arange.default", "arange.start", "arange.start_step")
def _arange(call: AtenCall[Any], *bounds: Any) -> Any:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
    ops, dtype = call.ops, call.dtype()
    numbers = all(isinstance(each, (int, float)) for each in (start, end, step))
    if numbers:
        count: Dim = max(math.ceil((end - start) / step), 0)
    elif isinstance(step, int) and step > 0 and all(isinstance(each, (int, DimExpr)) for each in (start, end)):
        count = floor_div(end - start + (step - 1), step)
    else:
        raise UnsupportedError(f"how many numbers are between {start} and {end} in steps of {step} is not known")
    whole = all(isinstance(each, (int, DimExpr)) for each in (start, end, step))
    steps = ops.iota(shape=(count,))
    if not whole:
        steps = ops.cast(steps, dtype=ops.dtype)
        scaled = ops.scale(steps, c=step)
        return call.give(ops.add(scaled, ops.full(shape=(count,), value=start)))
    scaled = steps if step == 1 else ops.mul(steps, step)
    return call.give(ops.add(scaled, ops.full(shape=(count,), value=start, dtype=steps.dtype)) if dtype else scaled)


@rule("eye.default", "eye.m")
def _eye(call: AtenCall[Any], rows: Any, columns: Any = None) -> Any:
    shape = (rows, rows if columns is None else columns)
    places = [call.ops.iota(shape=shape, axis=axis) for axis in (0, 1)]
    return call.give(call.ops.equal(*places))


@rule("linspace.default")
def _linspace(call: AtenCall[Any], start: Any, end: Any, steps: int) -> Any:
    ops = call.ops
    places = ops.cast(ops.iota(shape=(steps,)), dtype=ops.dtype)
    each = (end - start) / max(steps - 1, 1)
    return call.give(ops.add(ops.scale(places, c=each), float(start)))


@rule("numel.default")
def _numel(call: AtenCall[Any], x: TensorValue[Any]) -> Any:
    return prod(x.shape)


@rule("tril_indices.default", "triu_indices.default")
def _triangle_indices(call: AtenCall[Any], rows: int, columns: int, offset: int) -> Any:
    """Return the rows and columns of a triangle's elements, known before a run."""
    found = (np.tril_indices if "tril" in call.name else np.triu_indices)(rows, offset, columns)
    return call.give(call.ops.const(np.stack(found).astype(np.int64), dtype="int64"))
