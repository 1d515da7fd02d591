"""Arithmetic on numbers and packed arrays: the type of a result, and the instructions.

Integers are computed in 64 bits; an integer and a float are combined in float64, as in numba. So 32-bit results need a
cast: `int32(a + b)`, and constants of a float32 formula are float32.
"""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir

from .. import access
from .types import BOOL, FLOAT32, FLOAT64, INT64, UINT64, ScalarKind, Value, declared

# Numbers --------------------------------------------------------------------------------------------------------------

FLOATS = {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"}
INTEGERS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
}
COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def common(left: ScalarKind, right: ScalarKind) -> ScalarKind | None:
    """Return the common kind of two numbers, or None."""
    if left is right and left.family == "float":
        return left
    if "other" in (left.family, right.family):
        return None
    if "float" in (left.family, right.family):
        return FLOAT64
    if UINT64 in (left, right):
        return UINT64 if left is right or "bool" in (left.family, right.family) else None
    return INT64


def converted(builder: Any, value: Value, kind: ScalarKind) -> Value | None:
    """Convert a number to another kind; None if that is not possible."""
    at, source, to = value.ir, value.kind, kind
    if source is to:
        return value
    if "other" in (source.family, to.family):
        return None
    if to is BOOL:
        return truth(builder, value)
    if source.family == "float":
        if to.family == "float":
            made = builder.fpext(at, to.type) if to.bits > source.bits else builder.fptrunc(at, to.type)
        else:
            made = _truncated(builder, value, to) if to.family == "int" else builder.fptoui(at, to.type)
    elif to.family == "float":
        made = builder.sitofp(at, to.type) if source.family == "int" else builder.uitofp(at, to.type)
    elif to.bits == source.bits:
        made = at
    elif to.bits < source.bits:
        made = builder.trunc(at, to.type)
    else:
        made = builder.sext(at, to.type) if source.family == "int" else builder.zext(at, to.type)
    return Value(to, made)


def _truncated(builder: Any, value: Value, to: ScalarKind) -> Any:
    """Return a float rounded towards 0; the least integer for one beyond all integers and for nan, as NumPy does.

    LLVM's own result is undefined for these.
    """
    kind, limit = value.kind, 2.0 ** (to.bits - 1)
    magnitude = declared(builder, ir.FunctionType(kind.type, [kind.type]), f"llvm.fabs.f{kind.bits}")
    fits = builder.fcmp_ordered("<", builder.call(magnitude, [value.ir]), ir.Constant(kind.type, limit))
    return builder.select(fits, builder.fptosi(value.ir, to.type), ir.Constant(to.type, -int(limit)))


def truth(builder: Any, value: Value) -> Value | None:
    """Return whether a number is not 0."""
    kind = value.kind
    if kind is BOOL:
        return value
    if kind.family == "float":
        return Value(BOOL, builder.fcmp_unordered("!=", value.ir, ir.Constant(kind.type, 0.0)))
    if kind.whole:
        return Value(BOOL, builder.icmp_signed("!=", value.ir, ir.Constant(kind.type, 0)))
    return None


def binary(
    builder: Any, operation: type[ast.operator], left: Value, right: Value, flags: tuple[str, ...]
) -> Value | None:
    """Return `left operation right`; None if it is not supported."""
    kind = common(left.kind, right.kind)
    if kind is None:
        return None
    if operation is ast.Div and kind.whole:
        kind = FLOAT64
    x, y = converted(builder, left, kind), converted(builder, right, kind)
    assert x is not None and y is not None
    if kind.family == "float":
        if operation is ast.Pow:
            power = declared(builder, ir.FunctionType(kind.type, [kind.type] * 2), f"llvm.pow.f{kind.bits}")
            return Value(kind, builder.call(power, [x.ir, y.ir]))
        name = FLOATS.get(operation, "")
        return Value(kind, getattr(builder, name)(x.ir, y.ir, flags=flags)) if name else None
    if operation is ast.RShift:
        return Value(kind, (builder.ashr if kind.family == "int" else builder.lshr)(x.ir, y.ir))
    if operation in (ast.FloorDiv, ast.Mod):
        return Value(kind, _divided(builder, kind, x.ir, y.ir, operation is ast.Mod))
    name = INTEGERS.get(operation, "")
    return Value(kind, getattr(builder, name)(x.ir, y.ir)) if name else None


def _divided(builder: Any, kind: ScalarKind, x: Any, y: Any, remainder: bool) -> Any:
    """Return the quotient rounded down, or the remainder with the divisor's sign; 0 if the divisor is 0."""
    zero = ir.Constant(kind.type, 0)
    known = isinstance(y, ir.Constant) and y.constant > 0
    one, negative_one = ir.Constant(kind.type, 1), ir.Constant(kind.type, -1)
    # processors trap at a divisor of 0, and at -1 for the minimal integer, which has no negative
    special = opposite = None
    if not known:
        special = builder.icmp_signed("==", y, zero)
        if kind.family == "int":
            opposite = builder.icmp_signed("==", y, negative_one)
            special = builder.or_(special, opposite)
    divisor = y if special is None else builder.select(special, one, y)
    if kind.family == "uint":
        made = (builder.urem if remainder else builder.udiv)(x, divisor)
    else:
        rest = builder.srem(x, divisor)
        apart = builder.icmp_signed("<", builder.xor(rest, divisor), zero)
        down = builder.and_(builder.icmp_signed("!=", rest, zero), apart)
        if remainder:
            made = builder.select(down, builder.add(rest, divisor), rest)
        else:
            quotient = builder.sdiv(x, divisor)
            made = builder.select(down, builder.sub(quotient, one), quotient)
            if opposite is not None:
                made = builder.select(opposite, builder.neg(x), made)
    return made if known else builder.select(builder.icmp_signed("==", y, zero), zero, made)


