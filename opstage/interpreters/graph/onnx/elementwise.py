"""Elementwise arithmetic and functions, activations, comparisons and conversions: mostly single ONNX operators."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from ....operators.table import NAN, compared, exported, masked, pointwise, together
from ....ops.catalogue import activation, elementwise, logic, primitives, rounding, transcendental
from ....ops.primitive import Primitive
from ....ops.types import BOOL, FLOAT32, INT64, Shape, TensorType, as_dtype
from .division import floor_divide, left_shift, mod, right_shift
from .nodes import OnnxValue
from .rules import OnnxRule, broadcasting, direct
from .writer import Writer

Operands = tuple[OnnxValue, ...]
Results = tuple[TensorType, ...]


def _scale(writer: Writer, operands: Operands, results: Results, /, *, c: Any) -> tuple[str, ...]:
    return (writer.node("Mul", *operands, writer.number(c, results[0].dtype)),)


def _pow(writer: Writer, operands: Operands, results: Results, /, *, exponent: Any) -> tuple[str, ...]:
    if exponent in (Fraction(1, 2), Fraction(-1, 2)):
        root = writer.node("Sqrt", *operands)
        return (root if exponent > 0 else writer.node("Reciprocal", root),)
    return (writer.node("Pow", *operands, writer.number(exponent, results[0].dtype)),)


def _to_base(base: float) -> OnnxRule:
    """A logarithm to another base through the natural one, the only one in ONNX."""

    def says(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
        natural = writer.node("Log", *operands)
        return (writer.node("Mul", natural, writer.number(1 / math.log(base), results[0].dtype)),)

    return OnnxRule(says, "by the natural logarithm: of a power of the base it may be an ulp off")


def _exp2(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (writer.node("Pow", writer.number(2, results[0].dtype), *operands),)


def _clamp(writer: Writer, operands: Operands, results: Results, /, *, lo: Any, hi: Any) -> tuple[str, ...]:
    dtype = results[0].dtype
    return (writer.node("Clip", *operands, writer.number(lo, dtype), writer.number(hi, dtype)),)


def _safe_log(writer: Writer, operands: Operands, results: Results, /, *, eps: Any) -> tuple[str, ...]:
    return (writer.node("Log", writer.node("Max", *operands, writer.number(eps, results[0].dtype))),)


def _silu(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (writer.node("Mul", *operands, writer.node("Sigmoid", *operands)),)


def _gelu(writer: Writer, operands: Operands, results: Results, /, *, approximate: str) -> tuple[str, ...] | None:
    """Decompose in float64: ONNX specifies Gelu with float32 constants."""
    return (writer.node("Gelu", *operands, approximate=approximate),) if operands[0].dtype == FLOAT32 else None


def _cast(writer: Writer, operands: Operands, results: Results, /, *, dtype: str) -> tuple[str, ...]:
    (x,) = operands
    return (x.name if x.dtype == results[0].dtype else writer.converted(x, as_dtype(dtype)),)


def _detach(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (operands[0].name,)


def _select(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    """Select masks by logic, since onnxruntime has no Where for them."""
    if results[0].dtype != BOOL:
        return (writer.broadcasting("Where", *operands),)
    mask, x, y = operands
    chosen = writer.node("And", mask, x)
    return (writer.node("Or", chosen, writer.node("And", writer.node("Not", mask), y)),)


def _full(
    writer: Writer, operands: Operands, results: Results, /, *, shape: Shape, value: Any, dtype: str
) -> tuple[str, ...]:
    return (writer.filled(shape, value, as_dtype(dtype)),)


def _iota(
    writer: Writer, operands: Operands, results: Results, /, *, shape: Shape, axis: int, dtype: str
) -> tuple[str, ...]:
    size = shape[axis]
    count = writer.number(size, INT64)
    steps = writer.node("Range", writer.number(0, INT64), count, writer.number(1, INT64))
    if as_dtype(dtype) != INT64:
        steps = writer.converted(steps, as_dtype(dtype))
    column = (size, *(1,) * (len(shape) - axis - 1))
    return (writer.expanded(writer.reshaped(steps, (size,), column), column, shape),)


RULES: dict[Primitive, OnnxRule] = {
    **{
        primitives()[each.op]: (direct if each.kind is pointwise else broadcasting)(each.onnx, note=each.note)
        for each in exported(pointwise, together, compared, masked)
    },
    elementwise.SCALE: OnnxRule(_scale),
    rounding.FLOOR_DIVIDE: OnnxRule(floor_divide),
    rounding.MOD: OnnxRule(mod),
    rounding.LEFT_SHIFT: OnnxRule(left_shift),
    rounding.RIGHT_SHIFT: OnnxRule(right_shift),
    transcendental.EXP2: OnnxRule(_exp2),
    transcendental.LOG2: _to_base(2),
    transcendental.LOG10: _to_base(10),
    elementwise.POW: OnnxRule(_pow),
    elementwise.CLAMP: OnnxRule(_clamp, NAN),
    elementwise.SAFE_LOG: OnnxRule(_safe_log, NAN),
    activation.SILU: OnnxRule(_silu),
    activation.GELU: OnnxRule(_gelu),
    logic.SELECT: OnnxRule(_select),
    logic.CAST: OnnxRule(_cast),
    logic.DETACH: OnnxRule(_detach),
    logic.FULL: OnnxRule(_full),
    logic.IOTA: OnnxRule(_iota),
}
