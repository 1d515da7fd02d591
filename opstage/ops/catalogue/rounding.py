"""Rounding, signs, floor division, and bitwise ops on integers.

Their derivatives are 0, except mod's with respect to its dividend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..kinds import Kind
from ..primitive import Context, Primitive, R
from ..rules import same_type, zeros_like
from ..types import TensorType, require_float, require_integer, require_number
from .elementwise import binary_shape, pointwise

if TYPE_CHECKING:
    from ..protocol import Ops


def _flat(ops: Ops[R], _: Any, g: R) -> R:
    return zeros_like(ops, g)


def _alone(x: TensorType) -> tuple[TensorType, ...]:
    require_number(x, "x")
    return (x,)


# Rounding -----------------------------------------------------------------------------------------------------------

FLOOR = pointwise("floor", reads="", derivative=_flat)
ROUND = pointwise("round", reads="", derivative=_flat)


def _composite(
    name: str,
    decomposition: Callable[..., Any],
    shape: Callable[..., tuple[TensorType, ...]],
    operands: tuple[str, ...] = ("x",),
) -> Primitive:
    return Primitive(name, operands=operands, shape=shape, decomposition=decomposition)


def _float_alone(x: TensorType) -> tuple[TensorType, ...]:
    require_float(x, "x")
    return (x,)


def _ceil(ops: Ops[R], x: R, /) -> tuple[R, ...]:
    return (ops.neg(ops.floor(ops.neg(x))),)


def _trunc(ops: Ops[R], x: R, /) -> tuple[R, ...]:
    return (ops.select(ops.less(x, zeros_like(ops, x)), ops.ceil(x), ops.floor(x)),)


def _sign(ops: Ops[R], x: R, /) -> tuple[R, ...]:
    zero = zeros_like(ops, x)

    def full(value: int) -> R:
        return ops.full(shape=x.shape, value=value, dtype=x.dtype)

    kept = ops.detach(x) if x.dtype.kind in "fO" else x  # 0 and nan map to themselves
    return (ops.select(ops.less(x, zero), full(-1), ops.select(ops.less(zero, x), full(1), kept)),)


CEIL = _composite("ceil", _ceil, _float_alone)
TRUNC = _composite("trunc", _trunc, _float_alone)
SIGN = _composite("sign", _sign, _alone)

# Division -----------------------------------------------------------------------------------------------------------


def _no_slope(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /) -> tuple[R | None, ...]:
    zero = zeros_like(ops, cotangents[0])
    return tuple(zero if needed else None for needed in ctx.needs)


def _no_slope_jvp(
    ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R | None, ...], /
) -> tuple[R | None]:
    return (zeros_like(ops, outputs[0]),)


FLOOR_DIVIDE = Primitive(
    "floor_divide",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=binary_shape,
    vjp=_no_slope,
    jvp=_no_slope_jvp,
)


def _mod_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /) -> tuple[R | None, ...]:
    (g,), (x, y) = cotangents, ctx.saved
    return g, ops.neg(ops.mul(g, ops.floor_divide(x, y))) if ctx.needs[1] else None


def _mod_jvp(
    ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R | None, ...], /
) -> tuple[R | None]:
    (x, y), (tx, ty) = primals, tangents
    if ty is None:
        return (tx,)
    slope = ops.mul(ty, ops.floor_divide(x, y))
    return (ops.neg(slope) if tx is None else ops.sub(tx, slope),)


MOD = Primitive(
    "mod",
    operands=("x", "y"),
    kind=Kind.POINTWISE,
    shape=binary_shape,
    vjp=_mod_vjp,
    jvp=_mod_jvp,
    saves={"x": ("y",), "y": ("y",)},
)


def _fmod(ops: Ops[R], x: R, y: R, /) -> tuple[R, ...]:
    zero = zeros_like(ops, x)
    below = ops.less(x, zero)
    if x.dtype.kind == "i":  # the least integer has no absolute value
        rest = ops.mod(x, y)
        apart = ops.logical_xor(below, ops.less(y, zero))
        return (ops.select(ops.logical_and(apart, ops.logical_not(ops.equal(rest, zero))), ops.sub(rest, y), rest),)
    rest = ops.mod(ops.abs(x), ops.abs(y))
    return (ops.select(below, ops.neg(rest), ops.select(ops.less(zero, x), rest, ops.sub(x, rest))),)  # -0.0 stays


FMOD = _composite("fmod", _fmod, binary_shape, ("x", "y"))

# Bits ---------------------------------------------------------------------------------------------------------------


def _bits_shape(x: TensorType, y: TensorType) -> tuple[TensorType, ...]:
    require_integer(x, "x")
    return (same_type(x, y),)


def _of_bits(name: str) -> Primitive:
    return Primitive(name, operands=("x", "y"), kind=Kind.POINTWISE, shape=_bits_shape, differentiable=False)


BITWISE_AND = _of_bits("bitwise_and")
BITWISE_OR = _of_bits("bitwise_or")
BITWISE_XOR = _of_bits("bitwise_xor")
LEFT_SHIFT = _of_bits("left_shift")
RIGHT_SHIFT = _of_bits("right_shift")
