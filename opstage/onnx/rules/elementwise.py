"""Arithmetic, elementwise functions, comparisons and masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from ...ops.errors import UnsupportedError
from ...ops.types import BOOL
from ..call import NodeCall, pointwise, rule
from ..element_types import dtype_of, is_bfloat16
from ..values import KnownValue, Value, common_shape, stretched

pointwise(
    {
        "Acos": lambda ops, x: ops.acos(x),
        "Acosh": lambda ops, x: ops.acosh(x),
        "Asin": lambda ops, x: ops.asin(x),
        "Asinh": lambda ops, x: ops.asinh(x),
        "Atan": lambda ops, x: ops.atan(x),
        "Atanh": lambda ops, x: ops.atanh(x),
        "Abs": lambda ops, x: ops.abs(x),
        "Ceil": lambda ops, x: ops.ceil(x),
        "Cos": lambda ops, x: ops.cos(x),
        "Cosh": lambda ops, x: ops.cosh(x),
        "Erf": lambda ops, x: ops.erf(x),
        "Exp": lambda ops, x: ops.exp(x),
        "Floor": lambda ops, x: ops.floor(x),
        "Identity": lambda ops, x: x,
        "Log": lambda ops, x: ops.log(x),
        "Reciprocal": lambda ops, x: ops.inv(x),
        "Relu": lambda ops, x: ops.relu(x) if x.dtype.kind == "f" else ops.maximum(x, ops.sub(x, x)),
        "Round": lambda ops, x: ops.round(x),
        "Sigmoid": lambda ops, x: ops.sigmoid(x),
        "Sign": lambda ops, x: ops.sign(x),
        "Sin": lambda ops, x: ops.sin(x),
        "Sinh": lambda ops, x: ops.sinh(x),
        "Softplus": lambda ops, x: ops.softplus(x),
        "Softsign": lambda ops, x: ops.softsign(x),
        "Sqrt": lambda ops, x: ops.sqrt(x),
        "Tan": lambda ops, x: ops.tan(x),
        "Tanh": lambda ops, x: ops.tanh(x),
        "Mish": lambda ops, x: ops.mish(x),
    }
)


def _arithmetic(op: str, function: Callable[[Any, Any, Any], Any]) -> None:
    @rule(op)
    def apply(call: NodeCall[Any]) -> Value:
        _same_types(call)
        return call.wrap(function(call.ops, *call.spread(0, 1)))


_arithmetic("Add", lambda ops, x, y: ops.add(x, y))
_arithmetic("Sub", lambda ops, x, y: ops.sub(x, y))
_arithmetic("Mul", lambda ops, x, y: ops.mul(x, y))


def _same_types(call: NodeCall[Any]) -> None:
    types = {str(call.dtype(i)) for i in range(len(call)) if call.has(i)}
    if len(types) > 1:
        raise UnsupportedError(f"its inputs are of the types {', '.join(sorted(types))}; they must be of one")


@rule("Neg")
def _neg(call: NodeCall[Any]) -> Value:
    return call.wrap(call.ops.neg(call.x()))


@rule("Div")
def _div(call: NodeCall[Any]) -> Value:
    _same_types(call)
    x, y = call.spread(0, 1)
    if x.dtype.kind == "f":
        return call.give(call.ops.div(x, y))
    ops = call.ops  # towards zero, as in C: one up if rounding down went below the quotient
    zero = ops.full(shape=x.shape, value=0, dtype=x.dtype)
    apart = ops.logical_xor(ops.less(x, zero), ops.less(y, zero))
    inexact = ops.logical_not(ops.equal(ops.mod(x, y), zero))
    quotient = ops.floor_divide(x, y)
    up = ops.cast(ops.logical_and(apart, inexact), dtype=x.dtype)
    return call.wrap(ops.add(quotient, up))


@rule("Mod")
def _mod(call: NodeCall[Any]) -> Value:
    x, y = call.spread(0, 1)
    return call.give(call.ops.fmod(x, y) if call.attribute("fmod", 0) else call.ops.mod(x, y))


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
    shape = _common(call)
    result = ops.power(stretched(ops, x, shape), stretched(ops, y, shape))
    return call.give(result)


def _common(call: NodeCall[Any]) -> Any:
    return common_shape([call.shape(i) for i in range(len(call))])


def _folded(op: str, function: Callable[[Any, Any, Any], Any]) -> None:
    @rule(op)
    def apply(call: NodeCall[Any]) -> Value:
        return call.wrap(reduce(lambda x, y: function(call.ops, x, y), call.spread()))


_folded("Sum", lambda ops, x, y: ops.add(x, y))
_folded("Max", lambda ops, x, y: ops.maximum(x, y))
_folded("Min", lambda ops, x, y: ops.minimum(x, y))


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


def _compared(op: str, function: Callable[[Any, Any, Any], Any]) -> None:
    @rule(op)
    def apply(call: NodeCall[Any]) -> Value:
        return call.mask(function(call.ops, *call.spread(0, 1)))


_compared("Equal", lambda ops, x, y: ops.equal(x, y))
_compared("Less", lambda ops, x, y: ops.less(x, y))
_compared("LessOrEqual", lambda ops, x, y: ops.less_equal(x, y))
_compared("Greater", lambda ops, x, y: ops.less(y, x))
_compared("GreaterOrEqual", lambda ops, x, y: ops.less_equal(y, x))
_compared("And", lambda ops, x, y: ops.logical_and(x, y))
_compared("Or", lambda ops, x, y: ops.logical_or(x, y))
_compared("Xor", lambda ops, x, y: ops.logical_xor(x, y))


@rule("Not")
def _not(call: NodeCall[Any]) -> Value:
    return call.mask(call.ops.logical_not(call.x()))


@rule("IsNaN")
def _is_nan(call: NodeCall[Any]) -> Value:
    return call.mask(call.ops.isnan(call.x()))


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
    if target.kind == "f" and source.kind == "f" and target.itemsize < source.itemsize and target == np.float16:
        raise UnsupportedError("a cast to float16 would not round here, where all floats are of the program's dtype")
    if target.kind in "iu" and source.kind == "f" and x.dtype.kind == "f":
        x = ops.cast(x, dtype="int64")
        return call.wrap(x, target)
    return call.wrap(x, target) if target.kind in "iu" and source.kind in "iu" else call.give(x, target)


def _bitwise(op: str, name: str) -> None:
    @rule(op)
    def apply(call: NodeCall[Any]) -> Value:
        return call.wrap(getattr(call.ops, name)(*call.spread(0, 1)))


_bitwise("BitwiseAnd", "bitwise_and")
_bitwise("BitwiseOr", "bitwise_or")
_bitwise("BitwiseXor", "bitwise_xor")


@rule("BitwiseNot")
def _bitwise_not(call: NodeCall[Any]) -> Value:
    return call.wrap(call.ops.bitwise_xor(call.x(), -1))


@rule("BitShift")
def _bit_shift(call: NodeCall[Any]) -> Value:
    x, y = call.spread(0, 1)
    left = call.attribute("direction") == "LEFT"
    return call.wrap(call.ops.left_shift(x, y) if left else call.ops.right_shift(x, y))
