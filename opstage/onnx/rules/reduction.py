"""Sums, means and extrema over axes, cumulative sums, arg-extrema, sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops.derived import logsumexp
from ...ops.errors import UnsupportedError
from ...ops.functions.arrange import flip
from ...ops.functions.ordering import top_k
from ..call import NodeCall, rule
from ..values import Value


def _axes(call: NodeCall[Any]) -> tuple[int, ...] | None:
    """Return the axes of a reduction: by default all, or none if the node says so."""
    axes = call.axes(None)
    if not axes:
        return () if call.attribute("noop_with_empty_axes", 0) else None
    return tuple(int(axis) % call.rank() if call.rank() else 0 for axis in axes)


def _reduced(op: str, function: Callable[..., Any]) -> None:
    @rule(op, known=(1,))
    def apply(call: NodeCall[Any]) -> Value:
        axes, keep = _axes(call), bool(call.attribute("keepdims", 1))
        x = call.x()
        if axes is None:
            axes = tuple(range(call.rank()))
        return call.wrap(function(call.ops, x, axes, keep))


def _norm(ops: Any, x: Any, axes: Any, keep: bool) -> Any:
    squares = ops.reduce_sum(ops.mul(x, x), axis=axes, keepdims=keep)
    return ops.sqrt(squares if squares.dtype.kind == "f" else ops.cast(squares, dtype=ops.dtype))


def _log(ops: Any, total: Any) -> Any:
    return ops.log(total if total.dtype.kind == "f" else ops.cast(total, dtype=ops.dtype))


_reduced("ReduceSum", lambda ops, x, axes, keep: ops.reduce_sum(x, axis=axes, keepdims=keep))
_reduced("ReduceSumSquare", lambda ops, x, axes, keep: ops.reduce_sum(ops.mul(x, x), axis=axes, keepdims=keep))
_reduced("ReduceL1", lambda ops, x, axes, keep: ops.reduce_sum(ops.abs(x), axis=axes, keepdims=keep))
_reduced("ReduceL2", _norm)
_reduced("ReduceLogSum", lambda ops, x, axes, keep: _log(ops, ops.reduce_sum(x, axis=axes, keepdims=keep)))
_reduced("ReduceProd", lambda ops, x, axes, keep: ops.reduce_prod(x, axis=axes, keepdims=keep))


@rule("ReduceMean", known=(1,))
def _mean(call: NodeCall[Any]) -> Value:
    axes = _axes(call)
    axes = tuple(range(call.rank())) if axes is None else axes
    x = call.x()
    if x.dtype.kind != "f":
        raise UnsupportedError("a mean of integers is not rounded in one way by all runtimes")
    return call.give(call.ops.reduce_mean(x, axis=axes, keepdims=bool(call.attribute("keepdims", 1))))


def _of_none(call: NodeCall[Any], x: Any, axes: tuple[int, ...], value: Any) -> Any:
    """Return the value of a reduction over no elements, as ONNX defines it; None if there are elements."""
    if not any(isinstance(x.shape[axis], int) and x.shape[axis] == 0 for axis in axes):
        return None
    keep = bool(call.attribute("keepdims", 1))
    shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape) if keep or i not in axes)
    return call.ops.full(shape=shape, value=value, dtype=x.dtype)


def _extremum(op: str, greatest: bool) -> None:
    @rule(op, known=(1,))
    def apply(call: NodeCall[Any]) -> Value:
        ops, x, axes = call.ops, call.x(), _axes(call)
        axes = tuple(range(call.rank())) if axes is None else axes
        keep = bool(call.attribute("keepdims", 1))
        if x.dtype.kind == "b":
            every = ops.reduce_any if greatest else ops.reduce_all
            return call.mask(every(x, axis=axes, keepdims=keep))
        limits = np.iinfo(call.dtype()) if call.dtype().kind in "iu" else np.finfo(np.float64)
        least: Any = limits.min if greatest else limits.max
        if call.dtype().kind == "f":
            least = -math.inf if greatest else math.inf
        if (empty := _of_none(call, x, axes, least)) is not None:
            return call.give(empty)
        reduce = ops.reduce_max if greatest else ops.reduce_min
        return call.give(reduce(x, axis=axes, keepdims=keep))


_extremum("ReduceMax", True)
_extremum("ReduceMin", False)


@rule("ReduceLogSumExp", known=(1,))
def _log_sum_exp(call: NodeCall[Any]) -> Value:
    axes = _axes(call)
    axes = tuple(range(call.rank())) if axes is None else axes
    x = call.ops.cast(call.x(), dtype=call.ops.dtype)
    if not axes:
        return call.give(x)
    if (empty := _of_none(call, x, axes, -math.inf)) is not None:
        return call.give(empty)
    return call.give(logsumexp(call.ops, x, axis=axes, keepdims=bool(call.attribute("keepdims", 1))))


@rule("ArgMax", "ArgMin")
def _arg(call: NodeCall[Any]) -> Value:
    ops, x, axis = call.ops, call.x(), call.axis(0)
    keep, last = bool(call.attribute("keepdims", 1)), bool(call.attribute("select_last_index", 0))
    if last:
        x = flip(ops, x, axis=axis)
    found = (ops.argmin if call.node.op == "ArgMin" else ops.argmax)(x, axis=axis, keepdims=keep)
    if last:
        found = ops.sub(ops.full(shape=found.shape, value=x.shape[axis] - 1, dtype="int64"), found)
    return call.index(found)


@rule("CumSum", "CumProd", known=(1,))
def _cumulative(call: NodeCall[Any]) -> Value:
    axis = int(call.number(1, "axis")) % call.rank()
    op = call.ops.cumsum if call.node.op == "CumSum" else call.ops.cumprod
    exclusive, reverse = bool(call.attribute("exclusive", 0)), bool(call.attribute("reverse", 0))
    return call.wrap(op(call.x(), axis=axis, exclusive=exclusive, reverse=reverse))


@rule("TopK", known=(1,))
def _top_k(call: NodeCall[Any]) -> tuple[Value, ...]:
    ops, x, axis = call.ops, call.x(), call.axis(-1)
    k = call.number(1, "k", call.attribute("k"))
    values, places = top_k(ops, x, k=k, axis=axis, largest=bool(call.attribute("largest", 1)))
    return call.give(values), call.index(places)
