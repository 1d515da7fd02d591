"""Rounding, signs, division rounded down, and the bits of integers."""

from __future__ import annotations

from ..arguments import Number
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
from .calls import Calls


class RoundingOps(Calls[R]):
    __slots__ = ()

    def floor(self, x: R, /) -> R:
        """The greatest whole number that is not above x; derivative 0. PyTorch: torch.floor.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(FLOOR, x)

    def ceil(self, x: R, /) -> R:
        """The least whole number that is not below x; derivative 0. PyTorch: torch.ceil.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(CEIL, x)

    def trunc(self, x: R, /) -> R:
        """x without its fraction, rounded towards 0; derivative 0. PyTorch: torch.trunc.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(TRUNC, x)

    def round(self, x: R, /) -> R:
        """The nearest whole number, the even one of two as near; derivative 0. PyTorch: torch.round.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ROUND, x)

    def sign(self, x: R, /) -> R:
        """-1, 0 or 1, nan of nan, of floats or integers; derivative 0. PyTorch: torch.sign, which is 0 of nan.

        Raises:
            DtypeError: x a mask.
        """
        return self._call1(SIGN, x)

    def floor_divide(self, x: R | Number, y: R | Number, /) -> R:
        """x / y rounded down, of one shape and dtype; derivative 0. PyTorch: torch.floor_divide, x // y.

        An integer by 0 is 0, as in NumPy; a float by 0 is IEEE's quotient.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(FLOOR_DIVIDE, x, y)

    def mod(self, x: R | Number, y: R | Number, /) -> R:
        """x - y · floor(x / y), exactly, with the sign of y. PyTorch: torch.remainder, x % y.

        An integer modulo 0 is 0, as in NumPy; a float is nan. Derivatives 1 and -floor(x / y).

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(MOD, x, y)

    def fmod(self, x: R | Number, y: R | Number, /) -> R:
        """The rest of x / y rounded towards 0, with the sign of x. PyTorch: torch.fmod.

        Raises:
            DtypeError: x a mask; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(FMOD, x, y)

    def bitwise_and(self, x: R | Number, y: R | Number, /) -> R:
        """The bits that both integers have; no gradient. PyTorch: torch.bitwise_and.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(BITWISE_AND, x, y)

    def bitwise_or(self, x: R | Number, y: R | Number, /) -> R:
        """The bits that either integer has; no gradient. PyTorch: torch.bitwise_or.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(BITWISE_OR, x, y)

    def bitwise_xor(self, x: R | Number, y: R | Number, /) -> R:
        """The bits that one integer has and the other has not; no gradient. PyTorch: torch.bitwise_xor.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(BITWISE_XOR, x, y)

    def left_shift(self, x: R | Number, y: R | Number, /) -> R:
        """The bits of x moved up by y places, 0 from as many as x has on; no gradient.

        PyTorch: torch.bitwise_left_shift. What is moved out is lost; a y below 0 moves out everything too, as in NumPy.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(LEFT_SHIFT, x, y)

    def right_shift(self, x: R | Number, y: R | Number, /) -> R:
        """The bits of x moved down by y places, copies of its sign behind them; no gradient.

        PyTorch: torch.bitwise_right_shift. A y below 0 leaves the sign alone, as in NumPy.

        Raises:
            DtypeError: x not an integer tensor; dtypes differ; a number that the dtype does not hold.
            ShapeError: shapes differ.
        """
        return self._pointwise2(RIGHT_SHIFT, x, y)
