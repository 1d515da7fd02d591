"""Reductions, sorting, and reading and writing at indices; embeddings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....ops.advanced_indexing import index_add, put_along_axis, scatter_nd, take_along_axis
from ....ops.arrangement import take
from ....ops.dims import Dim, prod
from ....ops.errors import UnsupportedError
from ....ops.sequence import bincount, searchsorted, segment_sum, sort, top_k
from ....ops.statistics import cummax, cummin, norm, segment_max, std, var
from ....ops.types import BOOL
from ...values import TensorValue, broadcast, common_shape
from ..call import AtenCall, rule

# Reductions and sorting -----------------------------------------------------------------------------------------------


@rule("max.dim", "min.dim")
def _extremum_and_place(call: AtenCall[Any], x: Any, axis: int, keepdim: bool) -> Any:
    """Return the first extremum along an axis, which has the gradient, and its index."""
    ops, greatest = call.ops, call.name == "aten.max"
    if not x.shape:
        return [call.give(x.ref, 0), call.give(ops.full(shape=(), value=0, dtype="int64"), 1)]
    at = axis % len(x.shape)
    ref = ops.cast(x.ref, dtype="int64") if x.dtype == BOOL else x.ref
    place = (ops.argmax if greatest else ops.argmin)(ref, axis=at, keepdims=True)
    value = take_along_axis(ops, ref, place, axis=at)
    if not keepdim:
        value, place = (ops.squeeze(each, axis=at) for each in (value, place))
    return [call.give(value, 0), call.give(place, 1)]


@rule("argmax.default", "argmin.default")
def _arg(call: AtenCall[Any], x: Any, axis: Any, keepdim: bool) -> Any:
    ops, ref = call.ops, x.ref
    op = ops.argmax if "argmax" in call.name else ops.argmin
    if axis is None:
        found = op(ops.reshape(ref, shape=(-1,)), axis=0)
        return call.give(ops.reshape(found, shape=(1,) * len(x.shape)) if keepdim else found)
    return call.give(op(ref, axis=axis, keepdims=keepdim))


def _tested(name: str) -> None:
    @rule(f"{name}.default", f"{name}.dim", f"{name}.dims")
    def apply(call: AtenCall[Any], x: Any, axes: Any = None, keepdim: bool = False) -> Any:
        ops = call.ops
        (mask,) = call.masks(x)
        if x.shape:
            op = ops.reduce_any if name == "any" else ops.reduce_all
            mask = op(mask, axis=call.counted(axes, len(x.shape)), keepdims=keepdim)
        return call.give(mask)


_tested("any")
_tested("all")


@rule("var.correction", "std.correction", "var.dim", "std.dim")
def _variance(call: AtenCall[Any], x: Any, axes: Any, correction: Any, keepdim: bool) -> Any:
    correction = 1 if correction is None else int(correction)
    function = var if call.name == "aten.var" else std
    chosen = call.counted(axes, len(x.shape))
    return call.give(function(call.ops, x.ref, axis=chosen, correction=correction, keepdims=keepdim))


@rule("var_mean.correction")
def _variance_and_mean(call: AtenCall[Any], x: Any, axes: Any, correction: Any, keepdim: bool) -> Any:
    chosen = call.counted(axes, len(x.shape))
    correction = 1 if correction is None else int(correction)
    spread = var(call.ops, x.ref, axis=chosen, correction=correction, keepdims=keepdim)
    return [call.give(spread, 0), call.give(call.ops.reduce_mean(x.ref, axis=chosen, keepdims=keepdim), 1)]


@rule("linalg_vector_norm.default")
def _norm(call: AtenCall[Any], x: Any, order: Any, axes: Any, keepdim: bool) -> Any:
    ops, chosen = call.ops, call.counted(axes, len(x.shape))
    ref = call.floats(x)
    if order in (1, 2, math.inf, -math.inf):
        return call.give(norm(ops, ref, ord=order, axis=chosen, keepdims=keepdim) if x.shape else ops.abs(ref))
    if order == 0:
        there = ops.cast(ops.logical_not(ops.equal(ref, 0.0)), dtype=ops.dtype)
        return call.give(ops.reduce_sum(there, axis=chosen, keepdims=keepdim))
    total = ops.reduce_sum(ops.pow(ops.abs(ref), exponent=order), axis=chosen, keepdims=keepdim)
    return call.give(ops.pow(total, exponent=1 / order))


def _cumulative(name: str, op: Callable[[Any], Callable[..., Any]]) -> None:
    @rule(f"{name}.default")
    def apply(call: AtenCall[Any], x: Any, axis: int) -> Any:
        ref = call.tensor(x, call.dtype())
        return call.give(op(call.ops)(ref, axis=axis) if x.shape else ref)


_cumulative("cumsum", lambda ops: ops.cumsum)
_cumulative("cumprod", lambda ops: ops.cumprod)


@rule("sort.default", "sort.stable")
def _sort(call: AtenCall[Any], x: Any, *rest: Any) -> Any:
    axis, descending = rest[-2:]
    values, places = sort(call.ops, x.ref, axis=axis, descending=bool(descending))
    return [call.give(values, 0), call.give(places, 1)]


@rule("argsort.default", "argsort.stable")
def _argsort(call: AtenCall[Any], x: Any, *rest: Any) -> Any:
    axis, descending = rest[-2:]
    return call.give(call.ops.argsort(x.ref, axis=axis, descending=bool(descending)))


@rule("topk.default")
def _topk(call: AtenCall[Any], x: Any, k: Any, axis: int, largest: bool, ordered: bool) -> Any:
    values, places = top_k(call.ops, x.ref, k=k, axis=axis, largest=largest)
    return [call.give(values, 0), call.give(places, 1)]


@rule("median.dim", "median.default")
def _median(call: AtenCall[Any], x: Any, axis: Any = None, keepdim: bool = False) -> Any:
    """Return the median, the lower of two middle elements."""
    ops, ref = call.ops, x.ref
    if axis is None:
        ref, at = ops.reshape(ref, shape=(-1,)), 0
    else:
        at = axis % len(x.shape)
    size = ref.shape[at]
    if not isinstance(size, int) or size == 0:
        raise UnsupportedError("the number of entries must be known, and not 0")
    values, places = sort(ops, ref, axis=at)
    middle = [ops.slice(each, axis=at, start=(size - 1) // 2, length=1) for each in (values, places)]
    middle = middle if keepdim else [ops.squeeze(each, axis=at) for each in middle]
    if axis is None:
        return call.give(_or_nan(ops, middle[0], ref, at, True))
    return [call.give(_or_nan(ops, middle[0], ref, at, keepdim is False), 0), call.give(middle[1], 1)]


def _or_nan(ops: Any, value: Any, x: Any, axis: int, gone: bool) -> Any:
    """Return nan where one of the entries is nan."""
    if x.dtype.kind != "f":
        return value
    bad = ops.reduce_any(ops.isnan(x), axis=axis, keepdims=not gone)
    return ops.select(bad, math.nan, value)


@rule("kthvalue.default")
def _kth(call: AtenCall[Any], x: Any, k: int, axis: int, keepdim: bool) -> Any:
    """Return the k-th smallest element along an axis, counted from 1, and its index."""
    ops = call.ops
    if not x.shape:
        return [call.give(x.ref, 0), call.give(ops.full(shape=(), value=0, dtype="int64"), 1)]
    at = axis % len(x.shape)
    found = [ops.slice(each, axis=at, start=k - 1, length=1) for each in sort(ops, x.ref, axis=at)]
    return [call.give(each if keepdim else ops.squeeze(each, axis=at), i) for i, each in enumerate(found)]


@rule("cummax.default", "cummin.default")
def _extremes_so_far(call: AtenCall[Any], x: Any, axis: int) -> Any:
    ops, function = call.ops, cummax if "cummax" in call.name else cummin
    if not x.shape:
        return [call.give(x.ref, 0), call.give(ops.full(shape=(), value=0, dtype="int64"), 1)]
    return [call.give(ref, i) for i, ref in enumerate(function(ops, x.ref, axis=axis))]


@rule("searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    call: AtenCall[Any], ordered: Any, values: Any, narrow: bool, right: bool, side: Any, sorter: Any
) -> Any:
    ops, dtype = call.ops, call.promoted(ordered, values)
    ref = ordered.ref
    if sorter is not None:
        ref = take_along_axis(ops, ref, ops.cast(sorter.ref, dtype="int64"), axis=len(ref.shape) - 1)
    given = call.tensor(TensorValue(ref, ordered.dtype), dtype), call.tensor(values, dtype)
    return call.give(searchsorted(ops, *given, right=right or side == "right"))


@rule("bucketize.Tensor", "bucketize.Scalar")
def _bucketize(call: AtenCall[Any], values: Any, ordered: Any, narrow: bool, right: bool) -> Any:
    dtype = call.promoted(ordered, values)
    return call.give(searchsorted(call.ops, call.tensor(ordered, dtype), call.tensor(values, dtype), right=right))


@rule("histc.default")
def _histc(call: AtenCall[Any], x: Any, bins: int = 100, low: Any = 0, high: Any = 0) -> Any:
    """Count the numbers in each of `bins` equal parts of [low, high]; those outside, and nan, are not counted."""
    ops = call.ops
    if not low < high:
        raise UnsupportedError("its range is that of its values, which is not known before a run; give it min and max")
    count = prod(x.shape)
    values = ops.reshape(call.floats(x), shape=(count,))
    first, last, parts, most = (ops.full(shape=(count,), value=float(each)) for each in (low, high, bins, bins - 1))
    inside = ops.logical_and(ops.less_equal(first, values), ops.less_equal(values, last))
    place = ops.div(ops.mul(ops.sub(values, first), parts), ops.sub(last, first))
    place = ops.minimum(ops.floor(place), most)
    numbers = ops.cast(ops.iota(shape=(1, bins), axis=1), dtype=place.dtype)
    own = ops.equal(*(ops.broadcast_to(each, shape=(count, bins)) for each in (ops.unsqueeze(place, axis=1), numbers)))
    own = ops.logical_and(own, ops.broadcast_to(ops.unsqueeze(inside, axis=1), shape=(count, bins)))
    return call.give(ops.reduce_sum(ops.cast(own, dtype=call.ops.dtype), axis=0))


# Indices --------------------------------------------------------------------------------------------------------------


@rule("embedding.default")
def _embedding(call: AtenCall[Any], table: Any, index: Any, padding_index: int, *_: Any) -> Any:
    """Look up rows of the table; the padding row has no gradient."""
    ops, idx = call.ops, call.ops.cast(index.ref, dtype="int64")
    rows = ops.gather_rows(table.ref, idx)
    if isinstance(padding_index, int) and padding_index >= 0:
        own = ops.unsqueeze(ops.equal(idx, padding_index), axis=len(idx.shape))
        rows = ops.select(call.stretched(own, rows.shape), ops.detach(rows), rows)
    return call.give(rows)


_BAGS = ("sum", "mean", "max")


@rule("_embedding_bag.default", "_embedding_bag_forward_only.default")
def _embedding_bag(call: AtenCall[Any], table: Any, index: Any, offsets: Any, *given: Any) -> Any:
    """Compute the sum, mean or maximum of each bag's rows; bag i begins at offset i. Padding rows are excluded."""
    by_frequency, mode, _, weights, last, padding = given
    ops, idx, starts = call.ops, *(call.ops.cast(each.ref, dtype="int64") for each in (index, offsets))
    if by_frequency or call.node.used - {0}:
        raise UnsupportedError("gradients by frequency and the bags themselves are not known")
    rows = ops.gather_rows(table.ref, idx)
    if weights is not None:
        rows = ops.mul(rows, call.stretched(ops.unsqueeze(weights.ref, axis=1), rows.shape))
    bags = starts.shape[0] - 1 if last else starts.shape[0]
    bag = ops.sub(searchsorted(ops, starts, ops.iota(shape=idx.shape), right=True), 1)
    if padding >= 0:
        bag = ops.select(ops.equal(idx, padding), ops.full(shape=idx.shape, value=bags, dtype="int64"), bag)
    kind, count = _BAGS[mode], bags + 1  # one more for the padding, removed below
    joined = (segment_max if kind == "max" else segment_sum)(ops, rows, bag, count=count)
    if kind == "mean":
        many = ops.cast(bincount(ops, bag, size=count), dtype=rows.dtype)
        many = ops.maximum(many, ops.full(shape=many.shape, value=1.0, dtype=rows.dtype))
        joined = ops.div(joined, call.stretched(ops.unsqueeze(many, axis=1), joined.shape))
    return [call.give(ops.slice(joined, axis=0, start=0, length=bags), 0), None, None, None]


