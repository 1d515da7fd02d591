"""Sums, means, extrema and statistics over axes; cumulative sums; sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ....ops.advanced_indexing import take_along_axis
from ....ops.dims import prod
from ....ops.errors import UnsupportedError
from ....ops.sequence import searchsorted, sort, top_k
from ....ops.statistics import cummax, cummin, norm, std, var
from ....ops.types import BOOL
from ...values import TensorValue
from ..call import AtenCall, rule


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
