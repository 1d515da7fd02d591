"""Powers, logarithms, and trigonometric and hyperbolic functions."""

from __future__ import annotations

from ..calls import Calls
from ..catalogue.transcendental import (
    ACOS,
    ACOSH,
    ASIN,
    ASINH,
    ATAN,
    ATAN2,
    ATANH,
    COSH,
    EXP2,
    EXPM1,
    LOG1P,
    LOG2,
    LOG10,
    SINH,
    TAN,
)
from ..primitive import R


class TranscendentalOps(Calls[R]):
    __slots__ = ()

    def expm1(self, x: R, /) -> R:
        """e^x - 1, accurate near 0. PyTorch: torch.expm1.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(EXPM1, x)

    def log1p(self, x: R, /) -> R:
        """log(1 + x), accurate near 0; -inf at -1, nan below. PyTorch: torch.log1p.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(LOG1P, x)

    def exp2(self, x: R, /) -> R:
        """2^x, exact where x is an integer. PyTorch: torch.exp2.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(EXP2, x)

    def log2(self, x: R, /) -> R:
        """Logarithm to the base 2, exact for powers of 2; -inf at 0, nan below. PyTorch: torch.log2.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(LOG2, x)

    def log10(self, x: R, /) -> R:
        """Logarithm to the base 10; -inf at 0, nan below. PyTorch: torch.log10.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(LOG10, x)

    def tan(self, x: R, /) -> R:
        """Tangent, of radians. PyTorch: torch.tan.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(TAN, x)

    def asin(self, x: R, /) -> R:
        """The angle in [-π/2, π/2] whose sine is x; nan outside [-1, 1]. PyTorch: torch.asin.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ASIN, x)

    def acos(self, x: R, /) -> R:
        """The angle in [0, π] whose cosine is x; nan outside [-1, 1]. PyTorch: torch.acos.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ACOS, x)

    def atan(self, x: R, /) -> R:
        """The angle in [-π/2, π/2] whose tangent is x. PyTorch: torch.atan.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ATAN, x)

    def atan2(self, y: R, x: R, /) -> R:
        """The angle in [-π, π] of the point (x, y), by the signs of both, including zeros. PyTorch: torch.atan2.

        The derivative at (0, 0) is nan.

        Raises:
            DtypeError: y not a float tensor; dtypes differ.
            ShapeError: shapes differ.
        """
        return self._call2(ATAN2, y, x)

    def sinh(self, x: R, /) -> R:
        """½(e^x - e^-x), accurate near 0. PyTorch: torch.sinh.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(SINH, x)

    def cosh(self, x: R, /) -> R:
        """½(e^x + e^-x). PyTorch: torch.cosh.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(COSH, x)

    def asinh(self, x: R, /) -> R:
        """The inverse of sinh, log(x + √(x² + 1)), accurate near 0 and below. PyTorch: torch.asinh.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ASINH, x)

    def acosh(self, x: R, /) -> R:
        """The inverse of cosh, log(x + √(x² - 1)); nan below 1. PyTorch: torch.acosh.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ACOSH, x)

    def atanh(self, x: R, /) -> R:
        """The inverse of tanh, ½ log((1 + x)/(1 - x)); ±inf at ±1, nan outside. PyTorch: torch.atanh.

        Raises:
            DtypeError: x not a float tensor.
        """
        return self._call1(ATANH, x)