@rule("index_select.default")
def _index_select(call: AtenCall[Any], x: Any, axis: int, index: Any) -> Any:
    if not x.shape:
        return call.give(x.ref)
    idx = call.ops.cast(index.ref, dtype="int64")
    return call.give(take(call.ops, x.ref, call.ops.reshape(idx, shape=(-1,)), axis=axis % len(x.shape)))


@rule("gather.default")
def _gather(call: AtenCall[Any], x: Any, axis: int, index: Any, sparse: bool) -> Any:
    """Gather entries along an axis; other axes of the index may be smaller."""
    ops, at = call.ops, axis % max(len(x.shape), 1)
    if not x.shape:
        return call.give(x.ref)
    ref = _cut(ops, x.ref, index.shape, at)
    return call.give(take_along_axis(ops, ref, ops.cast(index.ref, dtype="int64"), axis=at))


def _cut(ops: Any, x: Any, shape: Any, along: int) -> Any:
    """Cut x to the sizes of an index in all axes but one."""
    for axis, size in enumerate(shape):
        if axis != along and x.shape[axis] is not size and not (type(size) is int and size == x.shape[axis]):
            x = ops.slice(x, axis=axis, start=0, length=size)
    return x


@rule("scatter.src", "scatter.value", "scatter_add.default", "scatter.reduce", "scatter.value_reduce")
def _scatter(call: AtenCall[Any], x: Any, axis: int, index: Any, source: Any, reduce: str = "set") -> Any:
    reduce = "add" if "scatter_add" in call.name else {"multiply": "mul"}.get(reduce, reduce)
    return call.give(_put(call, x, axis, index, source, reduce))


