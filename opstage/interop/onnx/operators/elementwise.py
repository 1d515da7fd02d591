"""Elementwise arithmetic and functions, activations, comparisons and conversions: mostly single ONNX operators."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np

from ....ops.catalogue import activation as activation
from ....ops.catalogue import elementwise as elementwise
from ....ops.catalogue import logic as logic
from ....ops.catalogue import primitives
from ....ops.catalogue import rounding as rounding
from ....ops.catalogue import transcendental as transcendental
from ....ops.errors import UnsupportedError
from ....ops.types import BOOL, FLOAT32, INT64, DType, Shape, as_dtype
from ...operators import NAN, compared, exported, masked, pointwise, together
from ...values import KnownValue, Value, broadcast, stretched
from ..call import NodeCall, rule
from ..file import dtype_of, is_bfloat16
from ..writer import EXPORTS, OnnxRule, OnnxValue, OnnxWriter, Operands, Results, broadcasting, direct

# Arithmetic, elementwise functions, comparisons and masks


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


# Floor division and shifts, by ONNX's Mod, Div and BitShift, avoiding operands that runtimes leave un


def _write_rest(writer: OnnxWriter, x: OnnxValue, y: OnnxValue, dtype: DType) -> tuple[str, str]:
    """Return x modulo y, and the divisor used: 1 for integer divisors 0 and -1, where the remainder is 0."""
    zero = writer.number(0, dtype)
    if dtype.kind == "i":
        special = writer.node("Or", writer.node("Equal", y, zero), writer.node("Equal", y, writer.number(-1, dtype)))
        safe = writer.node("Where", special, writer.number(1, dtype), y)
        return writer.node("Mod", x, safe), safe
    rest = writer.node("Mod", x, y, fmod=1)
    below = writer.node("And", writer.node("Less", rest, zero), writer.node("Greater", y, zero))
    above = writer.node("And", writer.node("Greater", rest, zero), writer.node("Less", y, zero))
    apart = writer.node("Or", below, above)
    return writer.node("Where", apart, writer.node("Add", rest, y), rest), y.name


def _write_mod(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    x, y = operands
    return (_write_rest(writer, x, y, results[0].dtype)[0],)


def _write_floor_divide(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    (x, y), dtype = operands, results[0].dtype
    rest, divisor = _write_rest(writer, x, y, dtype)
    whole = writer.node("Div", writer.node("Sub", x, rest), divisor)
    by_zero = writer.node("Equal", y, writer.number(0, dtype))
    if dtype.kind == "f":
        return (writer.node("Where", by_zero, writer.node("Div", x, y), writer.node("Round", whole)),)
    opposite = writer.node("Equal", y, writer.number(-1, dtype))
    whole = writer.node("Where", opposite, writer.node("Neg", x), whole)
    return (writer.node("Where", by_zero, writer.number(0, dtype), whole),)


def _write_places(writer: OnnxWriter, y: OnnxValue, dtype: DType) -> tuple[str, str]:
    """Return where all bits are shifted out, and the clamped number of places: at most the width minus one."""
    width = writer.number(8 * dtype.itemsize - 1, dtype)
    gone = writer.node("Or", writer.node("Less", width, y), writer.node("Less", y, writer.number(0, dtype)))
    return gone, writer.node("Where", gone, width, y)


def _write_left_shift(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    """Shift the bits as unsigned numbers, the only ones that ONNX shifts; 0 where all bits are shifted out."""
    (x, y), dtype = operands, results[0].dtype
    unsigned = np.dtype(f"u{dtype}")
    gone, places = _write_places(writer, y, dtype)
    shifted = writer.node(
        "BitShift", writer.converted(x, unsigned), writer.converted(places, unsigned), direction="LEFT"
    )
    return (writer.node("Where", gone, writer.number(0, dtype), writer.converted(shifted, dtype)),)


def _write_right_shift(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    """Shift x where it is not negative, and its complement where it is, which extends the sign."""
    (x, y), dtype = operands, results[0].dtype
    unsigned = np.dtype(f"u{dtype}")
    places = writer.converted(_write_places(writer, y, dtype)[1], unsigned)
    below = writer.node("Less", x, writer.number(0, dtype))
    turned = writer.node("Where", below, writer.node("BitwiseNot", x), x)
    shifted = writer.node("BitShift", writer.converted(turned, unsigned), places, direction="RIGHT")
    back = writer.converted(shifted, dtype)
    return (writer.node("Where", below, writer.node("BitwiseNot", back), back),)


def _write_scale(writer: OnnxWriter, operands: Operands, results: Results, /, *, c: Any) -> tuple[str, ...]:
    return (writer.node("Mul", *operands, writer.number(c, results[0].dtype)),)


def _write_pow(writer: OnnxWriter, operands: Operands, results: Results, /, *, exponent: Any) -> tuple[str, ...]:
    if exponent in (Fraction(1, 2), Fraction(-1, 2)):
        root = writer.node("Sqrt", *operands)
        return (root if exponent > 0 else writer.node("Reciprocal", root),)
    return (writer.node("Pow", *operands, writer.number(exponent, results[0].dtype)),)


def _write_to_base(base: float) -> OnnxRule:
    """A logarithm to another base through the natural one, the only one in ONNX."""

    def says(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
        natural = writer.node("Log", *operands)
        return (writer.node("Mul", natural, writer.number(1 / math.log(base), results[0].dtype)),)

    return OnnxRule(says, "by the natural logarithm: of a power of the base it may be an ulp off")


def _write_exp2(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (writer.node("Pow", writer.number(2, results[0].dtype), *operands),)


def _write_clamp(writer: OnnxWriter, operands: Operands, results: Results, /, *, lo: Any, hi: Any) -> tuple[str, ...]:
    dtype = results[0].dtype
    return (writer.node("Clip", *operands, writer.number(lo, dtype), writer.number(hi, dtype)),)


def _write_safe_log(writer: OnnxWriter, operands: Operands, results: Results, /, *, eps: Any) -> tuple[str, ...]:
    return (writer.node("Log", writer.node("Max", *operands, writer.number(eps, results[0].dtype))),)


def _write_silu(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (writer.node("Mul", *operands, writer.node("Sigmoid", *operands)),)


def _write_gelu(
    writer: OnnxWriter, operands: Operands, results: Results, /, *, approximate: str
) -> tuple[str, ...] | None:
    """Decompose in float64: ONNX specifies Gelu with float32 constants."""
    return (writer.node("Gelu", *operands, approximate=approximate),) if operands[0].dtype == FLOAT32 else None


def _write_cast(writer: OnnxWriter, operands: Operands, results: Results, /, *, dtype: str) -> tuple[str, ...]:
    (x,) = operands
    return (x.name if x.dtype == results[0].dtype else writer.converted(x, as_dtype(dtype)),)


def _write_detach(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (operands[0].name,)


def _write_select(writer: OnnxWriter, operands: Operands, results: Results, /) -> tuple[str, ...]:
    """Select masks by logic, since onnxruntime has no Where for them."""
    if results[0].dtype != BOOL:
        return (writer.broadcasting("Where", *operands),)
    mask, x, y = operands
    chosen = writer.node("And", mask, x)
    return (writer.node("Or", chosen, writer.node("And", writer.node("Not", mask), y)),)


def _write_full(
    writer: OnnxWriter, operands: Operands, results: Results, /, *, shape: Shape, value: Any, dtype: str
) -> tuple[str, ...]:
    return (writer.filled(shape, value, as_dtype(dtype)),)


def _write_iota(
    writer: OnnxWriter, operands: Operands, results: Results, /, *, shape: Shape, axis: int, dtype: str
) -> tuple[str, ...]:
    size = shape[axis]
    count = writer.number(size, INT64)
    steps = writer.node("Range", writer.number(0, INT64), count, writer.number(1, INT64))
    if as_dtype(dtype) != INT64:
        steps = writer.converted(steps, as_dtype(dtype))
    column = (size, *(1,) * (len(shape) - axis - 1))
    return (writer.expanded(writer.reshaped(steps, (size,), column), column, shape),)


EXPORTS.update(
    {
        **{
            primitives()[each.op]: (direct if each.kind is pointwise else broadcasting)(each.onnx, note=each.note)
            for each in exported(pointwise, together, compared, masked)
        },
        elementwise.SCALE: OnnxRule(_write_scale),
        rounding.FLOOR_DIVIDE: OnnxRule(_write_floor_divide),
        rounding.MOD: OnnxRule(_write_mod),
        rounding.LEFT_SHIFT: OnnxRule(_write_left_shift),
        rounding.RIGHT_SHIFT: OnnxRule(_write_right_shift),
        transcendental.EXP2: OnnxRule(_write_exp2),
        transcendental.LOG2: _write_to_base(2),
        transcendental.LOG10: _write_to_base(10),
        elementwise.POW: OnnxRule(_write_pow),
        elementwise.CLAMP: OnnxRule(_write_clamp, NAN),
        elementwise.SAFE_LOG: OnnxRule(_write_safe_log, NAN),
        activation.SILU: OnnxRule(_write_silu),
        activation.GELU: OnnxRule(_write_gelu),
        logic.SELECT: OnnxRule(_write_select),
        logic.CAST: OnnxRule(_write_cast),
        logic.DETACH: OnnxRule(_write_detach),
        logic.FULL: OnnxRule(_write_full),
        logic.IOTA: OnnxRule(_write_iota),
    }
)
