# mypy: disable-error-code=empty-body
"""Rounding, signs, floor division, and bitwise ops on integers.

Their derivatives are 0, except mod's with respect to its dividend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .elementwise import binary_shape, pointwise
from .method import Calls
from .primitive import Context, Kind, Primitive, R, Row, Some
from .rule_helpers import alike, full_like, zeros_like
from .static_arguments import Number
from .types import require_float, require_integer, require_number

if TYPE_CHECKING:
    from .protocol import Ops


def _flat(ops: Ops[R], _: Any, g: R) -> R:
    return zeros_like(ops, g)


# Rounding -----------------------------------------------------------------------------------------------------------

FLOOR = pointwise(reads="", derivative=_flat)
ROUND = pointwise(reads="", derivative=_flat)


def _ceil(ops: Ops[R], x: R, /) -> Row[R]:
    return (ops.neg(ops.floor(ops.neg(x))),)


def _trunc(ops: Ops[R], x: R, /) -> Row[R]:
    return (ops.select(ops.less(x, zeros_like(ops, x)), ops.ceil(x), ops.floor(x)),)


def _sign(ops: Ops[R], x: R, /) -> Row[R]:
    zero = zeros_like(ops, x)
    kept = ops.detach(x) if x.dtype.kind in "fO" else x  # 0 and nan map to themselves
    return (
        ops.select(ops.less(x, zero), full_like(ops, x, -1), ops.select(ops.less(zero, x), full_like(ops, x, 1), kept)),
    )


CEIL = Primitive(shape=alike(require_float, "x"), decomposition=_ceil)
TRUNC = Primitive(shape=alike(require_float, "x"), decomposition=_trunc)
SIGN = Primitive(shape=alike(require_number, "x"), decomposition=_sign)

# Division -----------------------------------------------------------------------------------------------------------


def _no_slope(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    zero = zeros_like(ops, cotangents[0])
    return tuple(zero if needed else None for needed in ctx.needs)


def _no_slope_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> tuple[R | None]:
    return (zeros_like(ops, outputs[0]),)


FLOOR_DIVIDE = Primitive(kind=Kind.POINTWISE, shape=binary_shape, vjp=_no_slope, jvp=_no_slope_jvp)


def _mod_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x, y) = cotangents, ctx.saved
    return g, ops.neg(ops.mul(g, ops.floor_divide(x, y))) if ctx.needs[1] else None


def _mod_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> tuple[R | None]:
    (x, y), (tx, ty) = primals, tangents
    if ty is None:
        return (tx,)
    slope = ops.mul(ty, ops.floor_divide(x, y))
    return (ops.neg(slope) if tx is None else ops.sub(tx, slope),)


MOD = Primitive(kind=Kind.POINTWISE, shape=binary_shape, vjp=_mod_vjp, jvp=_mod_jvp, saves={"x": ("y",), "y": ("y",)})


def _fmod(ops: Ops[R], x: R, y: R, /) -> Row[R]:
    zero = zeros_like(ops, x)
    below = ops.less(x, zero)
    if x.dtype.kind == "i":  # the least integer has no absolute value
        rest = ops.mod(x, y)
        apart = ops.logical_xor(below, ops.less(y, zero))
        return (ops.select(ops.logical_and(apart, ops.logical_not(ops.equal(rest, zero))), ops.sub(rest, y), rest),)
    rest = ops.mod(ops.abs(x), ops.abs(y))
    return (ops.select(below, ops.neg(rest), ops.select(ops.less(zero, x), rest, ops.sub(x, rest))),)  # -0.0 stays


FMOD = Primitive(shape=binary_shape, decomposition=_fmod)

# Bits ---------------------------------------------------------------------------------------------------------------
_bits_shape = alike(require_integer, "x", "y")

BITWISE_AND = Primitive(kind=Kind.POINTWISE, shape=_bits_shape, differentiable=False)
BITWISE_OR = Primitive(kind=Kind.POINTWISE, shape=_bits_shape, differentiable=False)
BITWISE_XOR = Primitive(kind=Kind.POINTWISE, shape=_bits_shape, differentiable=False)
LEFT_SHIFT = Primitive(kind=Kind.POINTWISE, shape=_bits_shape, differentiable=False)
RIGHT_SHIFT = Primitive(kind=Kind.POINTWISE, shape=_bits_shape, differentiable=False)


# The methods of Ops ------------------------------------------------------------------------------------------


class RoundingOps(Calls[R]):
    __slots__ = ()

    @FLOOR.method
    def floor(self, x: R, /) -> R:
        """Return the largest integer <= x; derivative 0. PyTorch: torch.floor.

        Raises:
            DtypeError: x not a float tensor.
        """

    @CEIL.method
    def ceil(self, x: R, /) -> R:
        """Return the smallest integer >= x; derivative 0. PyTorch: torch.ceil.

        Raises:
            DtypeError: x not a float tensor.
        """

    @TRUNC.method
    def trunc(self, x: R, /) -> R:
        """Return x rounded towards 0; derivative 0. PyTorch: torch.trunc.

        Raises:
            DtypeError: x not a float tensor.
        """

    @ROUND.method
    def round(self, x: R, /) -> R:
        """Return the nearest integer, with ties to even; derivative 0. PyTorch: torch.round.

        Raises:
            DtypeError: x not a float tensor.
        """

    @SIGN.method
    def sign(self, x: R, /) -> R:
        """Return -1, 0 or 1, and nan for nan, for floats or integers; derivative 0. PyTorch: torch.sign, which is 0 for
        nan.

        Raises:
            DtypeError: x a mask.
        """

    @FLOOR_DIVIDE.method
    def floor_divide(self, x: R | Number, y: R | Number, /) -> R:
        """Return x / y rounded down, of one shape and dtype; derivative 0. PyTorch: torch.floor_divide, x // y.

        Integer division by 0 is 0, as in NumPy; float division by 0 is as in IEEE 754.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @MOD.method
    def mod(self, x: R | Number, y: R | Number, /) -> R:
        """Return x - y · floor(x / y), exactly, with the sign of y. PyTorch: torch.remainder, x % y.

        Modulo 0 an integer gives 0, as in NumPy, and a float nan. Derivatives 1 and -floor(x / y).

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @FMOD.method
    def fmod(self, x: R | Number, y: R | Number, /) -> R:
        """Return the remainder of x / y rounded towards 0, with the sign of x. PyTorch: torch.fmod.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @BITWISE_AND.method
    def bitwise_and(self, x: R | Number, y: R | Number, /) -> R:
        """Return the bitwise and of integers; no gradient. PyTorch: torch.bitwise_and.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @BITWISE_OR.method
    def bitwise_or(self, x: R | Number, y: R | Number, /) -> R:
        """Return the bitwise or of integers; no gradient. PyTorch: torch.bitwise_or.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @BITWISE_XOR.method
    def bitwise_xor(self, x: R | Number, y: R | Number, /) -> R:
        """Return the bitwise exclusive or of integers; no gradient. PyTorch: torch.bitwise_xor.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @LEFT_SHIFT.method
    def left_shift(self, x: R | Number, y: R | Number, /) -> R:
        """Return x shifted left by y bits, 0 if y is at least the width of x; no gradient.

        PyTorch: torch.bitwise_left_shift. Bits shifted out are lost; a negative y shifts out all bits, as in NumPy.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """

    @RIGHT_SHIFT.method
    def right_shift(self, x: R | Number, y: R | Number, /) -> R:
        """Return x shifted right by y bits, with sign extension; no gradient.

        PyTorch: torch.bitwise_right_shift. A negative y leaves only the sign, as in NumPy.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