_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min"}


@rule("scatter_reduce.two")
def _scatter_reduce(
    call: AtenCall[Any], x: Any, axis: int, index: Any, source: Any, reduce: str, include_self: bool
) -> Any:
    if reduce not in _REDUCTIONS or not include_self:
        raise UnsupportedError(f"with reduce={reduce!r} and include_self={include_self} it is not known")
    return call.give(_put(call, x, axis, index, source, _REDUCTIONS[reduce]))


def _put(call: AtenCall[Any], x: Any, axis: int, index: Any, source: Any, reduce: str) -> Any:
    ops, at = call.ops, axis % max(len(x.shape), 1)
    idx = ops.cast(index.ref, dtype="int64")
    if isinstance(source, TensorValue):
        updates = ops.cast(source.ref, dtype=x.ref.dtype) if source.ref.dtype != x.ref.dtype else source.ref
        for along, size in enumerate(idx.shape):
            updates = ops.slice(updates, axis=along, start=0, length=size)
    else:
        updates = call.tensor(source, x.dtype, idx.shape)
    others = [(a, size) for a, size in enumerate(idx.shape) if a != at]
    if all(_same(size, x.shape[a]) for a, size in others):
        return put_along_axis(ops, x.ref, idx, updates, axis=at, reduce=reduce)
    part = _cut(ops, x.ref, idx.shape, at)
    written = put_along_axis(ops, part, idx, updates, axis=at, reduce=reduce)
    return _corner(ops, x.ref, written)


