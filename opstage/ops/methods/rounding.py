"""Rounding, signs, floor division, and bitwise ops on integers."""

from __future__ import annotations

from ..arguments import Number
from ..calls import Calls
from ..catalogue.rounding import (
    BITWISE_AND,
    BITWISE_OR,
    BITWISE_XOR,
    CEIL,
    FLOOR,
    FLOOR_DIVIDE,
    FMOD,
    LEFT_SHIFT,
    MOD,
    RIGHT_SHIFT,
    ROUND,
    SIGN,
    TRUNC,
)
from ..primitive import R


class RoundingOps(Calls[R]):
    __slots__ = ()

    def floor(self, x: R, /) -> R:
        """The largest integer <= x; derivative 0. PyTorch: torch.floor.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(FLOOR, x)

    def ceil(self, x: R, /) -> R:
        """The smallest integer >= x; derivative 0. PyTorch: torch.ceil.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(CEIL, x)

    def trunc(self, x: R, /) -> R:
        """x rounded towards 0; derivative 0. PyTorch: torch.trunc.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(TRUNC, x)

    def round(self, x: R, /) -> R:
        """The nearest integer, with ties to even; derivative 0. PyTorch: torch.round.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ROUND, x)

    def sign(self, x: R, /) -> R:
        """-1, 0 or 1, and nan for nan, for floats or integers; derivative 0. PyTorch: torch.sign, which is 0 for nan.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(SIGN, x)

    def floor_divide(self, x: R | Number, y: R | Number, /) -> R:
        """x / y rounded down, of one shape and dtype; derivative 0. PyTorch: torch.floor_divide, x // y.

        Integer division by 0 is 0, as in NumPy; float division by 0 is as in IEEE 754.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(FLOOR_DIVIDE, x, y)

    def mod(self, x: R | Number, y: R | Number, /) -> R:
        """x - y · floor(x / y), exactly, with the sign of y. PyTorch: torch.remainder, x % y.

        Modulo 0 an integer gives 0, as in NumPy, and a float nan. Derivatives 1 and -floor(x / y).

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(MOD, x, y)

    def fmod(self, x: R | Number, y: R | Number, /) -> R:
        """The remainder of x / y rounded towards 0, with the sign of x. PyTorch: torch.fmod.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(FMOD, x, y)

    def bitwise_and(self, x: R | Number, y: R | Number, /) -> R:
        """The bitwise and of integers; no gradient. PyTorch: torch.bitwise_and.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(BITWISE_AND, x, y)

    def bitwise_or(self, x: R | Number, y: R | Number, /) -> R:
        """The bitwise or of integers; no gradient. PyTorch: torch.bitwise_or.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(BITWISE_OR, x, y)

    def bitwise_xor(self, x: R | Number, y: R | Number, /) -> R:
        """The bitwise exclusive or of integers; no gradient. PyTorch: torch.bitwise_xor.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(BITWISE_XOR, x, y)

    def left_shift(self, x: R | Number, y: R | Number, /) -> R:
        """x shifted left by y bits, 0 if y is at least the width of x; no gradient.

        PyTorch: torch.bitwise_left_shift. Bits shifted out are lost; a negative y shifts out all bits, as in NumPy.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(LEFT_SHIFT, x, y)

    def right_shift(self, x: R | Number, y: R | Number, /) -> R:
        """x shifted right by y bits, with sign extension; no gradient.

        PyTorch: torch.bitwise_right_shift. A negative y leaves only the sign, as in NumPy.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(RIGHT_SHIFT, x, y)
