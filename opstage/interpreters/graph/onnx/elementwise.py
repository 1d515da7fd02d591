"""Arithmetic and functions of one element, activations, comparisons and conversions: mostly operators of ONNX's own."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ....ops.catalogue import activation, elementwise, logic
from ....ops.primitive import Primitive
from ....ops.types import FLOAT32, INT64, Shape, TensorType, as_dtype
from .nodes import OnnxValue
from .rules import OnnxRule, broadcasting, direct
from .writer import Writer

Operands = tuple[OnnxValue, ...]
Results = tuple[TensorType, ...]

_NAN = "of nan ONNX says nothing"


def _scale(writer: Writer, operands: Operands, results: Results, /, *, c: Any) -> tuple[str, ...]:
    return (writer.node("Mul", *operands, writer.number(c, results[0].dtype)),)


def _pow(writer: Writer, operands: Operands, results: Results, /, *, exponent: Any) -> tuple[str, ...]:
    if exponent in (Fraction(1, 2), Fraction(-1, 2)):
        root = writer.node("Sqrt", *operands)
        return (root if exponent > 0 else writer.node("Reciprocal", root),)
    return (writer.node("Pow", *operands, writer.number(exponent, results[0].dtype)),)


def _clamp(writer: Writer, operands: Operands, results: Results, /, *, lo: Any, hi: Any) -> tuple[str, ...]:
    dtype = results[0].dtype
    return (writer.node("Clip", *operands, writer.number(lo, dtype), writer.number(hi, dtype)),)


def _safe_log(writer: Writer, operands: Operands, results: Results, /, *, eps: Any) -> tuple[str, ...]:
    return (writer.node("Log", writer.node("Max", *operands, writer.number(eps, results[0].dtype))),)


def _silu(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (writer.node("Mul", *operands, writer.node("Sigmoid", *operands)),)


def _gelu(writer: Writer, operands: Operands, results: Results, /, *, approximate: str) -> tuple[str, ...] | None:
    """In float64 by its decomposition: what ONNX says of Gelu has its factors in float32."""
    return (writer.node("Gelu", *operands, approximate=approximate),) if operands[0].dtype == FLOAT32 else None


def _cast(writer: Writer, operands: Operands, results: Results, /, *, dtype: str) -> tuple[str, ...]:
    (x,) = operands
    return (x.name if x.dtype == results[0].dtype else writer.converted(x, as_dtype(dtype)),)


def _detach(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    return (operands[0].name,)


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
    elementwise.ADD: broadcasting("Add"),
    elementwise.SUB: broadcasting("Sub"),
    elementwise.MUL: broadcasting("Mul"),
    elementwise.DIV: broadcasting("Div"),
    elementwise.MAXIMUM: broadcasting("Max", note=_NAN),
    elementwise.MINIMUM: broadcasting("Min", note=_NAN),
    elementwise.NEG: direct("Neg"),
    elementwise.SCALE: OnnxRule(_scale),
    elementwise.ABS: direct("Abs"),
    elementwise.SQRT: direct("Sqrt"),
    elementwise.EXP: direct("Exp"),
    elementwise.LOG: direct("Log"),
    elementwise.INV: direct("Reciprocal"),
    elementwise.SIN: direct("Sin"),
    elementwise.COS: direct("Cos"),
    elementwise.TANH: direct("Tanh"),
    elementwise.SIGMOID: direct("Sigmoid"),
    elementwise.SOFTPLUS: direct("Softplus"),
    elementwise.ERF: direct("Erf"),
    elementwise.POW: OnnxRule(_pow),
    elementwise.CLAMP: OnnxRule(_clamp, _NAN),
    elementwise.SAFE_LOG: OnnxRule(_safe_log, _NAN),
    activation.RELU: direct("Relu", note=_NAN),
    activation.SILU: OnnxRule(_silu),
    activation.GELU: OnnxRule(_gelu),
    logic.LESS: broadcasting("Less"),
    logic.LESS_EQUAL: broadcasting("LessOrEqual"),
    logic.EQUAL: broadcasting("Equal"),
    logic.LOGICAL_AND: broadcasting("And"),
    logic.LOGICAL_NOT: direct("Not"),
    logic.SELECT: broadcasting("Where"),
    logic.CAST: OnnxRule(_cast),
    logic.DETACH: OnnxRule(_detach),
    logic.FULL: OnnxRule(_full),
    logic.IOTA: OnnxRule(_iota),
}
