"""Quantised numbers, y = round(x / scale) + zero_point, and products of them, for inference."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ....ops.errors import UnsupportedError
from ....ops.types import FLOAT32, INT32, DType
from ...values import TensorValue, Value, broadcast, stretched
from ..file import dtype_of
from ..graph import RULES, NodeCall, rule


def _along(call: NodeCall[Any], x: Any, i: int, axis: int, block: int) -> Any:
    """Broadcast a scale or zero point, input i, to x: one for all, one per channel, or one per block."""
    ops, y = call.ops, call.x(i)
    rank = len(x.shape)
    if not y.shape or (len(y.shape) == 1 and rank != 1 and isinstance(y.shape[0], int) and y.shape[0] == 1):
        return stretched(ops, ops.reshape(y, shape=()), x.shape)
    if block:
        wide = ops.unsqueeze(y, axis=axis + 1)
        shape = (*y.shape[: axis + 1], block, *y.shape[axis + 1 :])
        whole = ops.reshape(
            ops.broadcast_to(wide, shape=shape), shape=(*y.shape[:axis], y.shape[axis] * block, *y.shape[axis + 1 :])
        )
        return ops.slice(whole, axis=axis, start=0, length=x.shape[axis])
    if len(y.shape) == 1:
        y = ops.reshape(y, shape=(*[1] * axis, y.shape[0], *[1] * (rank - 1 - axis)))
    return stretched(ops, y, x.shape)


def _quantized(ops: Any, x: Any, scale: Any, zero: Any, dtype: DType) -> Any:
    """Round half to even and clamp to the range of `dtype`, as int64."""
    y = ops.round(ops.div(x, scale))
    y = y if zero is None else ops.add(y, ops.cast(zero, dtype=y.dtype))
    limits = np.iinfo(dtype)
    return ops.cast(ops.clamp(y, lo=float(limits.min), hi=float(limits.max)), dtype="int64")


def _small(dtype: DType) -> DType:
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        raise UnsupportedError(f"numbers quantised to {dtype} are not known")
    return dtype


@rule("QuantizeLinear")
def _quantize(call: NodeCall[Any]) -> Value:
    x = call.x()
    if x.dtype.kind != "f":
        x = call.ops.cast(x, dtype=call.ops.dtype)
    axis = call.axis(1) if call.rank() > 1 else 0
    block = int(call.attribute("block_size", 0))
    named = call.attribute("output_dtype", 0)
    dtype = _small(call.dtype(2) if call.has(2) else dtype_of(named) if named else np.dtype(np.uint8))
    scale = _along(call, x, 1, axis, block)
    zero = _along(call, x, 2, axis, block) if call.has(2) else None
    return TensorValue(_quantized(call.ops, x, scale, zero, dtype), dtype)


@rule("DequantizeLinear")
def _dequantize(call: NodeCall[Any]) -> Value:
    ops, x = call.ops, call.x()
    axis = call.axis(1) if call.rank() > 1 else 0
    block = int(call.attribute("block_size", 0))
    if call.has(2):
        x = ops.sub(x, ops.cast(_along(call, x, 2, axis, block), dtype=x.dtype))
    scale = _along(call, x, 1, axis, block)
    return call.give(ops.mul(ops.cast(x, dtype=ops.dtype), scale), call.dtype(1))


@rule("DynamicQuantizeLinear")
def _dynamic(call: NodeCall[Any]) -> tuple[Value, ...]:
    ops, x = call.ops, call.x()
    zero = ops.full(shape=(), value=0.0)
    low, high = ops.minimum(ops.neg(ops.reduce_max(ops.neg(x))), zero), ops.maximum(ops.reduce_max(x), zero)
    scale = ops.div(ops.sub(high, low), ops.full(shape=(), value=255.0))
    point = ops.clamp(ops.round(ops.neg(ops.div(low, scale))), lo=0.0, hi=255.0)
    uint8 = np.dtype(np.uint8)
    y = _quantized(ops, x, stretched(ops, scale, x.shape), stretched(ops, point, x.shape), uint8)
    return TensorValue(y, uint8), call.give(scale), TensorValue(ops.cast(point, dtype="int64"), uint8)


def _shifted(call: NodeCall[Any], i: int, zero: int, *, rows: bool = False) -> Any:
    """Subtract the zero point from integers; there may be one for each row or column."""
    ops, x = call.ops, call.ops.cast(call.x(i), dtype="int64")
    if not call.has(zero):
        return x
    point = ops.cast(call.x(zero), dtype="int64")
    if rows and len(point.shape) == 1 and not (isinstance(point.shape[0], int) and point.shape[0] == 1):
        point = ops.unsqueeze(point, axis=1)
    return ops.sub(x, stretched(ops, point, x.shape))


@rule("MatMulInteger")
def _matmul_integer(call: NodeCall[Any]) -> Value:
    a, b = _shifted(call, 0, 2, rows=True), _shifted(call, 1, 3)
    return call.give(_exact(call.ops, a, b), INT32)


def _exact(ops: Any, a: Any, b: Any) -> Any:
    """Compute a·b of integers by sums of products, since matrix products are in floats."""
    row, column = len(a.shape) == 1, len(b.shape) == 1
    a = ops.unsqueeze(a, axis=0) if row else a
    b = ops.unsqueeze(b, axis=1) if column else b
    left, right = broadcast(ops, ops.unsqueeze(a, axis=len(a.shape)), ops.unsqueeze(b, axis=len(b.shape) - 2))
    total = ops.reduce_sum(ops.mul(left, right), axis=len(left.shape) - 2)
    axes = [*([len(total.shape) - 2] if row else []), *([len(total.shape) - 1] if column else [])]
    return ops.squeeze(total, axis=tuple(axes)) if axes else total


@rule("QLinearMatMul")
def _q_matmul(call: NodeCall[Any]) -> Value:
    ops = call.ops
    a, b = _shifted(call, 0, 2, rows=True), _shifted(call, 3, 5)
    total = ops.cast(_exact(ops, a, b), dtype=ops.dtype)
    a_scale = call.x(1)
    if len(a_scale.shape) == 1 and not (isinstance(a_scale.shape[0], int) and a_scale.shape[0] == 1):
        a_scale = ops.unsqueeze(a_scale, axis=1)
    scales = [stretched(ops, each, total.shape) for each in (a_scale, call.x(4), call.x(6))]
    y = ops.mul(total, ops.mul(scales[0], scales[1]))
    dtype = _small(call.dtype(7))
    return TensorValue(_quantized(ops, y, scales[2], stretched(ops, call.x(7), total.shape), dtype), dtype)


_DIGIT = 16
"""The base of the digits, half a byte, into which integers are split if their products need too many bits."""


def _convolved(call: NodeCall[Any], x: Any, w: Any) -> Any:
    """Convolve integers of at most 9 bits exactly, by float convolutions whose sums stay in the exact integer range."""
    ops = call.ops
    cells = 1
    for size in w.shape[1:]:
        if not isinstance(size, int):
            raise UnsupportedError("the size of its kernel is not known")
        cells *= size
    largest = 2**24 if ops.dtype == FLOAT32 else 2**53
    xs, ws = [(1, x)], [(1, w)]
    if cells * 255 * 255 >= largest:
        xs = _digits(ops, x)
    if cells * _DIGIT * 255 >= largest:
        ws = _digits(ops, w)
    if cells * _DIGIT * _DIGIT >= largest:
        raise UnsupportedError(f"its sums of {cells} products leave the integers that {ops.dtype} holds")
    total = None
    for (a, digit), (b, other) in itertools.product(xs, ws):
        floats = [TensorValue(ops.cast(each, dtype=ops.dtype), FLOAT32) for each in (digit, other)]
        convolved = RULES["Conv"](call.as_op("Conv", floats))
        assert isinstance(convolved, TensorValue)
        part = ops.cast(convolved.ref, dtype="int64")
        if a * b > 1:
            part = ops.mul(part, ops.full(shape=part.shape, value=a * b, dtype="int64"))
        total = part if total is None else ops.add(total, part)
    return total


def _digits(ops: Any, x: Any) -> list[tuple[int, Any]]:
    """Return x as a sum of multiples of digits; the first digit has the sign."""
    base = ops.full(shape=x.shape, value=_DIGIT, dtype=x.dtype)
    return [(_DIGIT, ops.floor_divide(x, base)), (1, ops.mod(x, base))]


@rule("ConvInteger")
def _conv_integer(call: NodeCall[Any]) -> Value:
    x, w = _shifted(call, 0, 2), _kernel(call, 1, 3)
    return call.give(_convolved(call, x, w), INT32)


def _kernel(call: NodeCall[Any], i: int, zero: int) -> Any:
    ops, w = call.ops, call.ops.cast(call.x(i), dtype="int64")
    if not call.has(zero):
        return w
    return ops.sub(w, ops.cast(_along(call, w, zero, 0, 0), dtype="int64"))


@rule("QLinearConv")
def _q_conv(call: NodeCall[Any]) -> Value:
    ops = call.ops
    total = _convolved(call, _shifted(call, 0, 2), _kernel(call, 3, 5))
    if call.has(8):
        bias = ops.cast(call.x(8), dtype=total.dtype)
        wide = ops.reshape(bias, shape=(1, bias.shape[0], *[1] * (len(total.shape) - 2)))
        total = ops.add(total, stretched(ops, wide, total.shape))
    total = ops.cast(total, dtype=ops.dtype)
    scales = [_along(call, total, i, 1, 0) for i in (1, 4, 6)]
    y = ops.mul(total, ops.mul(scales[0], scales[1]))
    dtype = _small(call.dtype(7))
    return TensorValue(_quantized(ops, y, scales[2], stretched(ops, call.x(7), total.shape), dtype), dtype)


def _dequantized(call: NodeCall[Any], i: int) -> Any:
    """Return the numbers of inputs i, i + 1 and i + 2: quantised ones, their scale and zero point."""
    ops, x = call.ops, call.ops.cast(call.x(i), dtype="int64")
    if call.has(i + 2):
        x = ops.sub(x, stretched(ops, ops.cast(ops.reshape(call.x(i + 2), shape=()), dtype="int64"), x.shape))
    return ops.mul(ops.cast(x, dtype=ops.dtype), stretched(ops, ops.reshape(call.x(i + 1), shape=()), x.shape))


def _q_linear(op: str, operands: int, function: Any) -> None:
    """Register an operator of com.microsoft on quantised numbers: (x, scale, zero) for each operand and the result."""

    @rule(f"com.microsoft.QLinear{op}")
    def apply(call: NodeCall[Any]) -> Value:
        ops, at = call.ops, 3 * operands
        y = function(call, *broadcast(ops, *[_dequantized(call, 3 * i) for i in range(operands)]))
        scale, zero = (stretched(ops, ops.reshape(call.x(at + i), shape=()), y.shape) for i in (0, 1))
        return TensorValue(_quantized(ops, y, scale, zero, _small(call.dtype())), call.dtype())


_q_linear("Add", 2, lambda call, x, y: call.ops.add(x, y))
_q_linear("Mul", 2, lambda call, x, y: call.ops.mul(x, y))
_q_linear("Sigmoid", 1, lambda call, x: call.ops.sigmoid(x))
_q_linear("LeakyRelu", 1, lambda call, x: call.ops.leaky_relu(x, negative_slope=call.attribute("alpha", 0.01)))