def _same(a: Dim, b: Dim) -> bool:
    return a is b or (type(a) is int and type(b) is int and a == b)


def _corner(ops: Any, x: Any, part: Any) -> Any:
    """Return x with `part` written to its first corner."""
    padding = [(0, size - own) for size, own in zip(x.shape, part.shape)]
    there = ops.pad(ops.full(shape=part.shape, value=1, dtype="int64"), padding=padding, value=0)
    return ops.select(ops.equal(there, 1), ops.pad(part, padding=padding, value=0), x)


@rule("index_add.default")
def _index_add(call: AtenCall[Any], x: Any, axis: int, index: Any, source: Any, alpha: Any) -> Any:
    ops = call.ops
    updates = source.ref if alpha == 1 else ops.scale(source.ref, c=alpha)
    return call.give(index_add(ops, x.ref, ops.cast(index.ref, dtype="int64"), updates, axis=axis % len(x.shape)))


def _indexed(call: AtenCall[Any], x: Any, indices: Any) -> tuple[list[int], list[Any]]:
    """Return the indexed axes and their indices, broadcast to one shape. Raises UnsupportedError for masks."""
    if any(each is not None and each.dtype == BOOL for each in indices):
        raise UnsupportedError("it is indexed by a mask, so its size depends on values; torch.where chooses by one")
    axes = [axis for axis, each in enumerate(indices) if each is not None]
    refs = broadcast(call.ops, *[call.positive(indices[axis], x.shape[axis]) for axis in axes])
    return axes, list(refs)


