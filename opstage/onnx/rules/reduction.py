"""Sums, means and extrema over axes, cumulative sums, arg-extrema, sorting."""

from __future__ import annotations

from typing import Any

from ...operators.values import Value
from ...ops.functions.arrange import flip
from ...ops.functions.ordering import top_k
from ..call import NodeCall, rule


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