def compared(builder: Any, operation: type[ast.cmpop], left: Value, right: Value) -> Value | None:
    """Return whether `left operation right`; with a nan only != is true."""
    kind, sign = common(left.kind, right.kind), COMPARISONS.get(operation)
    if kind is None or sign is None:
        return None
    x, y = converted(builder, left, kind), converted(builder, right, kind)
    assert x is not None and y is not None
    if kind.family == "float":
        compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
    else:
        compare = builder.icmp_signed if kind.family == "int" else builder.icmp_unsigned
    return Value(BOOL, compare(sign, x.ir, y.ir))


def negative(builder: Any, value: Value) -> Value | None:
    kind = value.kind
    if kind.family == "float":
        known = value.constant
        return Value(kind, ir.Constant(kind.type, -known) if known is not None else builder.fneg(value.ir))
    if kind.family == "int":
        known = value.constant
        if known is not None:
            return Value(INT64, ir.Constant(INT64.type, -known))
        wide = converted(builder, value, INT64)
        assert wide is not None
        return Value(INT64, builder.neg(wide.ir))
    return None


def magnitude(builder: Any, value: Value) -> Value | None:
    """Return |x| of an integer; the minimal one, which has no negative, is unchanged."""
    opposite = negative(builder, value)
    if opposite is None:
        return None
    wide = converted(builder, value, opposite.kind)
    assert wide is not None
    below = builder.icmp_signed("<", wide.ir, ir.Constant(wide.kind.type, 0))
    return Value(wide.kind, builder.select(below, opposite.ir, wide.ir))


def math_call(builder: Any, name: str, value: Value, *others: Value) -> Value | None:
    """Call a function of floats, all of the first one's kind: `llvm.sqrt`, or the C library's, with an f for
    float32."""
    kind = value.kind if value.kind in (FLOAT32, FLOAT64) else FLOAT64
    given = [converted(builder, each, kind) for each in (value, *others)]
    if None in given:
        return None
    full = f"{name}.f{kind.bits}" if name.startswith("llvm.") else name + ("f" if kind is FLOAT32 else "")
    function = declared(builder, ir.FunctionType(kind.type, [kind.type] * len(given)), full)
    return Value(kind, builder.call(function, [each.ir for each in given if each is not None]))


# Arrays ---------------------------------------------------------------------------------------------------------------

# An array is a tuple of its `Packed` description, its address and its sizes.


class Packed(NamedTuple):
    """An array in row-major order: its dtype's name, and the scope of its memory (see `native.access`)."""

    dtype: str
    scope: str


def is_array(value: Any) -> bool:
    return type(value) is tuple and bool(value) and isinstance(value[0], Packed)


def attribute(builder: Any, array: Any, name: str) -> Any:
    """Return `shape`, `size` or `dtype`; None for any other."""
    packed, _, *shape = array
    if name == "shape":
        return tuple(shape)
    if name == "size":
        size = shape[0]
        for extent in shape[1:]:
            size = Value(INT64, builder.mul(size.ir, extent.ir))
        return size
    return np.dtype(packed.dtype) if name == "dtype" else None


def place(builder: Any, array: Any, index: Any) -> Any:
    """Return the row-major position of the element at an index, an integer per axis; None for other indices."""
    _, _, *shape = array
    indices = index if type(index) is tuple else (index,)
    if len(indices) != len(shape) or not all(isinstance(i, Value) for i in indices):
        return None
    if not all(i.kind.whole for i in indices):
        return None
    first, *rest = [converted(builder, i, INT64).ir for i in indices]  # type: ignore[union-attr]
    for extent, i in zip(shape[1:], rest):
        first = builder.add(builder.mul(first, extent.ir), i)
    return first


def load(builder: Any, array: Any, at: Any) -> Value:
    packed, address, *_ = array
    read = access.load(packed.dtype, packed.scope)
    return Value(read.result, read.build(builder, address.ir, at))


def store(builder: Any, array: Any, at: Any, value: Any) -> bool:
    """Store a number; return False if it cannot be an element of the array."""
    packed, address, *_ = array
    write = access.store(packed.dtype, packed.scope)
    of = write.operands[-1]
    fits = isinstance(value, Value) and not (value.kind.family == "float" and of.whole)
    number = converted(builder, value, of) if fits else None
    if number is not None:
        write.build(builder, address.ir, at, number.ir)
    return number is not None
