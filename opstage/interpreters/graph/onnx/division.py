"""Floor division and shifts, by ONNX's Mod, Div and BitShift, avoiding operands that runtimes leave undefined or crash
on."""

from __future__ import annotations

import numpy as np

from ....ops.types import DType, TensorType
from .nodes import OnnxValue
from .writer import Writer

Operands = tuple[OnnxValue, ...]
Results = tuple[TensorType, ...]


def _rest(writer: Writer, x: OnnxValue, y: OnnxValue, dtype: DType) -> tuple[str, str]:
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


def mod(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    x, y = operands
    return (_rest(writer, x, y, results[0].dtype)[0],)


def floor_divide(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    (x, y), dtype = operands, results[0].dtype
    rest, divisor = _rest(writer, x, y, dtype)
    whole = writer.node("Div", writer.node("Sub", x, rest), divisor)
    by_zero = writer.node("Equal", y, writer.number(0, dtype))
    if dtype.kind == "f":
        return (writer.node("Where", by_zero, writer.node("Div", x, y), writer.node("Round", whole)),)
    opposite = writer.node("Equal", y, writer.number(-1, dtype))
    whole = writer.node("Where", opposite, writer.node("Neg", x), whole)
    return (writer.node("Where", by_zero, writer.number(0, dtype), whole),)


def _places(writer: Writer, y: OnnxValue, dtype: DType) -> tuple[str, str]:
    """Return where all bits are shifted out, and the clamped number of places: at most the width minus one."""
    width = writer.number(8 * dtype.itemsize - 1, dtype)
    gone = writer.node("Or", writer.node("Less", width, y), writer.node("Less", y, writer.number(0, dtype)))
    return gone, writer.node("Where", gone, width, y)


def left_shift(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    """Shift the bits as unsigned numbers, the only ones that ONNX shifts; 0 where all bits are shifted out."""
    (x, y), dtype = operands, results[0].dtype
    unsigned = np.dtype(f"u{dtype}")
    gone, places = _places(writer, y, dtype)
    shifted = writer.node(
        "BitShift", writer.converted(x, unsigned), writer.converted(places, unsigned), direction="LEFT"
    )
    return (writer.node("Where", gone, writer.number(0, dtype), writer.converted(shifted, dtype)),)


def right_shift(writer: Writer, operands: Operands, results: Results, /) -> tuple[str, ...]:
    """Shift x where it is not negative, and its complement where it is, which extends the sign."""
    (x, y), dtype = operands, results[0].dtype
    unsigned = np.dtype(f"u{dtype}")
    places = writer.converted(_places(writer, y, dtype)[1], unsigned)
    below = writer.node("Less", x, writer.number(0, dtype))
    turned = writer.node("Where", below, writer.node("BitwiseNot", x), x)
    shifted = writer.node("BitShift", writer.converted(turned, unsigned), places, direction="RIGHT")
    back = writer.converted(shifted, dtype)
    return (writer.node("Where", below, writer.node("BitwiseNot", back), back),)
