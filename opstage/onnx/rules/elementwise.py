"""Arithmetic, elementwise functions, comparisons and masks."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np

from ...operators.values import KnownValue, Value, broadcast, stretched
from ...ops.errors import UnsupportedError
from ...ops.types import BOOL
from ..call import NodeCall, rule
from ..element_types import dtype_of, is_bfloat16


@rule("Identity")
def _identity(call: NodeCall[Any]) -> Value:
    return call.value(0)


@rule("Pow")
def _pow(call: NodeCall[Any]) -> Value:
    ops, exponent = call.ops, call.value(1)
    dtype = call.dtype()
    if isinstance(exponent, KnownValue) and exponent.array.size == 1 and call.rank(1) <= call.rank(0):
        e = exponent.array.reshape(-1)[0]
        e = e.item() if isinstance(e, np.generic) else e
        if dtype.kind == "f":
            return call.give(ops.pow(call.x(), exponent=int(e) if isinstance(e, float) and e.is_integer() else e))
        if isinstance(e, int) and e >= 0:
            one = ops.full(shape=call.shape(), value=1, dtype=call.x().dtype)
            return call.wrap(reduce(ops.mul, [call.x()] * e, one))
    x, y = call.x(0), call.x(1)
    if dtype.kind != "f":
        x = ops.cast(x, dtype=ops.dtype)
    if y.dtype.kind != "f":
        y = ops.cast(y, dtype=ops.dtype)
    return call.give(ops.power(*broadcast(ops, x, y)))


@rule("Mean")
def _mean(call: NodeCall[Any]) -> Value:
    total = reduce(call.ops.add, call.spread())
    return call.give(call.ops.scale(total, c=1 / len(call)))


@rule("Clip", known=(1, 2))
def _clip(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    bounds: list[Any] = []
    for i, name in ((1, "min"), (2, "max")):
        if call.has(i) and not isinstance(call.value(i), KnownValue):
            bounds.append(stretched(ops, call.x(i), x.shape))
        else:
            bounds.append(call.number(i, name, call.attribute(name)))
    low, high = bounds
    plain = all(isinstance(each, (int, float)) for each in (low, high)) and x.dtype.kind == "f"
    return call.give(ops.clamp(x, lo=low, hi=high)) if plain and low <= high else _limited(call, x, low, high)


def _limited(call: NodeCall[Any], x: Any, low: Any, high: Any) -> Value:
    ops = call.ops

    def tensor(bound: Any) -> Any:
        return ops.full(shape=x.shape, value=bound, dtype=x.dtype) if isinstance(bound, (int, float)) else bound

    x = x if low is None else ops.maximum(x, tensor(low))
    return call.give(x if high is None else ops.minimum(x, tensor(high)))


@rule("IsInf")
def _is_inf(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    wanted = {math.inf: call.attribute("detect_positive", 1), -math.inf: call.attribute("detect_negative", 1)}
    signs = [sign for sign, found in wanted.items() if found]
    if len(signs) == 2:
        return call.mask(ops.isinf(x))
    if not signs:
        return call.mask(ops.full(shape=x.shape, value=False, dtype=BOOL))
    return call.mask(ops.equal(x, ops.full(shape=x.shape, value=signs[0], dtype=x.dtype)))


@rule("Where")
def _where(call: NodeCall[Any]) -> Value:
    mask, x, y = call.spread(0, 1, 2)
    return call.give(call.ops.select(mask, x, y), call.dtype(1))


@rule("Cast", "CastLike")
def _cast(call: NodeCall[Any]) -> Value:
    source = call.dtype()
    target = call.dtype(1) if call.node.op == "CastLike" else dtype_of(int(call.attribute("to")))
    ops, x = call.ops, call.x()
    if is_bfloat16(target) and not is_bfloat16(source):
        raise UnsupportedError("a cast to bfloat16 would not round here, where all floats are of the program's dtype")
    if (
        target.kind == "f"
        and source.kind == "f"
        and target == np.float16
        and target.itemsize < source.itemsize
        and not call.is_exact
    ):
        raise UnsupportedError("a cast to float16 would not round here, where all floats are of the program's dtype")
    if target.kind in "iu" and source.kind == "f" and x.dtype.kind == "f":
        x = ops.cast(x, dtype="int64")
        return call.wrap(x, target)
    return call.wrap(x, target) if target.kind in "iu" and source.kind in "iu" else call.give(x, target)


@rule("BitShift")
def _bit_shift(call: NodeCall[Any]) -> Value:
    x, y = call.spread(0, 1)
    left = call.attribute("direction") == "LEFT"
    return call.wrap(call.ops.left_shift(x, y) if left else call.ops.right_shift(x, y))