@rule("index.Tensor", "_unsafe_index.Tensor")
def _index(call: AtenCall[Any], x: Any, indices: Any) -> Any:
    """Compute x[…, i, j, …] for integer indices; their axes replace the first indexed axis, or come first if not
    adjacent."""
    ops = call.ops
    axes, refs = _indexed(call, x, indices)
    rest = [axis for axis in range(len(x.shape)) if axis not in axes]
    moved = ops.permute(x.ref, axes=[*axes, *rest]) if x.shape else x.ref
    sizes = [x.shape[axis] for axis in axes]
    count: Any = prod(sizes)
    flat = refs[0]
    for ref, size in zip(refs[1:], sizes[1:]):
        flat = ops.add(ops.mul(flat, ops.full(shape=flat.shape, value=size, dtype="int64")), ref)
    for ref, size in zip(refs, sizes):  # an index out of range could be valid in another row
        flat = ops.select(_outside(ops, ref, size), ops.full(shape=flat.shape, value=count, dtype="int64"), flat)
    table = ops.reshape(moved, shape=(count, *[x.shape[axis] for axis in rest]))
    rows = ops.gather_rows(table, flat)
    together = axes == list(range(axes[0], axes[-1] + 1))
    if together and axes[0]:
        depth, before = len(flat.shape), axes[0]
        order = [*range(depth, depth + before), *range(depth), *range(depth + before, len(rows.shape))]
        rows = ops.permute(rows, axes=order)
    return call.give(rows)


def _outside(ops: Any, index: Any, size: Any) -> Any:
    last = ops.full(shape=index.shape, value=size, dtype="int64")
    return ops.logical_or(ops.less(index, 0), ops.less_equal(last, index))


@rule("index_put.default", "_unsafe_index_put.default")
def _index_put(call: AtenCall[Any], x: Any, indices: Any, values: Any, accumulate: bool, *_: Any) -> Any:
    ops = call.ops
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == BOOL:
        if accumulate or values.shape:
            raise UnsupportedError("values at the places of a mask are as many as it is true; a single one is known")
        mask = indices[0].ref
        mask = ops.reshape(mask, shape=(*mask.shape, *[1] * (len(x.shape) - len(mask.shape))))
        filled = call.stretched(call.tensor(values, x.dtype), x.shape)
        return call.give(ops.select(call.stretched(mask, x.shape), filled, x.ref))
    axes, refs = _indexed(call, x, indices)
    places, rest = refs[0].shape, [axis for axis in range(len(x.shape)) if axis not in axes]
    together = axes == list(range(axes[0], axes[-1] + 1))
    before = axes[0] if together else 0  # how many of the other axes precede the indexed ones in the written values
    sizes = [x.shape[axis] for axis in rest]
    updates = call.stretched(call.tensor(values, x.dtype), (*sizes[:before], *places, *sizes[before:]))
    if before:
        depth = len(places)
        order = [*range(before, before + depth), *range(before), *range(before + depth, depth + len(rest))]
        updates = ops.permute(updates, axes=order)
    index, order = ops.stack(refs, axis=len(places)), [*axes, *rest]
    written = scatter_nd(ops, ops.permute(x.ref, axes=order), index, updates, reduce="add" if accumulate else "set")
    return call.give(ops.permute(written, axes=[order.index(axis) for axis in range(len(order))]))


@rule("masked_scatter.default")
def _masked_scatter(call: AtenCall[Any], x: Any, mask: Any, source: Any) -> Any:
    """Return x with the source's elements, in order, where the mask is true."""
    ops = call.ops
    shape = common_shape([x.shape, mask.shape])
    ref, chosen = call.stretched(x.ref, shape), call.stretched(mask.ref, shape)
    flat = ops.reshape(chosen, shape=(-1,))
    place = ops.sub(ops.cumsum(ops.cast(flat, dtype="int64"), axis=0), 1)
    place = ops.select(flat, place, ops.full(shape=flat.shape, value=0, dtype="int64"))
    taken = ops.gather_vec(ops.reshape(source.ref, shape=(-1,)), place)
    return call.give(ops.select(chosen, ops.reshape(taken, shape=shape), ref))


@rule("one_hot.default")
def _one_hot(call: AtenCall[Any], index: Any, classes: int) -> Any:
    ops = call.ops
    if classes < 0:
        raise UnsupportedError("the number of classes is that of the greatest index; it must be given")
    shape = (*index.shape, classes)
    spread = call.stretched(ops.unsqueeze(ops.cast(index.ref, dtype="int64"), axis=len(index.shape)), shape)
    return call.give(ops.equal(spread, ops.iota(shape=shape, axis=len(index.shape))))
